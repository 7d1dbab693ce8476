"""CDS: the intrinsic reward that makes agents differ, and the two predictors behind it.

    r_i = [b1 log q(o'_i | z_i, i) - log p(o'_i | z_i)] + b2 KL(softmax(b1 Q_i) || P_i),  z_i = [h_{t-1}; o_t; a_t]

P_i is a mean of softmax(Q): b1 sharpens the agent's own policy alone. log q and log p are minus squared prediction
errors of two predictors; rewards use their target copies. The reward enters the target as cds.beta times the mean over
agents. Source: lich14/CDS.

    p(o' | z)      from z
    q(o' | z, id)  from the same and the agent's id, which its first two layers read

Each predictor is three linear layers with ReLU between them. On the CPU the gradient of a chunk of rows is one compiled
call that holds no lock: a pass over a batch is dozens of steps on a few hundred rows, where recording a graph costs as
much as the arithmetic, and p's step and q's go on beside each other.
"""

import copy
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray
from torch import Tensor, nn

from emtc_core.config.backbones import CdsConfig
from emtc_core.devices import permutation
from emtc_core.envs.base import EnvInfo
from emtc_core.learner.backbones.base import Unrolled
from emtc_core.learner.networks import DiverseAgent, Sequence
from emtc_core.learner.parts import Team
from emtc_core.learner.recurrence import FAST, ZERO, multiply_on_one_thread
from emtc_core.repeated_step import RepeatedStep
from emtc_core.replay_buffer.buffer import StateDict

WIDTH = 128
CLIP = 1.0
ROWS_AT_ONCE = 1024
"""Rows whose errors are measured together on a CPU: few enough for their activations to stay in its cache."""

CHUNK = 256
PERIOD_EPISODES = 16
PERIOD_EPOCHS = 25
ANNEAL_FROM = 1_000_000


class Rows(NamedTuple):
    """R samples: one agent at one step each."""

    z_id: Tensor  # [R, Z + N] z, then the one-hot id
    obs_next: Tensor  # [R, O]


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

    def forward(self, z_id: Tensor) -> tuple[Tensor, Tensor]:
        """Predict the next observation [R, O] by p and by q."""
        first = torch.relu(self.q_first(z_id))
        second = torch.relu(self.q_second(torch.cat([first, z_id[:, self._n_inputs :]], -1)))
        return self.p(z_id[:, : self._n_inputs]), self.q_last(second)

    @torch.no_grad()
    def errors(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Measure squared errors of p and q, summed over coordinates: [R] each, without a graph."""
        at_once = ROWS_AT_ONCE if rows.z_id.device.type == "cpu" else max(len(rows.z_id), 1)
        parts = zip(*(x.split(at_once) for x in rows), strict=True)
        pairs = [[(hat - wanted).square().sum(-1) for hat in self(z_id)] for z_id, wanted in parts]
        error_p, error_q = (torch.cat(x) for x in zip(*pairs, strict=True))
        return error_p, error_q

    def fit(self, rows: Rows, chunks: Iterator[Tensor], optimizer: torch.optim.Optimizer, team: Team) -> None:
        """Descend the mean squared errors once per chunk of row indices; each network's gradient is clipped alone."""
        networks = self.networks()
        gradients = [make_gradient(parameters) for parameters in networks]
        is_compiled = rows.z_id.device.type == "cpu" and rows.z_id.dtype == torch.float32
        fill = self._compiled_gradients(rows, networks, team) if is_compiled else partial(self._record_gradients, rows)
        for chunk in chunks:
            fill(chunk)
            clip(gradients)
            optimizer.step()

    def networks(self) -> list[list[nn.Parameter]]:
        """List the weights of p and of q."""
        q = (self.q_first, self.q_second, self.q_last)
        return [list(self.p.parameters()), [weight for layer in q for weight in layer.parameters()]]

    def weighted_error(self, rows: Rows, weight: Tensor) -> Tensor:
        """Sum the weighted squared errors of p and of q, with a graph; weight [R]."""
        return torch.stack([(hat - rows.obs_next).square().sum(-1) @ weight for hat in self(rows.z_id)]).sum()

    def _record_gradients(self, rows: Rows, chunk: Tensor) -> None:
        """Write the gradients of both mean squared errors over a chunk of rows."""
        wanted = rows.obs_next.index_select(0, chunk)
        self.zero_grad(set_to_none=False)
        with torch.enable_grad():
            on_p, on_q = ((hat - wanted).square().sum(-1).mean() for hat in self(rows.z_id.index_select(0, chunk)))
            (on_p + on_q).backward()

    def _compiled_gradients(
        self, rows: Rows, networks: list[list[nn.Parameter]], team: Team
    ) -> Callable[[Tensor], object]:
        """Make what `_record_gradients` is, each network's gradient in one call."""
        multiply_on_one_thread()
        z_id, wanted = (x.contiguous().numpy() for x in rows)
        several = [
            [*(w.detach().numpy() for w in weights), *(w.grad.numpy() for w in weights if w.grad is not None)]
            for weights in networks
        ]
        return lambda chunk: team.run([partial(_fill_gradient, z_id, wanted, chunk.numpy(), *each) for each in several])


@torch.no_grad()
def clip(gradients: list[Tensor]) -> None:
    """Shrink each network's gradient to a norm of at most CLIP."""
    for gradient in gradients:
        gradient.mul_((CLIP / (torch.linalg.vector_norm(gradient) + 1e-6)).clamp_(max=1.0))


def make_gradient(parameters: list[nn.Parameter]) -> Tensor:
    """Allocate one stretch of memory for all gradients of a network, so that its norm is one operation."""
    flat = torch.empty_like(torch.nn.utils.parameters_to_vector(parameters))
    for parameter, part in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        parameter.grad = part.view_as(parameter)
    return flat


def count_pass_bytes(info: EnvInfo, *, hidden: int, episodes: int) -> int:
    """Count the bytes of the buffers of `DevicePass` for batches of this many episodes."""
    chunks = -(-episodes * info.episode_limit * info.n_agents // CHUNK)
    return 4 * chunks * CHUNK * (hidden + 2 * info.obs_dim + info.n_actions + info.n_agents + 1)


class DevicePass:
    """One pass over a batch's rows on a GPU: the same step for every chunk, whatever the number of rows.

    A pass puts the rows into buffers in its order, chunk after chunk. The last chunk may have fewer rows; the missing
    ones have the weight 0. A step takes the next chunk and moves the index on.
    """

    def __init__(self, predictors: Predictors, optimizer: torch.optim.Optimizer, *, rows: Rows, chunks: int) -> None:
        """Reserve memory.

        Args:
            predictors: To be trained.
            optimizer: Of their weights; its state must be able to change inside of a graph.
            rows: Of which widths and device are taken.
            chunks: Most chunks of a pass.
        """
        self.chunks = chunks
        self._predictors, self._optimizer = predictors, optimizer
        device = rows.z_id.device
        self._rows = Rows(*(x.new_zeros(chunks * CHUNK, x.shape[1]) for x in rows))
        self._weight = torch.zeros(chunks * CHUNK, device=device)
        self._next = torch.zeros(1, dtype=torch.int64, device=device)
        self._gradients = [make_gradient(parameters) for parameters in predictors.networks()]
        self._repeated = RepeatedStep(self._step, device, name="step of CDS's predictors")

    def run(self, rows: Rows, order: Tensor) -> None:
        """Train on the rows in an order."""
        n = len(order)
        for values, buffer in zip(rows, self._rows, strict=True):
            torch.index_select(values, 0, order, out=buffer[:n])
        whole = n - n % CHUNK
        self._weight[:whole] = 1.0 / CHUNK
        self._weight[n:] = 0.0
        if whole < n:
            self._weight[whole:n] = 1.0 / (n - whole)
        self._next.zero_()
        self._repeated.run(-(-n // CHUNK))

    def _step(self) -> None:
        z_id, obs_next, weight = (
            x.view(self.chunks, CHUNK, -1).index_select(0, self._next).squeeze(0) for x in (*self._rows, self._weight)
        )
        for gradient in self._gradients:
            gradient.zero_()
        with torch.enable_grad():
            self._predictors.weighted_error(Rows(z_id, obs_next), weight.squeeze(-1)).backward()
        clip(self._gradients)
        self._optimizer.step()
        self._next += 1


@njit(cache=True, nogil=True, fastmath=FAST, error_model="numpy")
def _apply_relu(values: NDArray[Any], bias: NDArray[Any]) -> None:  # pragma: no cover  # compiled
    """Turn products [R, H] into a layer's outputs, in place."""
    for i in range(len(values)):
        for j in range(len(bias)):
            values[i, j] = max(values[i, j] + bias[j], ZERO)


@njit(cache=True, nogil=True, fastmath=FAST, error_model="numpy")
def _return_through_relu(
    grad: NDArray[Any], outputs: NDArray[Any], d_bias: NDArray[Any]
) -> None:  # pragma: no cover  # compiled
    """Turn the gradient of a layer's outputs into that of its sums, in place, and add up that of its bias."""
    d_bias[:] = ZERO
    for i in range(len(grad)):
        for j in range(len(d_bias)):
            grad[i, j] = grad[i, j] if outputs[i, j] > 0 else ZERO
            d_bias[j] += grad[i, j]


@njit(cache=True, nogil=True, fastmath=FAST, error_model="numpy")
def _fill_gradient(
    z_id: NDArray[Any],
    obs_next: NDArray[Any],
    chunk: NDArray[Any],
    w_1: NDArray[Any],
    b_1: NDArray[Any],
    w_2: NDArray[Any],
    b_2: NDArray[Any],
    w_3: NDArray[Any],
    b_3: NDArray[Any],
    d_w_1: NDArray[Any],
    d_b_1: NDArray[Any],
    d_w_2: NDArray[Any],
    d_b_2: NDArray[Any],
    d_w_3: NDArray[Any],
    d_b_3: NDArray[Any],
) -> None:  # pragma: no cover  # compiled
    """Write the gradient of one predictor's mean squared error over the rows of a chunk.

    The first layer reads the first columns of `z_id`, as many as it has weights; where the second layer has more
    columns than the first has outputs, they weigh the last columns of `z_id`, which are the agent's id.
    """
    n, width, n_ids = len(chunk), len(b_1), w_2.shape[1] - len(b_1)
    inputs, ids = np.empty((n, w_1.shape[1]), np.float32), np.empty((n, n_ids), np.float32)
    for i in range(n):
        inputs[i] = z_id[chunk[i], : w_1.shape[1]]
        ids[i] = z_id[chunk[i], z_id.shape[1] - n_ids :]
    of_first, of_ids = np.ascontiguousarray(w_2[:, :width]), np.ascontiguousarray(w_2[:, width:])
    first, second = np.dot(inputs, w_1.T), np.empty((n, width), np.float32)
    _apply_relu(first, b_1)
    np.dot(first, of_first.T, second)
    if n_ids:
        second += np.dot(ids, of_ids.T)
    _apply_relu(second, b_2)
    error = np.dot(second, w_3.T)
    d_b_3[:] = ZERO
    for i in range(n):
        for j in range(len(b_3)):
            error[i, j] = (error[i, j] + b_3[j] - obs_next[chunk[i], j]) * np.float32(2.0 / n)
            d_b_3[j] += error[i, j]
    np.dot(error.T, second, d_w_3)
    grad = np.dot(error, w_3)
    _return_through_relu(grad, second, d_b_2)
    d_w_2[:, :width] = np.dot(grad.T, first)
    if n_ids:
        d_w_2[:, width:] = np.dot(grad.T, ids)
    grad = np.dot(grad, of_first)
    _return_through_relu(grad, first, d_b_1)
    np.dot(grad.T, inputs, d_w_1)


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
        on_gpu = device.type == "cuda"
        lr = config.predictor_lr
        self._optimizer = torch.optim.Adam(self._online.parameters(), lr=lr, fused=True, capturable=on_gpu)
        self._pass: DevicePass | None = None
        self._episodes = self._last_training = 0
        self._team = Team(1)

    def use(self, team: Team) -> None:
        """Let each predictor have a thread of its own."""
        self._team = team

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
        for group in self._optimizer.param_groups:  # the state may be that of another device
            group["capturable"] = next(self._online.parameters()).is_cuda
        self._pass = None  # a graph that was captured changes the tensors of the state before
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
        if device.type == "cpu":
            chunks = (chunk for order in orders for chunk in order.split(CHUNK))
            self._online.fit(rows, chunks, self._optimizer, self._team)
            return
        device_pass = self._get_pass(rows, most_rows=seq.mask.shape[1] * self._info.episode_limit * self._info.n_agents)
        for order in orders:
            device_pass.run(rows, order)

    def _get_pass(self, rows: Rows, *, most_rows: int) -> DevicePass:
        """Get buffers and step for passes over batches of this many episodes, or make them."""
        chunks = -(-most_rows // CHUNK)
        if self._pass is None or self._pass.chunks < chunks:
            self._pass = DevicePass(self._online, self._optimizer, rows=rows, chunks=chunks)
        return self._pass


def _real_transitions(seq: Sequence) -> Tensor:
    """List the real ones among all [T B] in their order, without asking the device how many there are."""
    return torch.argsort(seq.mask.flatten(), descending=True, stable=True)[: seq.n_real]


def _log_mean(logarithms: Tensor, dim: int) -> Tensor:
    return torch.logsumexp(logarithms, dim) - math.log(logarithms.shape[dim])
