"""CDS: the intrinsic reward that makes agents differ, and the two predictors behind it.

    r_i = [b1 log q(o'_i | z_i, i) - log p(o'_i | z_i)] + b2 KL(softmax(b1 Q_i) || P_i),  z_i = [h_{t-1}; o_t; a_t]

P_i is a mean of softmax(Q): b1 sharpens the agent's own policy alone. log q and log p are minus squared prediction
errors of two predictors; rewards use their target copies. The reward enters the target as cds.beta times the mean over
agents. Source: lich14/CDS.

    p(o' | z)      from z
    q(o' | z, id)  from the same and the agent's id, which its first two layers read

Each predictor is three linear layers with ReLU between them, its gradient written by hand: a pass over a batch is
dozens of steps on a few hundred rows, where recording a graph would cost as much as the arithmetic.
"""

import copy
import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from emtc_core.config.backbones import CdsConfig
from emtc_core.devices import permutation
from emtc_core.envs.base import EnvInfo
from emtc_core.learner.backbones.base import Unrolled
from emtc_core.learner.networks import DiverseAgent, Sequence
from emtc_core.learner.parts import Team
from emtc_core.replay_buffer.buffer import StateDict

WIDTH = 128
CLIP = 1.0
ROWS_AT_ONCE = 1024
"""Rows whose errors are measured together: few enough for their activations to stay in the processor's cache."""

CHUNK = 256
PERIOD_EPISODES = 16
PERIOD_EPOCHS = 25
ANNEAL_FROM = 1_000_000


class Rows(NamedTuple):
    """R samples: one agent at one step each."""

    z_id: Tensor  # [R, Z + N] z, then the one-hot id
    obs_next: Tensor  # [R, O]


class Activations(NamedTuple):
    """One network's pass over R rows."""

    inputs: Tensor  # [R, I]
    first: Tensor  # [R, WIDTH (+ N)] after ReLU, with the id where the second layer reads it
    second: Tensor  # [R, WIDTH] after ReLU
    error: Tensor  # [R, O] prediction minus what came


class Predictors(nn.Module):
    """p(o' | z) and q(o' | z, id)."""

    def __init__(self, n_inputs: int, n_agents: int, obs_dim: int) -> None:
        super().__init__()
        self._n_inputs = n_inputs
        self.p = nn.Sequential(
            nn.Linear(n_inputs, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, obs_dim)
        )
        self.q_first = nn.Linear(n_inputs + n_agents, WIDTH)
        self.q_second = nn.Linear(WIDTH + n_agents, WIDTH)
        self.q_last = nn.Linear(WIDTH, obs_dim)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)

    @torch.no_grad()
    def errors(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Measure squared errors of p and q, summed over coordinates: [R] each, without a graph."""
        parts = zip(*(x.split(ROWS_AT_ONCE) for x in rows), strict=True)
        pairs = [[a.error.square().sum(-1) for a in self._run(Rows(*part))] for part in parts]
        error_p, error_q = (torch.cat(x) for x in zip(*pairs, strict=True))
        return error_p, error_q

    @torch.no_grad()
    def fit(self, rows: Rows, chunks: Iterator[Tensor], optimizer: torch.optim.Optimizer) -> None:
        """Descend the mean squared errors once per chunk of row indices; each network's gradient is clipped alone."""
        networks = self._networks()
        gradients = [_make_gradients(layers) for layers in networks]
        for chunk in chunks:
            passes = self._run(Rows(*(x.index_select(0, chunk) for x in rows)))
            for layers, gradient, activations in zip(networks, gradients, passes, strict=True):
                _backward(layers, activations)
                gradient.mul_((CLIP / (torch.linalg.vector_norm(gradient) + 1e-6)).clamp_(max=1.0))
            optimizer.step()

    def _networks(self) -> tuple[list[nn.Linear], list[nn.Linear]]:
        """List the layers of p and of q, first to last."""
        p = [layer for layer in self.p if isinstance(layer, nn.Linear)]
        return p, [self.q_first, self.q_second, self.q_last]

    def _run(self, rows: Rows) -> tuple[Activations, Activations]:
        p, q = self._networks()
        z, agent = rows.z_id[:, : self._n_inputs], rows.z_id[:, self._n_inputs :]
        return _forward(p, z, agent[:, :0], rows.obs_next), _forward(q, rows.z_id, agent, rows.obs_next)


def _forward(layers: list[nn.Linear], inputs: Tensor, agent: Tensor, obs_next: Tensor) -> Activations:
    first = inputs.new_empty(len(inputs), WIDTH + agent.shape[1])
    torch.addmm(layers[0].bias, inputs, layers[0].weight.t(), out=first[:, :WIDTH]).relu_()
    first[:, WIDTH:] = agent
    second = layers[1](first).relu_()
    return Activations(inputs, first, second, layers[2](second).sub_(obs_next))


def _backward(layers: list[nn.Linear], a: Activations) -> None:
    """Write the gradient of the mean squared error into the layers' `grad`."""
    grad = a.error.mul_(2.0 / len(a.error))
    _fill_layer(layers[2], grad, a.second)
    grad = _through_relu(grad @ layers[2].weight, a.second)
    _fill_layer(layers[1], grad, a.first)
    grad = _through_relu(grad @ layers[1].weight[:, :WIDTH], a.first[:, :WIDTH])
    _fill_layer(layers[0], grad, a.inputs)


def _through_relu(grad: Tensor, value: Tensor) -> Tensor:
    """Turn the gradient of ReLU's values into that of its arguments, in place."""
    return torch.ops.aten.threshold_backward.grad_input(grad, value, 0, grad_input=grad)  # type: ignore[no-any-return]


def _fill_layer(layer: nn.Linear, grad: Tensor, inputs: Tensor) -> None:
    assert layer.weight.grad is not None, "made by _make_gradients"
    assert layer.bias.grad is not None, "made by _make_gradients"
    torch.mm(grad.t(), inputs, out=layer.weight.grad)
    torch.sum(grad, 0, out=layer.bias.grad)


def _make_gradients(layers: list[nn.Linear]) -> Tensor:
    """Allocate for the layers one stretch of memory for all their gradients, so that its norm is one operation."""
    parameters = [p for layer in layers for p in layer.parameters()]
    flat = torch.empty_like(torch.nn.utils.parameters_to_vector(parameters))
    for parameter, part in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        parameter.grad = part.view_as(parameter)
    return flat


class Diversity:
    """The intrinsic reward of CDS."""

    by_episode = True

    def __init__(
        self, config: CdsConfig, info: EnvInfo, agent: DiverseAgent, *, hidden: int, device: torch.device
    ) -> None:
        self._config, self._info, self._agent = config, info, agent
        n_inputs = hidden + info.obs_dim + info.n_actions
        self._online = Predictors(n_inputs, info.n_agents, info.obs_dim).to(device)
        self._target = copy.deepcopy(self._online).requires_grad_(False)
        self._optimizer = torch.optim.Adam(self._online.parameters(), lr=config.predictor_lr, fused=True)
        self._episodes = self._last_training = 0

    def use(self, team: Team) -> None:
        """Nothing to share: minibatches follow each other."""

    def prepare(self, seq: Sequence) -> None:
        """Nothing: everything here reads the learner's own hidden states."""

    @torch.no_grad()
    def reward(self, seq: Sequence, online: Unrolled, *, env_step: int) -> Tensor:
        """Compute cds.beta times the mean intrinsic reward: [T, B], 0 where an episode is over."""
        config, real = self._config, _real_transitions(seq)
        errors = self._target.errors(self._rows(seq, online, real))
        error_p, error_q = (e.view(-1, self._info.n_agents) for e in errors)
        reward_RN = error_p - config.b1 * error_q + config.b2 * self._policy_divergence(online, real)
        reward_R = config.beta * self._anneal(env_step) * reward_RN.mean(-1)
        return torch.zeros_like(seq.mask).flatten().index_copy(0, real, reward_R).view_as(seq.mask)

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

    def _rows(self, seq: Sequence, online: Unrolled, real: Tensor) -> Rows:
        """Lay z, ids and next observations of transitions out, one row per (transition, agent)."""
        obs, action = seq.obs[:-1].flatten(0, 1)[real], seq.action.flatten(0, 1)[real]
        n_batch, n_agents = seq.mask.shape[1], self._info.n_agents
        hidden = online.hidden.detach().flatten(0, 1)
        at_start = real < n_batch
        before = hidden[(real - n_batch).clamp(min=0)].masked_fill(at_start[:, None, None], 0.0)
        taken = obs.new_zeros(*action.shape, self._info.n_actions).scatter_(-1, action.unsqueeze(-1), 1.0)
        agent = torch.eye(n_agents, device=obs.device).expand(len(obs), -1, -1)
        z_id = torch.cat([before.to(obs.dtype), obs, taken, agent], -1)
        return Rows(z_id.flatten(0, 1), seq.obs[1:].flatten(0, 1)[real].flatten(0, 1))

    def _policy_divergence(self, online: Unrolled, real: Tensor) -> Tensor:
        """Compute KL(softmax(b1 Q_i) || P_i) in logarithms, which no probability can underflow: [R, N]."""
        mixture = self._config.policy_mixture
        q_RNA = online.q[:-1].flatten(0, 1)[real]
        own_RNA = torch.log_softmax(self._config.b1 * q_RNA, -1)
        if mixture == "agents":
            mean = _log_mean(torch.log_softmax(q_RNA, -1), 1).unsqueeze(1)
        else:
            # [R, history, identity, A]: averaging over identities keeps a history, and vice versa.
            by_identity = torch.log_softmax(self._agent.swapped(online.hidden[:-1].flatten(0, 1)[real]), -1)
            mean = _log_mean(by_identity, 2 if mixture == "heads" else 1)
        return (own_RNA.exp() * (own_RNA - mean)).sum(-1)

    def _anneal(self, env_step: int) -> float:
        past = max(env_step - ANNEAL_FROM, 0) / ANNEAL_FROM
        return max(1.0 - self._config.anneal * past, 0.0)

    def _fit(self, seq: Sequence, online: Unrolled, epochs: int, generator: torch.Generator) -> None:
        rows = self._rows(seq, online, _real_transitions(seq))
        n_rows, device = len(rows.z_id), rows.z_id.device
        orders = (permutation(n_rows, generator=generator, device=device) for _ in range(epochs))
        self._online.fit(rows, (chunk for order in orders for chunk in order.split(CHUNK)), self._optimizer)


def _real_transitions(seq: Sequence) -> Tensor:
    """List the real ones among all [T B] in their order, without asking the device how many there are."""
    return torch.argsort(seq.mask.flatten(), descending=True, stable=True)[: seq.n_real]


def _log_mean(logarithms: Tensor, dim: int) -> Tensor:
    return torch.logsumexp(logarithms, dim) - math.log(logarithms.shape[dim])
