"""CDS: an intrinsic reward for diverse behavior of the agents, and the two predictors that it is computed from.

    r_i = [b1 log q(o'_i | z_i, i) - log p(o'_i | z_i)] + b2 KL(softmax(b1 Q_i) || P_i),  z_i = [h_{t-1}; o_t; a_t]

P_i is a mean of softmax(Q), without the factor b1. log q and log p are the negative squared errors of two predictors of
the next observation. The reward uses their target copies. The TD target contains cds.beta times the mean of r_i over
agents. Source: lich14/CDS.

    p(o' | z)      input z
    q(o' | z, id)  input z and the one-hot agent id; the id is an input of the first two layers

Each predictor has three linear layers with ReLU between them. On the CPU, one compiled call without the interpreter
lock computes the gradient of a chunk of rows. A pass over a batch has dozens of steps on a few hundred rows, where
autograd costs as much as the arithmetic. The steps of p and q run in parallel.
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
from emtc_core.learner.parts import WorkerPool
from emtc_core.learner.recurrence import FAST, ZERO, multiply_on_one_thread
from emtc_core.repeated_step import RepeatedStep
from emtc_core.replay_buffer.buffer import StateDict

WIDTH = 128
"""Units of a hidden layer of the predictors."""
CLIP = 1.0
"""Largest gradient norm of each predictor."""
ROWS_AT_ONCE = 1024
"""Rows per forward pass for the errors on a CPU. Their activations fit into the cache."""
CHUNK = 256
"""Rows per gradient step."""
PERIOD_EPISODES = 16
PERIOD_EPOCHS = 25
"""The periodic schedule trains for `PERIOD_EPOCHS` passes every `PERIOD_EPISODES` episodes."""
ANNEAL_FROM = 1_000_000
"""Env steps after which the weight of the reward decreases."""


class Rows(NamedTuple):
    """R samples, one per pair of transition and agent.

    Source: lich14/CDS.
    """

    z_id: Tensor  # [R, Z + N] z and the one-hot agent id, dimensionless
    obs_next: Tensor  # [R, O] next observation of the agent [observation features]


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
        """Predict the next observation by p and by q.

        Source: lich14/CDS.

        Args:
            z_id: [R, Z + N], z and the one-hot agent id, dimensionless.

        Returns:
            Two tensors [R, O] [observation features]: of p and of q.
        """
        first = torch.relu(self.q_first(z_id))
        second = torch.relu(self.q_second(torch.cat([first, z_id[:, self._n_inputs :]], -1)))
        return self.p(z_id[:, : self._n_inputs]), self.q_last(second)

    @torch.no_grad()
    def errors(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Compute the squared errors of p and q, summed over coordinates, without gradient.

        Source: lich14/CDS, minus log p and minus log q.

        Args:
            rows: The samples.

        Returns:
            Two tensors [R], squared [observation features²]: of p and of q.
        """
        at_once = ROWS_AT_ONCE if rows.z_id.device.type == "cpu" else max(len(rows.z_id), 1)
        parts = zip(*(x.split(at_once) for x in rows), strict=True)
        pairs = [[(hat - obs_next).square().sum(-1) for hat in self(z_id)] for z_id, obs_next in parts]
        error_p, error_q = (torch.cat(x) for x in zip(*pairs, strict=True))
        return error_p, error_q

    def fit(self, rows: Rows, chunks: Iterator[Tensor], optimizer: torch.optim.Optimizer, workers: WorkerPool) -> None:
        """Take one gradient step on both mean squared errors per chunk.

        Source: lich14/CDS.

        Args:
            rows: Samples.
            chunks: Row indices of each step, shape [chunk size].
            optimizer: Optimizer of both predictors. The gradient of each predictor is clipped separately.
            workers: Threads; the two predictors run in parallel.
        """
        networks = self.networks()
        gradients = [make_gradient(parameters) for parameters in networks]
        is_compiled = rows.z_id.device.type == "cpu" and rows.z_id.dtype == torch.float32
        compute_gradients = (
            self._make_compiled_gradients(rows, networks, workers)
            if is_compiled
            else partial(self._compute_gradients, rows)
        )
        for chunk in chunks:
            compute_gradients(chunk)
            clip(gradients)
            optimizer.step()

    def networks(self) -> list[list[nn.Parameter]]:
        """Return the parameters of p and those of q."""
        q = (self.q_first, self.q_second, self.q_last)
        return [list(self.p.parameters()), [weight for layer in q for weight in layer.parameters()]]

    def weighted_error(self, rows: Rows, weight: Tensor) -> Tensor:
        """Compute the weighted sum of the squared errors of p and q, with gradient.

        Source: lich14/CDS.

        Args:
            rows: The samples.
            weight: [R], weights, dimensionless.

        Returns:
            A scalar [observation features²].
        """
        return torch.stack([(hat - rows.obs_next).square().sum(-1) @ weight for hat in self(rows.z_id)]).sum()

    def _compute_gradients(self, rows: Rows, chunk: Tensor) -> None:
        """Compute the gradients of both mean squared errors over a chunk of rows with autograd."""
        obs_next = rows.obs_next.index_select(0, chunk)
        self.zero_grad(set_to_none=False)
        with torch.enable_grad():
            loss_p, loss_q = (
                (hat - obs_next).square().sum(-1).mean() for hat in self(rows.z_id.index_select(0, chunk))
            )
            (loss_p + loss_q).backward()

    def _make_compiled_gradients(
        self, rows: Rows, networks: list[list[nn.Parameter]], workers: WorkerPool
    ) -> Callable[[Tensor], object]:
        """Make a function that does the same as `_compute_gradients`, with one compiled call per predictor."""
        multiply_on_one_thread()
        z_id, obs_next = (x.contiguous().numpy() for x in rows)
        arrays = [
            [*(w.detach().numpy() for w in weights), *(w.grad.numpy() for w in weights if w.grad is not None)]
            for weights in networks
        ]
        return lambda chunk: workers.run(
            [partial(_fill_gradient, z_id, obs_next, chunk.numpy(), *network) for network in arrays]
        )


@torch.no_grad()
def clip(gradients: list[Tensor]) -> None:
    """Scale each gradient, in place, to a norm of at most CLIP.

    Source: `torch.nn.utils.clip_grad_norm_`.

    Args:
        gradients: One vector of shape [P] per predictor [unit varies].
    """
    for gradient in gradients:
        gradient.mul_((CLIP / (torch.linalg.vector_norm(gradient) + 1e-6)).clamp_(max=1.0))


def make_gradient(parameters: list[nn.Parameter]) -> Tensor:
    """Allocate the gradients of a network as views of one vector, so that the norm is one operation.

    Source: bookkeeping.

    Args:
        parameters: The parameters, P numbers in total.

    Returns:
        [P] [unit varies], not initialized.
    """
    flat = torch.empty_like(torch.nn.utils.parameters_to_vector(parameters))
    for parameter, part in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        parameter.grad = part.view_as(parameter)
    return flat


def count_pass_bytes(info: EnvInfo, *, hidden: int, episodes: int) -> int:
    """Compute the size of the buffers of `DevicePass` [bytes].

    Args:
        info: Sizes of the environment.
        hidden: Width of the agents' hidden state.
        episodes: Number of episodes in a batch.
    """
    chunks = -(-episodes * info.episode_limit * info.n_agents // CHUNK)
    return 4 * chunks * CHUNK * (hidden + 2 * info.obs_dim + info.n_actions + info.n_agents + 1)


class DevicePass:
    """One training pass over the rows of a batch on a GPU, as repetitions of one step of constant size.

    A pass copies the rows into buffers in the order of training. If the last chunk is not full, the missing rows have
    weight 0. A step trains on the next chunk and increments the index.
    """

    def __init__(self, predictors: Predictors, optimizer: torch.optim.Optimizer, *, rows: Rows, chunks: int) -> None:
        """Allocate the buffers.

        Args:
            predictors: Networks to train.
            optimizer: Their optimizer, which must be capturable in a CUDA graph.
            rows: Samples with the widths and the device of the buffers.
            chunks: Largest number of chunks in a pass.
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
        """Train once on rows in a given order.

        Source: lich14/CDS.

        Args:
            rows: The samples.
            order: [R], row indices.
        """
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
    """Add the bias to products [R, H] and apply ReLU, in place."""
    for i in range(len(values)):
        for j in range(len(bias)):
            values[i, j] = max(values[i, j] + bias[j], ZERO)


@njit(cache=True, nogil=True, fastmath=FAST, error_model="numpy")
def _backward_relu(
    grad: NDArray[Any], outputs: NDArray[Any], d_bias: NDArray[Any]
) -> None:  # pragma: no cover  # compiled
    """Turn the gradient of a layer's outputs into that of its inputs to ReLU, in place, and sum that of the bias."""
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
    """Compute the gradient of a predictor's mean squared error over a chunk of rows and write it to the d_ arrays.

    The first layer reads the first `w_1.shape[1]` columns of `z_id`. If the second layer has more inputs than the first
    has outputs, the additional inputs are the last columns of `z_id`, the one-hot agent id.
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
    _backward_relu(grad, second, d_b_2)
    d_w_2[:, :width] = np.dot(grad.T, first)
    if n_ids:
        d_w_2[:, width:] = np.dot(grad.T, ids)
    grad = np.dot(grad, of_first)
    _backward_relu(grad, first, d_b_1)
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
        self._workers = WorkerPool(1)

    def set_worker_pool(self, workers: WorkerPool) -> None:
        """Run each predictor on a separate thread of the pool."""
        self._workers = workers

    def prepare(self, seq: Sequence) -> None:
        """Do nothing: the reward needs the hidden states of the learner's forward pass."""

    @torch.no_grad()
    def reward(self, seq: Sequence, online: Unrolled, *, env_step: int) -> Tensor:
        """Compute the annealed cds.beta times the mean of r_i over agents.

        Source: lich14/CDS.

        Args:
            seq: The batch.
            online: The learner's forward pass over the batch.
            env_step: Training env steps so far, for the annealed weight.

        Returns:
            [T, B] [reward], 0 in the padding.
        """
        config, real = self._config, _real_transitions(seq)
        errors = self._target.errors(self._rows(seq, online, real))
        error_p, error_q = (e.view(-1, self._info.n_agents) for e in errors)
        reward_RN = error_p - config.b1 * error_q + config.b2 * self._policy_divergence(online, real)
        annealing = max(1.0 - config.anneal * (max(env_step - ANNEAL_FROM, 0) / ANNEAL_FROM), 0.0)
        reward_R = config.beta * annealing * reward_RN.mean(-1)
        return torch.zeros_like(seq.mask).flatten().index_copy(0, real, reward_R).view_as(seq.mask)

    def train(self, seq: Sequence, online: Unrolled, *, env_step: int, generator: torch.Generator) -> None:
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
            "optimizer": self._optimizer.state_dict(),
            "episodes": self._episodes,
            "last_training": self._last_training,
        }

    def set_state(self, state: StateDict) -> None:
        """Restore what `get_state` returned."""
        self._online.load_state_dict(state["online"])
        self._target.load_state_dict(state["target"])
        self._optimizer.load_state_dict(state["optimizer"])
        for group in self._optimizer.param_groups:  # the state may have been saved on another device
            group["capturable"] = next(self._online.parameters()).is_cuda
        self._pass = None  # a captured graph refers to the old tensors of the optimizer state
        self._episodes, self._last_training = state["episodes"], state["last_training"]

    def _rows(self, seq: Sequence, online: Unrolled, real: Tensor) -> Rows:
        """Make the samples of the transitions `real` [R / N], one row per pair of transition and agent."""
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
        """Compute KL(softmax(b1 Q_i) || P_i) [nats]: [R, N]. All terms are logarithms, so nothing underflows."""
        mixture = self._config.policy_mixture
        q_RNA = online.q[:-1].flatten(0, 1)[real]
        policy_RNA = torch.log_softmax(self._config.b1 * q_RNA, -1)
        if mixture == "agents":
            mean = _log_mean(torch.log_softmax(q_RNA, -1), 1).unsqueeze(1)
        else:
            # [R, history, identity, A]; "heads" averages over identities, the other mixture over histories.
            by_identity = torch.log_softmax(self._agent.values_by_head(online.hidden[:-1].flatten(0, 1)[real]), -1)
            mean = _log_mean(by_identity, 2 if mixture == "heads" else 1)
        return (policy_RNA.exp() * (policy_RNA - mean)).sum(-1)

    def _fit(self, seq: Sequence, online: Unrolled, epochs: int, generator: torch.Generator) -> None:
        rows = self._rows(seq, online, _real_transitions(seq))
        n_rows, device = len(rows.z_id), rows.z_id.device
        orders = (permutation(n_rows, generator=generator, device=device) for _ in range(epochs))
        if device.type == "cpu":
            chunks = (chunk for order in orders for chunk in order.split(CHUNK))
            self._online.fit(rows, chunks, self._optimizer, self._workers)
            return
        device_pass = self._get_pass(rows, most_rows=seq.mask.shape[1] * self._info.episode_limit * self._info.n_agents)
        for order in orders:
            device_pass.run(rows, order)

    def _get_pass(self, rows: Rows, *, most_rows: int) -> DevicePass:
        """Return the `DevicePass` for up to `most_rows` rows; make a new one if the present one is too small."""
        chunks = -(-most_rows // CHUNK)
        if self._pass is None or self._pass.chunks < chunks:
            self._pass = DevicePass(self._online, self._optimizer, rows=rows, chunks=chunks)
        return self._pass


def _real_transitions(seq: Sequence) -> Tensor:
    """Return the flat indices of the real transitions in [T, B], in order.

    The count comes from the batch, so the host does not wait for the device.
    """
    return torch.argsort(seq.mask.flatten(), descending=True, stable=True)[: seq.n_real]


def _log_mean(logarithms: Tensor, dim: int) -> Tensor:
    return torch.logsumexp(logarithms, dim) - math.log(logarithms.shape[dim])
