"""The agents' recurrent layers on whole sequences: Linear, ReLU and GRU, with a hand-written gradient for the CPU.

    x    = relu(inputs W + b)
    r, z = sigmoid(x W_r + h U_r), sigmoid(x W_z + h U_z)      with biases in every term
    n    = tanh(x W_n + r * u),   u = h U_n + b                 h' = n + z (h - n)

The equations are those of nn.GRU. On the CPU, PyTorch runs a dozen small operations for each step, and each of them
needs the interpreter lock. Here one compiled call without the lock computes all steps of a part of the batch, so two
threads can compute the two parts in parallel. A single thread is faster, too: two forward passes and a backward pass on
32 episodes of 3s_vs_5z take 21 ms, with nn.GRU 140 ms. Matrix products use SciPy's OpenBLAS, which is faster than
compiled loops. On other devices, and for other types than float32, PyTorch's layers are used.

The episodes of a batch have different lengths. In a part, the rows of a step are sorted by length, longest first, so
the rows that are active at the next step are the first ones. The stored arrays have one row for each step of each
sequence of the part, in the order of the steps (step_rows.py). Everything that does not depend on the previous step is
one product over a block of steps, which fits into the cache. Sums are computed in the order of the blocks and of the
parts, so the same batch always gives the same bits, with one thread and with two.

The columns of `gates` are u, r, z, n. Products of h are added in u, r and z; products of x are added in r, z and n.
"""

from functools import cache, partial, reduce
from typing import Any

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from emtc_core.exponential import LOG2_E, power_of_two
from emtc_core.learner.step_rows import Part, StepRows
from emtc_core.threads import run_together

BLOCK_ROWS = 256
"""Rows of a block: few enough for the cache, and enough for matrix products at full speed."""
MIN_MATMUL_ROWS = 10
"""Below this number, rows are multiplied one by one, because a matrix product first repacks its right operand."""

FASTMATH_FLAGS = {"reassoc", "contract", "nsz"}
MAX_EXPONENT = np.float32(58.0)  # bound of exponents of 2: the result is finite, and the sigmoid is < 1e-17 or 1
ZERO, ONE, TWO = (np.float32(x) for x in (0.0, 1.0, 2.0))

Floats = NDArray[np.float32]


def run_linear_gru(first: nn.Linear, rnn: nn.GRU, inputs: Tensor, rows: StepRows) -> Tensor:
    """Run Linear, ReLU and a one-layer GRU from a zero hidden state.

    The parameters get gradients. On the CPU the inputs get none.

    Source: oxwhirl/pymarl, `RNNAgent`.

    Args:
        first: The first layer.
        rnn: The recurrent layer.
        inputs: [R, I], dimensionless.
        rows: Layout of the rows.

    Returns:
        [R, H], hidden states, dimensionless.
    """
    if inputs.device.type != "cpu" or inputs.dtype != torch.float32:
        return rows.pack(run_torch_layers(first, rnn, rows.unpack(inputs)))
    limit_blas_to_one_thread()
    weights = (first.weight, first.bias, *rnn.all_weights[0])
    if torch.is_grad_enabled():
        return LinearGru.apply(inputs, rows, *weights)  # type: ignore[no-any-return]  # apply is untyped
    return torch.from_numpy(_ForwardPass(inputs, rows, weights, save=False).hidden)


def run_torch_layers(first: nn.Linear, rnn: nn.GRU, inputs: Tensor) -> Tensor:
    """Run PyTorch's layers.

    Source: `torch.nn.Linear` and `torch.nn.GRU`.

    Args:
        first: The first layer.
        rnn: The recurrent layer.
        inputs: [T, M, I], dimensionless.

    Returns:
        [T, M, H], hidden states, dimensionless.
    """
    return rnn(first(inputs).relu_())[0]


@cache
def limit_blas_to_one_thread() -> None:
    """Limit SciPy's BLAS to one thread per call, because the callers already run on several threads."""
    import scipy.linalg.cython_blas  # noqa: F401  # threadpoolctl can only limit a library that is loaded
    from threadpoolctl import threadpool_limits

    threadpool_limits(1, user_api="blas")


class LinearGru(torch.autograd.Function):
    """The recurrence and its gradient with respect to the weights."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, rows: StepRows, *weights: Tensor) -> Tensor:
        """Compute the hidden states.

        Source: `run_linear_gru`.

        Args:
            ctx: Context of autograd.
            inputs: [R, I], dimensionless.
            rows: Layout of the rows.
            *weights: W and b of the first layer, then w_ih, w_hh, b_ih and b_hh of the GRU, in PyTorch's shapes,
                dimensionless.

        Returns:
            [R, H], dimensionless.
        """
        ctx.forward_pass = _ForwardPass(inputs, rows, weights, save=True)
        return torch.from_numpy(ctx.forward_pass.hidden)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]  # one output
        """Compute the gradients of the weights.

        Source: backpropagation through `forward`.

        Args:
            ctx: Context of autograd.
            grad: [R, H], gradient of the hidden states [unit varies].

        Returns:
            None for inputs and rows, then one gradient per weight, in its shape.
        """
        return None, None, *(torch.from_numpy(d) for d in ctx.forward_pass.gradients(grad.numpy()))


class _ForwardPass:
    """A forward pass over a batch, with the stored values for its gradient if `save` is true."""

    def __init__(self, inputs: Tensor, rows: StepRows, weights: tuple[Tensor, ...], *, save: bool) -> None:
        arrays = [w.detach().numpy() for w in weights]
        input_rows = np.ascontiguousarray(inputs.detach().numpy())
        self.hidden = np.empty((len(inputs), arrays[3].shape[1]), np.float32)
        self._passes = [_PartPass(part, arrays) for part in rows.parts]
        run_together([partial(part.run, input_rows, self.hidden, save=save) for part in self._passes])

    def gradients(self, grad: Floats) -> tuple[Floats, ...]:
        """Return the gradients of W, b of the first layer, w_ih, w_hh, b_ih and b_hh; grad [R, H]."""
        grad = np.ascontiguousarray(grad)
        gradients = run_together([partial(part.gradients, grad) for part in self._passes])
        return tuple(reduce(np.add, of_one_weight) for of_one_weight in zip(*gradients, strict=True))


class _PartPass:
    """The forward pass over a part of a batch, and its gradient."""

    def __init__(self, part: Part, weights: list[Floats]) -> None:
        """Prepare the pass; the weights are those of `LinearGru.forward`."""
        self._part, self._weights = part, weights

    def run(self, inputs: Floats, hidden: Floats, *, save: bool) -> None:
        """Compute the hidden states of the rows and write them to `hidden`; both [R, ...] of the whole batch."""
        w_first, b_first, w_ih, w_hh, b_ih, b_hh = self._weights
        width = w_hh.shape[1]
        part = self._part
        # Without `save`, blocks reuse the same rows.
        stored_rows = len(part.rows) if save else BLOCK_ROWS + part.n_sequences
        self._inputs, self._x, self._gates, self._states_before = (
            np.empty((stored_rows, n_columns), np.float32) for n_columns in (inputs.shape[1], width, 4 * width, width)
        )
        _run_forward(
            inputs,
            part.rows,
            part.step_offsets,
            part.n_sequences,
            np.ascontiguousarray(w_first.T),
            b_first,
            np.ascontiguousarray(w_ih.T),
            np.ascontiguousarray(_put_u_first(w_hh).T),
            np.concatenate([b_hh[2 * width :], b_ih[: 2 * width] + b_hh[: 2 * width], b_ih[2 * width :]]),
            self._inputs,
            self._x,
            self._gates,
            self._states_before,
            hidden,
            save,
        )

    def gradients(self, grad: Floats) -> tuple[Floats, ...]:
        """Return the share of the part in the gradients of all weights; grad [R, H] of the whole batch."""
        w_first, b_first, w_ih, w_hh, _, _ = self._weights
        width = w_hh.shape[1]
        d_w_first, d_b_first, d_w_x, d_w_hidden = (np.zeros_like(w) for w in (w_first, b_first, w_ih, w_hh))
        d_bias = np.zeros(4 * width, np.float32)
        _run_backward(
            grad,
            self._part.rows,
            self._part.step_offsets,
            self._part.n_sequences,
            w_ih,
            _put_u_first(w_hh),
            self._inputs,
            self._x,
            self._gates,
            self._states_before,
            d_w_first,
            d_b_first,
            d_w_x,
            d_w_hidden,
            d_bias,
        )
        d_w_hh = np.concatenate([d_w_hidden[width:], d_w_hidden[:width]])
        return d_w_first, d_b_first, d_w_x, d_w_hh, d_bias[width:], np.append(d_bias[width : 3 * width], d_bias[:width])


def _put_u_first(weights: Floats) -> Floats:
    """Reorder the recurrent weights from r, z, n (PyTorch) to u, r, z [3H, H]; u uses the weights of n."""
    width = len(weights) // 3
    return np.concatenate([weights[2 * width :], weights[: 2 * width]])


@njit(cache=True, nogil=True, fastmath=FASTMATH_FLAGS, error_model="numpy", inline="always")
def _sigmoid(x: np.float32) -> np.float32:  # pragma: no cover  # compiled
    """Compute 1 / (1 + exp(-x)) with an error of at most 3e-7; NaN if x is not finite.

    There is no branch, so that the compiler can vectorize loops.
    """
    y = min(max(-x * LOG2_E, -MAX_EXPONENT), MAX_EXPONENT)
    return ONE / (ONE + power_of_two(y)) + (x - x)


@njit(cache=True, nogil=True, fastmath=FASTMATH_FLAGS, error_model="numpy", inline="always")
def _copy_row(source: NDArray[Any], target: NDArray[Any]) -> None:  # pragma: no cover  # compiled
    """Copy a row in a loop: a slice assignment takes seconds to compile, because numba adds a check of shapes."""
    for j in range(len(target)):
        target[j] = source[j]


@njit(cache=True, nogil=True, fastmath=FASTMATH_FLAGS, error_model="numpy", inline="always")
def _add_row(source: NDArray[Any], target: NDArray[Any]) -> None:  # pragma: no cover  # compiled
    """Add a row to another in a loop, because a slice assignment is slow to compile (see `_copy_row`)."""
    for j in range(len(target)):
        target[j] += source[j]


@njit(cache=True, nogil=True, fastmath=FASTMATH_FLAGS, error_model="numpy")
def _multiply(rows: NDArray[Any], weights: NDArray[Any], out: NDArray[Any]) -> None:  # pragma: no cover  # compiled
    """Multiply rows [M, K] with weights [K, N] and write the result to `out` [M, N]."""
    if len(rows) >= MIN_MATMUL_ROWS:
        np.dot(rows, weights, out)
        return
    for i in range(len(rows)):
        np.dot(rows[i], weights, out[i])


@njit(cache=True, nogil=True, fastmath=FASTMATH_FLAGS, error_model="numpy")
def _add_product(
    left: NDArray[Any], right: NDArray[Any], total: NDArray[Any], buffer: NDArray[Any]
) -> None:  # pragma: no cover  # compiled
    """Add left^T right to `total`; `buffer` is temporary memory of the same shape."""
    np.dot(left.T, right, buffer)
    for i in range(len(total)):
        for j in range(total.shape[1]):
            total[i, j] += buffer[i, j]


@njit(cache=True, nogil=True, fastmath=FASTMATH_FLAGS, error_model="numpy")
def _apply_gates(
    h_products: NDArray[Any],
    x_products: NDArray[Any],
    bias: NDArray[Any],
    gates: NDArray[Any],
    before: NDArray[Any],
    after: NDArray[Any],
) -> None:  # pragma: no cover  # compiled
    """Compute the gates and the new states of one step.

    The loops run over views that start at 0, because the compiler vectorizes these.

    Args:
        h_products: [M, 3H] products of h for u, r, z.
        x_products: [M, 3H] products of x for r, z, n.
        bias: [4H] biases of u, r, z, n.
        gates: [M, 4H], overwritten with u, r, z, n.
        before: [M, H] states before the step.
        after: [M, H], overwritten with the states after the step.
    """
    width = len(bias) // 4
    b_u, b_rz, b_n = bias[:width], bias[width : 3 * width], bias[3 * width :]
    for i in range(len(h_products)):
        gate, from_h, from_x, old, new = gates[i], h_products[i], x_products[i], before[i], after[i]
        u, rz, n = gate[:width], gate[width : 3 * width], gate[3 * width :]
        r, z, rz_h, n_x = rz[:width], rz[width:], from_h[width:], from_x[2 * width :]
        for j in range(width):
            u[j] = from_h[j] + b_u[j]
        for j in range(2 * width):
            rz[j] = _sigmoid(rz_h[j] + from_x[j] + b_rz[j])
        for j in range(width):
            n[j] = TWO * _sigmoid(TWO * (n_x[j] + b_n[j] + r[j] * u[j])) - ONE
        for j in range(width):
            new[j] = n[j] + z[j] * (old[j] - n[j])


@njit(cache=True, nogil=True, fastmath=FASTMATH_FLAGS, error_model="numpy")
def _run_forward(
    inputs: NDArray[Any],
    row_indices: NDArray[Any],
    step_offsets: NDArray[Any],
    n_sequences: int,
    w_first: NDArray[Any],
    b_first: NDArray[Any],
    w_x: NDArray[Any],
    w_hidden: NDArray[Any],
    bias: NDArray[Any],
    saved_inputs: NDArray[Any],
    saved_x: NDArray[Any],
    saved_gates: NDArray[Any],
    saved_states_before: NDArray[Any],
    hidden: NDArray[Any],
    save: bool,
) -> None:  # pragma: no cover  # compiled
    """Compute the rows `row_indices` of `hidden` and fill the stored arrays, whose names start with `saved_`."""
    width = len(b_first)
    h_products = np.empty((n_sequences, 3 * width), np.float32)
    x_products = np.empty((BLOCK_ROWS + n_sequences, 3 * width), np.float32)
    state = np.zeros((n_sequences, width), np.float32)
    first_step, end_step = 0, 0
    while end_step < len(step_offsets) - 1:
        first_step = end_step
        while end_step < len(step_offsets) - 1 and step_offsets[end_step] - step_offsets[first_step] < BLOCK_ROWS:
            end_step += 1
        n = step_offsets[end_step] - step_offsets[first_step]
        offset = step_offsets[first_step] if save else 0
        rows, x = saved_inputs[offset : offset + n], saved_x[offset : offset + n]
        gates, before = saved_gates[offset:], saved_states_before[offset:]
        indices = row_indices[step_offsets[first_step] :]
        for i in range(n):
            _copy_row(inputs[indices[i]], rows[i])
        np.dot(rows, w_first, x)
        for i in range(n):
            for j in range(width):
                x[i, j] = max(x[i, j] + b_first[j], ZERO)
        np.dot(x, w_x, x_products[:n])
        for t in range(first_step, end_step):
            start, stop = step_offsets[t] - step_offsets[first_step], step_offsets[t + 1] - step_offsets[first_step]
            n_active = stop - start
            for i in range(n_active):
                _copy_row(state[i], before[start + i])
            _multiply(state[:n_active], w_hidden, h_products[:n_active])
            _apply_gates(
                h_products[:n_active],
                x_products[start:stop],
                bias,
                gates[start:stop],
                before[start:stop],
                state[:n_active],
            )
            for i in range(n_active):
                _copy_row(state[i], hidden[indices[start + i]])


@njit(cache=True, nogil=True, fastmath=FASTMATH_FLAGS, error_model="numpy")
def _backward_gates(
    grad: NDArray[Any],
    row_indices: NDArray[Any],
    gates: NDArray[Any],
    before: NDArray[Any],
    later_grad: NDArray[Any],
    h_products: NDArray[Any],
    x_products: NDArray[Any],
) -> None:  # pragma: no cover  # compiled
    """Compute the gradient of one step's products, and the part of the state gradient that passes through z.

    Args:
        grad: [R, H] gradient of the states of all steps.
        row_indices: [M or more] rows of this step, longest sequence first.
        gates: [M, 4H] u, r, z, n.
        before: [M, H] states before the step.
        later_grad: [M, H] gradient from later steps; overwritten with the part of the gradient that passes through z.
        h_products: [M, 3H], overwritten with the gradient of the products of h for u, r, z.
        x_products: [M, 3H], overwritten with the gradient of the products of x for r, z, n.
    """
    width = before.shape[1]
    for i in range(len(before)):
        gate, to_h, to_x, old = gates[i], h_products[i], x_products[i], before[i]
        grad_after, later_grad_row = grad[row_indices[i]], later_grad[i]
        u, r, z, n = gate[:width], gate[width : 2 * width], gate[2 * width : 3 * width], gate[3 * width :]
        h_u, h_r, h_z = to_h[:width], to_h[width : 2 * width], to_h[2 * width :]
        x_r, x_z, x_n = to_x[:width], to_x[width : 2 * width], to_x[2 * width :]
        for j in range(width):
            d_after = grad_after[j] + later_grad_row[j]
            d_n = d_after * (ONE - z[j]) * (ONE - n[j] * n[j])
            d_r = d_n * u[j] * r[j] * (ONE - r[j])
            d_z = d_after * (old[j] - n[j]) * z[j] * (ONE - z[j])
            h_u[j] = d_n * r[j]
            h_r[j] = d_r
            h_z[j] = d_z
            x_r[j] = d_r
            x_z[j] = d_z
            x_n[j] = d_n
            later_grad_row[j] = d_after * z[j]


@njit(cache=True, nogil=True, fastmath=FASTMATH_FLAGS, error_model="numpy")
def _run_backward(
    grad: NDArray[Any],
    row_indices: NDArray[Any],
    step_offsets: NDArray[Any],
    n_sequences: int,
    w_x: NDArray[Any],
    w_hidden: NDArray[Any],
    saved_inputs: NDArray[Any],
    saved_x: NDArray[Any],
    saved_gates: NDArray[Any],
    saved_states_before: NDArray[Any],
    d_w_first: NDArray[Any],
    d_b_first: NDArray[Any],
    d_w_x: NDArray[Any],
    d_w_hidden: NDArray[Any],
    d_bias: NDArray[Any],
) -> None:  # pragma: no cover  # compiled
    """Add the gradients of all weights to the d_ arrays.

    `grad` is [R, H] in the order of the batch; `w_x` is `w_ih`, `w_hidden` has the order u, r, z.
    """
    width = len(d_b_first)
    h_products = np.empty((BLOCK_ROWS + n_sequences, 3 * width), np.float32)
    x_products, d_x = np.empty_like(h_products), np.empty((BLOCK_ROWS + n_sequences, width), np.float32)
    later_grad, d_states = np.zeros((n_sequences, width), np.float32), np.empty((n_sequences, width), np.float32)
    gates_buffer, first_buffer = np.empty_like(d_w_x), np.empty_like(d_w_first)
    first_step, end_step = len(step_offsets) - 1, len(step_offsets) - 1
    while first_step > 0:
        end_step = first_step
        while first_step > 0 and step_offsets[end_step] - step_offsets[first_step] < BLOCK_ROWS:
            first_step -= 1
        first, n = step_offsets[first_step], step_offsets[end_step] - step_offsets[first_step]
        inputs, x = saved_inputs[first : first + n], saved_x[first : first + n]
        gates, before = saved_gates[first : first + n], saved_states_before[first : first + n]
        for t in range(end_step - 1, first_step - 1, -1):
            start, stop = step_offsets[t] - first, step_offsets[t + 1] - first
            n_active = stop - start
            _backward_gates(
                grad,
                row_indices[step_offsets[t] :],
                gates[start:stop],
                before[start:stop],
                later_grad,
                h_products[start:stop],
                x_products[start:stop],
            )
            _multiply(h_products[start:stop], w_hidden, d_states[:n_active])
            for i in range(n_active):
                _add_row(d_states[i], later_grad[i])
        for i in range(n):
            row_h, row_n = h_products[i], x_products[i, 2 * width :]
            for j in range(3 * width):
                d_bias[j] += row_h[j]
            for j in range(width):
                d_bias[3 * width + j] += row_n[j]
        _add_product(h_products[:n], before, d_w_hidden, gates_buffer)
        _add_product(x_products[:n], x, d_w_x, gates_buffer)
        np.dot(x_products[:n], w_x, d_x[:n])
        for i in range(n):
            for j in range(width):
                d_x[i, j] = d_x[i, j] if x[i, j] > 0 else ZERO
                d_b_first[j] += d_x[i, j]
        _add_product(d_x[:n], inputs, d_w_first, first_buffer)
