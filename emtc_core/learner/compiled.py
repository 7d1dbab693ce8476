"""The agents' trunk over whole sequences in one compiled call, for an update on several cores.

`recurrence` takes a few operations for each step, each of which asks for the interpreter's lock; two threads that
do so get nothing done beside each other. Here a pass over all steps is one call that holds no lock. Its products run
at the speed of the library's. Values and gradients are those of `recurrence` to float32 rounding; its module says what
the letters and the order u, r, z, n of the columns mean.

Rows are put in the order of their ends, longest first, so that those which still run at a step are the first ones.
Sums over rows are taken in the order of steps and rows, so the same rows give the same bits on whatever thread.
"""

import math
from typing import Any

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

FAST = {"reassoc", "contract", "nsz"}
UNROLLED = 8  # rows of the second factor that are added at once: as many as vector registers hold
ROWS = 64  # of a result, which stay in the processor's cache meanwhile
LARGEST = np.float32(58.0)  # an exponent of two beyond which a sigmoid is 0 or 1 in float32
LOG2_E = np.float32(1.4426950408889634)
HALF, ONE, TWO = np.float32(0.5), np.float32(1.0), np.float32(2.0)
C1, C2, C3, C4, C5, C6 = (np.float32(math.log(2) ** k / math.factorial(k)) for k in range(1, 7))  # 2^f, |f| <= 1/2

Floats = NDArray[np.float32]


def run_compiled(first: nn.Linear, rnn: nn.GRU, inputs: Tensor, lengths: NDArray[np.int64] | None) -> Tensor:
    """Do what `recurrence.run_trunk` does, float32 on the CPU: [T, M, I] to [T, M, H]; past an end there are zeros."""
    weights = (first.weight, first.bias, *rnn.all_weights[0])
    if torch.is_grad_enabled():
        return CompiledTrunk.apply(inputs, lengths, *weights)  # type: ignore[no-any-return]  # apply is untyped
    trunk = _Pass(inputs, lengths, [w.detach().numpy() for w in weights], keep=False)
    return torch.from_numpy(trunk.hidden)


class CompiledTrunk(torch.autograd.Function):
    """The recurrence and its gradient with respect to the weights."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, lengths: NDArray[np.int64] | None, *weights: Tensor) -> Tensor:
        """Unroll; weights are W, b of the first layer, then w_ih, w_hh, b_ih and b_hh."""
        ctx.trunk = _Pass(inputs, lengths, [w.detach().numpy() for w in weights], keep=True)
        return torch.from_numpy(ctx.trunk.hidden)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]  # one output
        """Return no gradient of the inputs, then those of the weights."""
        return None, None, *(torch.from_numpy(d) for d in ctx.trunk.gradients(grad.numpy()))


class _Pass:
    """One pass over a batch, and what its gradient needs."""

    def __init__(self, inputs: Tensor, lengths: NDArray[np.int64] | None, weights: list[Floats], *, keep: bool) -> None:
        n_steps, n_rows, _ = inputs.shape
        self._inputs = np.ascontiguousarray(inputs.detach().numpy())
        self._weights = weights
        self._order, self._active = _order_rows(lengths, n_steps, n_rows)
        w_first, b_first, w_ih, w_hh, b_ih, b_hh = weights
        width = w_hh.shape[1]
        kept = n_steps if keep else 1
        self._x = np.empty((kept, n_rows, width), np.float32)
        self._gates = np.empty((kept, n_rows, 4 * width), np.float32)
        self._states = np.zeros((n_steps + 1, n_rows, width), np.float32)
        self.hidden = np.zeros((n_steps, n_rows, width), np.float32)
        bias = np.concatenate([b_hh[2 * width :], b_ih[: 2 * width] + b_hh[: 2 * width], b_ih[2 * width :]])
        _forward(
            self._inputs,
            self._order,
            self._active,
            np.ascontiguousarray(w_first.T),
            b_first,
            np.ascontiguousarray(w_ih.T),
            np.ascontiguousarray(_hidden_first(w_hh).T),
            bias,
            self._x,
            self._gates,
            self._states,
            self.hidden,
        )

    def gradients(self, grad: Floats) -> tuple[Floats, ...]:
        """Return the gradients of W, b of the first layer, w_ih, w_hh, b_ih and b_hh; grad [T, M, H]."""
        w_first, b_first, w_ih, w_hh, _, _ = self._weights
        width = w_hh.shape[1]
        d_first, d_b_first, d_x, d_hidden = (np.zeros_like(w) for w in (w_first, b_first, w_ih, w_hh))
        d_bias = np.zeros(4 * width, np.float32)
        _backward(
            np.ascontiguousarray(grad),
            self._inputs,
            self._order,
            self._active,
            w_ih,
            _hidden_first(w_hh),
            self._x,
            self._gates,
            self._states,
            d_first,
            d_b_first,
            d_x,
            d_hidden,
            d_bias,
        )
        d_w_hh = np.concatenate([d_hidden[width:], d_hidden[:width]])
        return d_first, d_b_first, d_x, d_w_hh, d_bias[width:], np.append(d_bias[width : 3 * width], d_bias[:width])


def _order_rows(
    lengths: NDArray[np.int64] | None, n_steps: int, n_rows: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Order rows by their ends, longest first [M]; count those that run at each step [T]."""
    if lengths is None:
        return np.arange(n_rows), np.full(n_steps, n_rows)
    ascending = np.sort(lengths)
    return np.argsort(-lengths, kind="stable"), n_rows - np.searchsorted(ascending, np.arange(n_steps), "right")


def _hidden_first(weights: Floats) -> Floats:
    """Turn the library's order r, z, n of what h feeds into the order u, r, z."""
    width = len(weights) // 3
    return np.concatenate([weights[2 * width :], weights[: 2 * width]])


@njit(cache=True, nogil=True, fastmath=FAST, error_model="numpy")
def _add_product(y: NDArray[Any], x: NDArray[Any], w: NDArray[Any], at: int = 0) -> None:  # pragma: no cover
    """Add x [M, K] times w [K, N] to the N columns of y from `at` on; y and w lie row by row, x anyhow."""
    inner, columns = w.shape
    whole = inner - inner % UNROLLED
    for top in range(0, len(y), ROWS):
        bottom = min(top + ROWS, len(y))
        for k in range(0, whole, UNROLLED):
            for i in range(top, bottom):
                x0, x1, x2, x3 = x[i, k], x[i, k + 1], x[i, k + 2], x[i, k + 3]
                x4, x5, x6, x7 = x[i, k + 4], x[i, k + 5], x[i, k + 6], x[i, k + 7]
                row = y[i, at : at + columns]
                for j in range(columns):
                    low = x0 * w[k, j] + x1 * w[k + 1, j] + x2 * w[k + 2, j] + x3 * w[k + 3, j]
                    high = x4 * w[k + 4, j] + x5 * w[k + 5, j] + x6 * w[k + 6, j] + x7 * w[k + 7, j]
                    row[j] += low + high
        for k in range(whole, inner):
            for i in range(top, bottom):
                row, x0 = y[i, at : at + columns], x[i, k]
                for j in range(columns):
                    row[j] += x0 * w[k, j]


@njit(cache=True, nogil=True, fastmath=FAST, error_model="numpy", inline="always")
def _sigmoid(x: np.float32) -> np.float32:  # pragma: no cover  # compiled
    """1 / (1 + exp(-x)) to 3e-7, without a branch, so that loops are vectorised; NaN of what is not finite."""
    y = min(max(-x * LOG2_E, -LARGEST), LARGEST)
    whole = np.floor(y + HALF)
    f = y - whole
    p = C6 * f + C5
    p = p * f + C4
    p = p * f + C3
    p = p * f + C2
    p = p * f + C1
    p = p * f + ONE
    return ONE / (ONE + p * np.int32((np.int32(whole) + np.int32(127)) << np.int32(23)).view(np.float32)) + (x - x)


@njit(cache=True, nogil=True, fastmath=FAST, error_model="numpy")
def _take_rows(rows: NDArray[Any], order: NDArray[Any], m: int, room: NDArray[Any]) -> None:  # pragma: no cover
    """Copy the first m rows in their order into `room`."""
    for i in range(m):
        room[i] = rows[order[i]]


@njit(cache=True, nogil=True, fastmath=FAST, error_model="numpy")
def _forward(
    inputs: NDArray[Any],
    order: NDArray[Any],
    active: NDArray[Any],
    w_first: NDArray[Any],
    b_first: NDArray[Any],
    w_x: NDArray[Any],
    w_hidden: NDArray[Any],
    bias: NDArray[Any],
    x: NDArray[Any],
    gates: NDArray[Any],
    states: NDArray[Any],
    hidden: NDArray[Any],
) -> None:  # pragma: no cover  # compiled
    """Fill x, gates and states by place, hidden [T, M, H] by row; x and gates with room for one step keep none."""
    width = len(b_first)
    room = np.empty((inputs.shape[1], inputs.shape[2]), np.float32)
    for t in range(len(inputs)):
        m = active[t]
        at = t if len(x) > 1 else 0
        x_t, gates_t = x[at, :m], gates[at, :m]
        _take_rows(inputs[t], order, m, room)
        for i in range(m):
            x_t[i], gates_t[i] = b_first, bias
        _add_product(x_t, room[:m], w_first)
        for i in range(m):
            for j in range(width):
                x_t[i, j] = max(x_t[i, j], np.float32(0))
        _add_product(gates_t, x_t, w_x, width)
        _add_product(gates_t, states[t, :m], w_hidden)
        for i in range(m):
            u, rz, n = gates_t[i, :width], gates_t[i, width : 3 * width], gates_t[i, 3 * width :]
            for j in range(2 * width):
                rz[j] = _sigmoid(rz[j])
            for j in range(width):
                n[j] = TWO * _sigmoid(TWO * (n[j] + rz[j] * u[j])) - ONE
            before, after = states[t, i], states[t + 1, i]
            for j in range(width):
                after[j] = n[j] + rz[width + j] * (before[j] - n[j])
            hidden[t, order[i]] = after


@njit(cache=True, nogil=True, fastmath=FAST, error_model="numpy")
def _backward(
    grad: NDArray[Any],
    inputs: NDArray[Any],
    order: NDArray[Any],
    active: NDArray[Any],
    w_x: NDArray[Any],
    w_hidden: NDArray[Any],
    x: NDArray[Any],
    gates: NDArray[Any],
    states: NDArray[Any],
    d_first: NDArray[Any],
    d_b_first: NDArray[Any],
    d_x: NDArray[Any],
    d_hidden: NDArray[Any],
    d_bias: NDArray[Any],
) -> None:  # pragma: no cover  # compiled
    """Add every weight's gradient up; grad [T, M, H] by row, weights as `w_ih` and as what feeds u, r, z."""
    n_rows, width = inputs.shape[1], len(d_b_first)
    room = np.empty((n_rows, inputs.shape[2]), np.float32)
    side = np.empty((n_rows, 4 * width), np.float32)
    back = np.empty((n_rows, width), np.float32)
    carried = np.zeros((n_rows, width), np.float32)
    for t in range(len(inputs) - 1, -1, -1):
        m = active[t]
        for i in range(m):
            u, r, z, n = (
                gates[t, i, :width],
                gates[t, i, width : 2 * width],
                gates[t, i, 2 * width : 3 * width],
                gates[t, i, 3 * width :],
            )
            at_u, at_r, at_z, at_n = (
                side[i, :width],
                side[i, width : 2 * width],
                side[i, 2 * width : 3 * width],
                side[i, 3 * width :],
            )
            before, after, along = states[t, i], grad[t, order[i]], carried[i]
            for j in range(width):
                d = after[j] + along[j]
                through = d * (ONE - z[j]) * (ONE - n[j] * n[j])
                at_n[j] = through
                at_u[j] = through * r[j]
                at_r[j] = through * u[j] * r[j] * (ONE - r[j])
                at_z[j] = d * (before[j] - n[j]) * z[j] * (ONE - z[j])
                along[j] = d * z[j]
        from_h, from_x = side[:m, : 3 * width], side[:m, width:]
        _add_product(carried[:m], from_h, w_hidden)
        _add_product(d_hidden, from_h.T, states[t, :m])
        _add_product(d_x, from_x.T, x[t, :m])
        back[:m] = np.float32(0)
        _add_product(back[:m], from_x, w_x)
        for i in range(m):
            for j in range(width):
                back[i, j] = back[i, j] if x[t, i, j] > 0 else np.float32(0)
                d_b_first[j] += back[i, j]
            for j in range(4 * width):
                d_bias[j] += side[i, j]
        _take_rows(inputs[t], order, m, room)
        _add_product(d_first, back[:m].T, room[:m])
