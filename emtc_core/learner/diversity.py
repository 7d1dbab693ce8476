"""CDS: the intrinsic reward that makes agents differ, and the two predictors behind it.

    r_i = [b1 log q(o'_i | z_i, i) - log p(o'_i | z_i)] + b2 KL(softmax(b1 Q_i) || P_i),  z_i = [h_{t-1}; o_t; a_t]

P_i is a mean of softmax(Q): b1 sharpens the agent's own policy alone. log q and log p are minus squared prediction
errors of two predictors; rewards use their target copies. The reward enters the target as cds.beta times the mean over
agents. Source: lich14/CDS.
"""

import copy
import math

import torch
from torch import Tensor

from emtc_core.config.backbones import CdsConfig
from emtc_core.envs.base import EnvInfo
from emtc_core.learner.backbones.base import Unrolled
from emtc_core.learner.networks import DiverseAgent, Sequence
from emtc_core.learner.predictors import Predictors, Rows
from emtc_core.random_ops import permutation
from emtc_core.replay_buffer.buffer import StateDict

CHUNK = 256
PERIOD_EPISODES = 16
PERIOD_EPOCHS = 25
ANNEAL_FROM = 1_000_000


class Diversity:
    """The intrinsic reward of CDS."""

    def __init__(
        self, config: CdsConfig, info: EnvInfo, agent: DiverseAgent, *, hidden: int, device: torch.device
    ) -> None:
        self._config, self._info, self._agent = config, info, agent
        n_inputs = hidden + info.obs_dim + info.n_actions
        self._online = Predictors(n_inputs, info.n_agents, info.obs_dim).to(device)
        self._target = copy.deepcopy(self._online).requires_grad_(False)
        self._optimizer = torch.optim.Adam(self._online.parameters(), lr=config.predictor_lr, fused=True)
        self._episodes = self._last_training = 0

    def prepare(self, seq: Sequence) -> None:
        """Nothing: everything here reads the learner's own hidden states."""

    @torch.no_grad()
    def reward(self, seq: Sequence, online: Unrolled, *, env_step: int) -> Tensor:
        """Compute cds.beta times the mean intrinsic reward: [T, B]."""
        config = self._config
        error_p, error_q = (e.view(seq.action.shape) for e in self._target.errors(self._rows(seq, online)))
        reward_TBN = error_p - config.b1 * error_q + config.b2 * self._policy_divergence(online)
        return config.beta * self._anneal(env_step) * reward_TBN.mean(-1)

    def train(self, seq: Sequence, online: Unrolled, *, env_step: int, generator: torch.Generator) -> None:
        """Train both predictors on the batch: one pass each update, or 25 passes every 16 episodes."""
        if self._config.predictor_schedule == "every_step":
            self._fit(seq, online, 1, generator)
        elif self._episodes - self._last_training >= PERIOD_EPISODES:
            self._last_training = self._episodes
            self._fit(seq, online, PERIOD_EPOCHS, generator)

    def on_episodes(self, episodes: int) -> None:
        """Count episodes for the periodic schedule."""
        self._episodes = episodes

    def copy_target(self) -> None:
        """Synchronise the copies that rewards use."""
        self._target.load_state_dict(self._online.state_dict())

    def get_state(self) -> StateDict:
        """Return predictors, optimiser and counters."""
        return {
            "online": self._online.state_dict(),
            "target": self._target.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "episodes": self._episodes,
            "last_training": self._last_training,
        }

    def set_state(self, state: StateDict) -> None:
        """Restore what `get_state` returned."""
        self._online.load_state_dict(state["online"])
        self._target.load_state_dict(state["target"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._episodes, self._last_training = state["episodes"], state["last_training"]

    def _rows(self, seq: Sequence, online: Unrolled) -> Rows:
        """Lay z, ids and next observations out, one row per (step, episode, agent)."""
        hidden, n_obs = online.hidden.detach(), self._info.obs_dim
        widths = (hidden.shape[-1], n_obs, self._info.n_actions, self._info.n_agents)
        z_id = seq.obs.new_zeros(*seq.action.shape, sum(widths))
        before, obs, action, agent = z_id.split(widths, -1)
        before[1:] = hidden[:-2]
        obs.copy_(seq.obs[:-1])
        action.scatter_(-1, seq.action.unsqueeze(-1), 1.0)
        agent.copy_(torch.eye(self._info.n_agents, device=z_id.device))
        return Rows(z_id.flatten(0, 2), seq.obs[1:].reshape(-1, n_obs))

    def _policy_divergence(self, online: Unrolled) -> Tensor:
        """Compute KL(softmax(b1 Q_i) || P_i) in logarithms, which no probability can underflow: [T, B, N]."""
        mixture = self._config.policy_mixture
        own_TBNA = torch.log_softmax(self._config.b1 * online.q[:-1], -1)
        if mixture == "agents":
            mean = _log_mean(torch.log_softmax(online.q[:-1], -1), 2).unsqueeze(2)
        else:
            # [T, B, history, identity, A]: averaging over identities keeps a history, and vice versa.
            by_identity = torch.log_softmax(self._agent.swapped(online.hidden[:-1]), -1)
            mean = _log_mean(by_identity, 3 if mixture == "heads" else 2)
        return (own_TBNA.exp() * (own_TBNA - mean)).sum(-1)

    def _anneal(self, env_step: int) -> float:
        past = max(env_step - ANNEAL_FROM, 0) / ANNEAL_FROM
        return max(1.0 - self._config.anneal * past, 0.0)

    def _fit(self, seq: Sequence, online: Unrolled, epochs: int, generator: torch.Generator) -> None:
        # Transitions that are real come first, so that padding is never a sample.
        real = torch.argsort(seq.mask.flatten(), descending=True, stable=True)[: seq.n_real]
        n_agents = self._info.n_agents
        places = (real.unsqueeze(-1) * n_agents + torch.arange(n_agents, device=real.device)).flatten()
        orders = (permutation(len(places), generator=generator, device=real.device) for _ in range(epochs))
        chunks = (places[chunk] for order in orders for chunk in order.split(CHUNK))
        self._online.fit(self._rows(seq, online), chunks, self._optimizer)


def _log_mean(logarithms: Tensor, dim: int) -> Tensor:
    return torch.logsumexp(logarithms, dim) - math.log(logarithms.shape[dim])
