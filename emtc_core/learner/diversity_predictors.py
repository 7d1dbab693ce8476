"""The two predictors of CDS, and their training on the CPU and on a GPU.

    p(o' | z)      predicts the next observation from z = [h_{t-1}; o_t; a_t]
    q(o' | z, id)  predicts it from z and the one-hot agent id; the id is an input of the first two layers

Each predictor has three linear layers with ReLU between them. On the CPU, one compiled call without the interpreter
lock computes the gradient of a chunk of rows. A pass over a batch has dozens of steps on a few hundred rows, where
autograd costs as much as the arithmetic. The steps of p and q run in parallel. On a GPU, a pass repeats one step of
constant size. Source: lich14/CDS.

The measured reason for the compiled gradient: 6,000 env steps of EMTC(CDS) on 3s_vs_5z with cds.beta = 0.1 and one
thread take 4.5 s with it and 5.1 s with autograd (medians of three, side by side).
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray
from torch import Tensor, nn

from emtc_core.learner.recurrence import FASTMATH_FLAGS, ZERO, limit_blas_to_one_thread
from emtc_core.repeated_step import RepeatedStep
from emtc_core.threads import run_together

WIDTH = 128
"""Units of a hidden layer of the predictors."""
MAX_GRAD_NORM = 1.0
"""Largest gradient norm of each predictor."""
FORWARD_ROWS = 1024
"""Rows per forward pass for the errors on a CPU. Their activations fit into the cache."""
CHUNK = 256
"""Rows per gradient step."""


class PredictorRows(NamedTuple):
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
    def errors(self, rows: PredictorRows) -> tuple[Tensor, Tensor]:
        """Compute the squared errors of p and q, summed over coordinates, without gradient.

        Source: lich14/CDS, minus log p and minus log q.

        Args:
            rows: The samples.

        Returns:
            Two tensors [R], squared [observation features²]: of p and of q.
        """
        at_once = FORWARD_ROWS if rows.z_id.device.type == "cpu" else max(len(rows.z_id), 1)
        parts = zip(*(x.split(at_once) for x in rows), strict=True)
        pairs = [[(hat - obs_next).square().sum(-1) for hat in self(z_id)] for z_id, obs_next in parts]
        error_p, error_q = (torch.cat(x) for x in zip(*pairs, strict=True))
        return error_p, error_q

    def fit(self, rows: PredictorRows, chunks: Iterator[Tensor], optimizer: torch.optim.Optimizer) -> None:
        """Take one gradient step on both mean squared errors per chunk.

        Source: lich14/CDS.

        Args:
            rows: Samples.
            chunks: Row indices of each step, shape [chunk size].
            optimizer: Optimizer of both predictors. The gradient of each predictor is clipped separately.
        """
        networks = self.networks()
        gradients = [allocate_gradient(parameters) for parameters in networks]
        is_compiled = rows.z_id.device.type == "cpu" and rows.z_id.dtype == torch.float32
        compute_gradients = (
            self._make_compiled_gradients(rows, networks) if is_compiled else partial(self._compute_gradients, rows)
        )
        for chunk in chunks:
            compute_gradients(chunk)
            clip_gradients(gradients)
            optimizer.step()

    def networks(self) -> list[list[nn.Parameter]]:
        """Return the parameters of p and those of q."""
        q = (self.q_first, self.q_second, self.q_last)
        return [list(self.p.parameters()), [weight for layer in q for weight in layer.parameters()]]

    def weighted_error(self, rows: PredictorRows, weight: Tensor) -> Tensor:
        """Compute the weighted sum of the squared errors of p and q, with gradient.

        Source: lich14/CDS.

        Args:
            rows: The samples.
            weight: [R], weights, dimensionless.

        Returns:
            A scalar [observation features²].
        """
        return torch.stack([(hat - rows.obs_next).square().sum(-1) @ weight for hat in self(rows.z_id)]).sum()

    def _compute_gradients(self, rows: PredictorRows, chunk: Tensor) -> None:
        """Compute the gradients of both mean squared errors over a chunk of rows with autograd."""
        obs_next = rows.obs_next.index_select(0, chunk)
        self.zero_grad(set_to_none=False)
        with torch.enable_grad():
            loss_p, loss_q = (
                (hat - obs_next).square().sum(-1).mean() for hat in self(rows.z_id.index_select(0, chunk))
            )
            (loss_p + loss_q).backward()

    def _make_compiled_gradients(
        self, rows: PredictorRows, networks: list[list[nn.Parameter]]
    ) -> Callable[[Tensor], object]:
        """Make a function that does the same as `_compute_gradients`, with one compiled call per predictor."""
        limit_blas_to_one_thread()
        z_id, obs_next = (x.contiguous().numpy() for x in rows)
        arrays = [
            [*(w.detach().numpy() for w in weights), *(w.grad.numpy() for w in weights if w.grad is not None)]
            for weights in networks
        ]
        return lambda chunk: run_together(
            [partial(_fill_gradient, z_id, obs_next, chunk.numpy(), *network) for network in arrays]
        )


@torch.no_grad()
def clip_gradients(gradients: list[Tensor]) -> None:
    """Scale each gradient, in place, to a norm of at most MAX_GRAD_NORM.

    Source: `torch.nn.utils.clip_grad_norm_`.

    Args:
        gradients: One vector of shape [P] per predictor [unit varies].
    """
    for gradient in gradients:
        gradient.mul_((MAX_GRAD_NORM / (torch.linalg.vector_norm(gradient) + 1e-6)).clamp_(max=1.0))


def allocate_gradient(parameters: list[nn.Parameter]) -> Tensor:
    """Allocate the gradients of a network as views of one vector, so that the norm is one operation.

    Source: implementation detail.

    Args:
        parameters: The parameters, P numbers in total.

    Returns:
        [P] [unit varies], not initialized.
    """
    flat = torch.empty_like(torch.nn.utils.parameters_to_vector(parameters))
    for parameter, part in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        parameter.grad = part.view_as(parameter)
    return flat


class DevicePass:
    """One training pass over the rows of a batch on a GPU, as repetitions of one step of constant size.

    A pass copies the rows into buffers in the order of training. If the last chunk is not full, the missing rows have
    weight 0. A step trains on the next chunk and increments the index.
    """

    def __init__(
        self, predictors: Predictors, optimizer: torch.optim.Optimizer, *, rows: PredictorRows, chunks: int
    ) -> None:
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
        self._rows = PredictorRows(*(x.new_zeros(chunks * CHUNK, x.shape[1]) for x in rows))
        self._weight = torch.zeros(chunks * CHUNK, device=device)
        self._next = torch.zeros(1, dtype=torch.int64, device=device)
        self._gradients = [allocate_gradient(parameters) for parameters in predictors.networks()]
        self._repeated = RepeatedStep(self._step, device, name="step of CDS's predictors")

    def run(self, rows: PredictorRows, order: Tensor) -> None:
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
            self._predictors.weighted_error(PredictorRows(z_id, obs_next), weight.squeeze(-1)).backward()
        clip_gradients(self._gradients)
        self._optimizer.step()
        self._next += 1


@njit(cache=True, nogil=True, fastmath=FASTMATH_FLAGS, error_model="numpy")
def _apply_relu(values: NDArray[Any], bias: NDArray[Any]) -> None:  # pragma: no cover  # compiled
    """Add the bias to products [R, H] and apply ReLU, in place."""
    for i in range(len(values)):
        for j in range(len(bias)):
            values[i, j] = max(values[i, j] + bias[j], ZERO)


@njit(cache=True, nogil=True, fastmath=FASTMATH_FLAGS, error_model="numpy")
def _backward_relu(
    grad: NDArray[Any], outputs: NDArray[Any], d_bias: NDArray[Any]
) -> None:  # pragma: no cover  # compiled
    """Turn the gradient of a layer's outputs into that of its inputs to ReLU, in place, and sum that of the bias."""
    d_bias[:] = ZERO
    for i in range(len(grad)):
        for j in range(len(d_bias)):
            grad[i, j] = grad[i, j] if outputs[i, j] > 0 else ZERO
            d_bias[j] += grad[i, j]


@njit(cache=True, nogil=True, fastmath=FASTMATH_FLAGS, error_model="numpy")
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
    w_2_hidden, w_2_ids = np.ascontiguousarray(w_2[:, :width]), np.ascontiguousarray(w_2[:, width:])
    first, second = np.dot(inputs, w_1.T), np.empty((n, width), np.float32)
    _apply_relu(first, b_1)
    np.dot(first, w_2_hidden.T, second)
    if n_ids:
        second += np.dot(ids, w_2_ids.T)
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
    grad = np.dot(grad, w_2_hidden)
    _backward_relu(grad, first, d_b_1)
    np.dot(grad.T, inputs, d_w_1)
