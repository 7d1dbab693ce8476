"""CDS: an intrinsic reward for diverse behavior of the agents.

    r_i = [b1 log q(o'_i | z_i, i) - log p(o'_i | z_i)] + b2 KL(softmax(b1 Q_i) || P_i),  z_i = [h_{t-1}; o_t; a_t]

P_i is the mean of softmax(Q), without the factor b1, over agents, heads or histories (cds.policy_mixture). log q and
log p are the negative squared errors of two predictors of the next observation (diversity_predictors.py). The reward
uses their target copies. The TD target contains cds.beta times the mean of r_i over agents. Source: lich14/CDS.
"""

import copy
import math

import torch
from torch import Tensor

from emtc_core.config.backbones import CdsConfig
from emtc_core.envs.base import EnvInfo
from emtc_core.learner.backbones.base import Unrolled
from emtc_core.learner.diversity_predictors import CHUNK, DevicePass, PredictorRows, Predictors
from emtc_core.learner.networks import DiverseAgent, SequenceBatch
from emtc_core.learner.optimizer_state import get_optimizer_state, set_optimizer_state
from emtc_core.random_tensors import permutation
from emtc_core.replay_buffer.buffer import StateDict

PERIOD_EPISODES = 16
PERIOD_EPOCHS = 25
"""The periodic schedule trains for `PERIOD_EPOCHS` passes every `PERIOD_EPISODES` episodes."""
ANNEAL_FROM = 1_000_000
"""Env steps after which the weight of the reward decreases. It decreases by cds.anneal in the same number of steps."""


class Diversity:
    """The intrinsic reward of CDS."""

    def __init__(
        self, config: CdsConfig, info: EnvInfo, agent: DiverseAgent, *, hidden: int, device: torch.device
    ) -> None:
        self._config, self._info, self._agent = config, info, agent
        n_inputs = hidden + info.obs_dim + info.n_actions
        self._online = Predictors(n_inputs, info.n_agents, info.obs_dim).to(device)
        self._target = copy.deepcopy(self._online).requires_grad_(False)
        on_gpu = device.type == "cuda"
        lr = config.predictor_lr
        self._optimizer = torch.optim.Adam(self._online.parameters(), lr=lr, fused=True, capturable=on_gpu)
        self._pass: DevicePass | None = None
        self._episodes = self._last_training = 0

    def prepare(self, seq: SequenceBatch) -> None:
        """Do nothing: the reward needs the hidden states of the learner's forward pass."""

    @torch.no_grad()
    def reward(self, seq: SequenceBatch, online: Unrolled, *, env_step: int) -> Tensor:
        """Compute the annealed cds.beta times the mean of r_i over agents.

        Source: lich14/CDS.

        Args:
            seq: The batch.
            online: The learner's forward pass over the batch.
            env_step: Training env steps so far, for the annealed weight.

        Returns:
            [T, B] [reward], 0 in the padding.
        """
        config = self._config
        errors = self._target.errors(self._rows(seq, online))
        error_p, error_q = (e.view(-1, self._info.n_agents) for e in errors)
        reward_RN = error_p - config.b1 * error_q + config.b2 * self._policy_divergence(seq, online)
        annealing = max(1.0 - config.anneal * (max(env_step - ANNEAL_FROM, 0) / ANNEAL_FROM), 0.0)
        reward_R = config.beta * annealing * reward_RN.mean(-1)
        return seq.unpack_real(reward_R)

    def train(self, seq: SequenceBatch, online: Unrolled, *, env_step: int, generator: torch.Generator) -> None:
        """Train both predictors on the batch: one pass at each update, or 25 passes every 16 episodes.

        Args:
            seq: The batch.
            online: The learner's forward pass over the batch.
            env_step: Training env steps so far. Not used.
            generator: Source of the order of the samples.
        """
        if self._config.predictor_schedule == "every_step":
            self._fit(seq, online, 1, generator)
        elif self._episodes - self._last_training >= PERIOD_EPISODES:
            self._last_training = self._episodes
            self._fit(seq, online, PERIOD_EPOCHS, generator)

    def on_episodes(self, episodes: int) -> None:
        """Set the number of collected episodes, for the periodic schedule."""
        self._episodes = episodes

    def copy_target(self) -> None:
        """Copy the online predictors to the target copies that the reward uses."""
        self._target.load_state_dict(self._online.state_dict())

    def get_state(self) -> StateDict:
        """Return predictors, optimizer and counters."""
        return {
            "online": self._online.state_dict(),
            "target": self._target.state_dict(),
            "optimizer": get_optimizer_state(self._optimizer),
            "episodes": self._episodes,
            "last_training": self._last_training,
        }

    def set_state(self, state: StateDict) -> None:
        """Restore what `get_state` returned."""
        self._online.load_state_dict(state["online"])
        self._target.load_state_dict(state["target"])
        on_gpu = next(self._online.parameters()).is_cuda
        set_optimizer_state(self._optimizer, state["optimizer"], capturable=on_gpu)
        self._pass = None  # a captured graph refers to the old tensors of the optimizer state
        self._episodes, self._last_training = state["episodes"], state["last_training"]

    def _rows(self, seq: SequenceBatch, online: Unrolled) -> PredictorRows:
        """Make the samples of the real transitions, one row per pair of transition and agent."""
        hidden = seq.rows.select_before(online.hidden.detach())
        # The hidden states before the states: those of the transitions to them, and 0 at the first step.
        hidden_before = torch.cat([torch.zeros_like(online.hidden[: seq.rows.n_sequences]), hidden])
        obs, before = map(seq.rows.select_before, (seq.obs, hidden_before))
        taken = obs.new_zeros(*seq.action.shape, self._info.n_actions).scatter_(-1, seq.action.unsqueeze(-1), 1.0)
        agent = torch.eye(self._info.n_agents, device=obs.device).expand(len(obs), -1, -1)
        z_id = torch.cat([before.to(obs.dtype), obs, taken, agent], -1)
        z_id, obs_next = map(seq.select_real, (z_id, seq.rows.select_after(seq.obs)))
        return PredictorRows(z_id.flatten(0, 1), obs_next.flatten(0, 1))

    def _policy_divergence(self, seq: SequenceBatch, online: Unrolled) -> Tensor:
        """Compute KL(softmax(b1 Q_i) || P_i) [nats]: [R, N], R real transitions. Logarithms prevent an underflow."""
        mixture = self._config.policy_mixture
        q_RNA = seq.select_real(seq.rows.select_before(online.q))
        policy_RNA = torch.log_softmax(self._config.b1 * q_RNA, -1)
        if mixture == "agents":
            mean = _log_mean(torch.log_softmax(q_RNA, -1), 1).unsqueeze(1)
        else:
            # [R, N, N, A]. Axis 1: agent of the hidden state. Axis 2: agent whose output head is used.
            hidden_RNH = seq.select_real(seq.rows.select_before(online.hidden))
            by_head = torch.log_softmax(self._agent.values_by_head(hidden_RNH), -1)
            mean = _log_mean(by_head, 2 if mixture == "heads" else 1)
        return (policy_RNA.exp() * (policy_RNA - mean)).sum(-1)

    def _fit(self, seq: SequenceBatch, online: Unrolled, epochs: int, generator: torch.Generator) -> None:
        rows = self._rows(seq, online)
        n_rows, device = len(rows.z_id), rows.z_id.device
        orders = (permutation(n_rows, generator=generator, device=device) for _ in range(epochs))
        if device.type == "cpu":
            chunks = (chunk for order in orders for chunk in order.split(CHUNK))
            self._online.fit(rows, chunks, self._optimizer)
            return
        device_pass = self._get_pass(rows, most_rows=seq.mask.shape[1] * self._info.episode_limit * self._info.n_agents)
        for order in orders:
            device_pass.run(rows, order)

    def _get_pass(self, rows: PredictorRows, *, most_rows: int) -> DevicePass:
        """Return the `DevicePass` for up to `most_rows` rows; make a new one if the present one is too small."""
        chunks = -(-most_rows // CHUNK)
        if self._pass is None or self._pass.chunks < chunks:
            self._pass = DevicePass(self._online, self._optimizer, rows=rows, chunks=chunks)
        return self._pass


def _log_mean(logarithms: Tensor, dim: int) -> Tensor:
    return torch.logsumexp(logarithms, dim) - math.log(logarithms.shape[dim])
