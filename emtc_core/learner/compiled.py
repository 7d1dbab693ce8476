"""The agents' trunk over whole sequences in one compiled call, for an update on several cores.

`recurrence` takes a few operations for each step, each of which asks for the interpreter's lock; two threads that
do so get nothing done beside each other. Here a pass over all steps is one call that holds no lock. Its products are
those of SciPy's OpenBLAS, one thread each (`parts.Team`): loops of our own were a third as fast. Values and gradients
are those of `recurrence` to float32 rounding; its module says what the letters and the order u, r, z, n of the columns
mean.

Rows are put in the order of their ends, longest first, so that those which still run at a step are the first ones.
Sums are taken in the order of steps, so the same rows give the same bits on whatever thread.
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
def _apply_gates(
    by_h: NDArray[Any],
    by_x: NDArray[Any],
    bias: NDArray[Any],
    gates: NDArray[Any],
    before: NDArray[Any],
    after: NDArray[Any],
) -> None:  # pragma: no cover  # compiled
    """Fill one step's gates and states [M, ...] from what h feeds into u, r, z and x into r, z, n [M, 3H].

    In plain loops over views that begin at 0, which the compiler turns into vectors.
    """
    width = len(bias) // 4
    b_u, b_rz, b_n = bias[:width], bias[width : 3 * width], bias[3 * width :]
    for i in range(len(by_h)):
        gate, from_h, from_x, old, new = gates[i], by_h[i], by_x[i], before[i], after[i]
        u, rz, n = gate[:width], gate[width : 3 * width], gate[3 * width :]
        r, z, rz_h, n_x = rz[:width], rz[width:], from_h[width:], from_x[2 * width :]
        for j in range(width):
            u[j] = from_h[j] + b_u[j]
        for j in range(2 * width):
            rz[j] = rz_h[j] + from_x[j] + b_rz[j]
        for j in range(2 * width):
            rz[j] = _sigmoid(rz[j])
        for j in range(width):
            n[j] = TWO * _sigmoid(TWO * (n_x[j] + b_n[j] + r[j] * u[j])) - ONE
        for j in range(width):
            new[j] = n[j] + z[j] * (old[j] - n[j])


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
    n_rows, width = inputs.shape[1], len(b_first)
    room = np.empty((n_rows, inputs.shape[2]), np.float32)
    by_h, by_x = np.empty((n_rows, 3 * width), np.float32), np.empty((n_rows, 3 * width), np.float32)
    for t in range(len(inputs)):
        m = active[t]
        at = t if len(x) > 1 else 0
        x_t = x[at, :m]
        _take_rows(inputs[t], order, m, room)
        np.dot(room[:m], w_first, x_t)
        for i in range(m):
            for j in range(width):
                x_t[i, j] = max(x_t[i, j] + b_first[j], np.float32(0))
        np.dot(x_t, w_x, by_x[:m])
        np.dot(states[t, :m], w_hidden, by_h[:m])
        _apply_gates(by_h[:m], by_x[:m], bias, gates[at], states[t], states[t + 1])
        for i in range(m):
            hidden[t, order[i]] = states[t + 1, i]


@njit(cache=True, nogil=True, fastmath=FAST, error_model="numpy")
def _add(total: NDArray[Any], part: NDArray[Any]) -> None:  # pragma: no cover  # compiled
    """Add a matrix in place."""
    for i in range(len(part)):
        for j in range(part.shape[1]):
            total[i, j] += part[i, j]


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
    by_h, by_x = np.empty((n_rows, 3 * width), np.float32), np.empty((n_rows, 3 * width), np.float32)  # u r z; r z n
    back, carried = np.empty((n_rows, width), np.float32), np.zeros((n_rows, width), np.float32)
    through_h = np.empty((n_rows, width), np.float32)
    of_gates, of_first = np.empty_like(d_x), np.empty_like(d_first)
    for t in range(len(inputs) - 1, -1, -1):
        m = active[t]
        for i in range(m):
            u, r, z, n = (
                gates[t, i, :width],
                gates[t, i, width : 2 * width],
                gates[t, i, 2 * width : 3 * width],
                gates[t, i, 3 * width :],
            )
            to_h, to_x, before, after, along = by_h[i], by_x[i], states[t, i], grad[t, order[i]], carried[i]
            for j in range(width):
                d = after[j] + along[j]
                through = d * (ONE - z[j]) * (ONE - n[j] * n[j])
                at_r = through * u[j] * r[j] * (ONE - r[j])
                at_z = d * (before[j] - n[j]) * z[j] * (ONE - z[j])
                to_h[j], to_h[width + j], to_h[2 * width + j] = through * r[j], at_r, at_z
                to_x[j], to_x[width + j], to_x[2 * width + j] = at_r, at_z, through
                along[j] = d * z[j]
            for j in range(3 * width):
                d_bias[j] += to_h[j]
            for j in range(width):
                d_bias[3 * width + j] += to_x[2 * width + j]
        np.dot(by_h[:m], w_hidden, through_h[:m])
        _add(carried, through_h[:m])
        np.dot(by_h[:m].T, states[t, :m], of_gates)
        _add(d_hidden, of_gates)
        np.dot(by_x[:m].T, x[t, :m], of_gates)
        _add(d_x, of_gates)
        np.dot(by_x[:m], w_x, back[:m])
        for i in range(m):
            for j in range(width):
                back[i, j] = back[i, j] if x[t, i, j] > 0 else np.float32(0)
                d_b_first[j] += back[i, j]
        _take_rows(inputs[t], order, m, room)
        np.dot(back[:m].T, room[:m], of_first)
        _add(d_first, of_first)
