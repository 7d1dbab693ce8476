"""The agents' trunk over whole sequences for the CPU: Linear, ReLU and nn.GRU's equations, with a gradient by hand.

PyTorch's own CPU path records a dozen small operations per step; here a step is five forward and four backward, and
whatever does not depend on the step before is one operation over a chunk of steps, whose arrays stay in the processor's
cache from the input to the hidden state and back. An update of football size takes 75 ms on one core so, and 105 by
nn.GRU. On CUDA the library's layers are used; what they return under autocast is turned back into the inputs' type, as
hidden states are read where there is no autocast, too.

    x    = relu(inputs W + b)
    r, z = sigmoid(x W_r + h U_r), sigmoid(x W_z + h U_z)      with biases in every term
    n    = tanh(x W_n + r * u),   u = h U_n + b                 h' = n + z (h - n)

Columns of `gates` and of its gradient `side` stand in the order u, r, z, n: the first three are fed by h, the last
three by x, so that each side is one matrix product.

Episodes of a batch end at different steps. Rows are put in the order of their ends, longest first, so that those
which still run at a step are the first ones, and a chunk computes no others.

Several networks that read the same inputs go through the steps together: G of them have weights [G, ...] and hidden
states [T, G, M, H]; the fewer and larger operations leave the interpreter free for what runs beside them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

CHUNK_STEPS = 8
"""Steps handled together: few enough for their arrays to stay in the processor's cache."""

_Derivative = Callable[..., Tensor]  # (gradient, value or input, ..., grad_input=where to write)
_through_sigmoid: _Derivative = torch.ops.aten.sigmoid_backward.grad_input
_through_tanh: _Derivative = torch.ops.aten.tanh_backward.grad_input
_through_threshold: _Derivative = torch.ops.aten.threshold_backward.grad_input


def through_relu(grad: Tensor, value: Tensor) -> Tensor:
    """Turn the gradient of ReLU's values into that of its arguments, in place."""
    return _through_threshold(grad, value, 0, grad_input=grad)


@dataclass(frozen=True)
class Packing:
    """Which rows a chunk computes: the first `active` ones in `order`."""

    active: tuple[int, ...]  # one for each chunk, up to the last in which a row still runs
    order: Tensor | None = None  # [M] row at each place, longest first; None leaves them as they are
    inverse: Tensor | None = None  # [M] place of each row


def run_trunk(first: nn.Linear, rnn: nn.GRU, inputs: Tensor, lengths: NDArray[np.int64] | None = None) -> Tensor:
    """Run Linear, ReLU and a one-layer GRU from a zero hidden state: [T, M, I] to [T, M, H].

    Weights get gradients; inputs are data and get none on the CPU.

    Args:
        first: The first layer.
        rnn: The recurrent layer.
        inputs: Padded sequences.
        lengths: [M] steps of each row; what is returned of later steps has no meaning. None: all of them.
    """
    if inputs.is_cuda:
        return rnn(first(inputs).relu_())[0].to(inputs.dtype)
    return _run(inputs, lengths, *_weights(first, rnn))


def run_trunks(
    trunks: Sequence[tuple[nn.Linear, nn.GRU]], inputs: Tensor, lengths: NDArray[np.int64] | None = None
) -> tuple[Tensor, ...]:
    """Run several trunks of one shape over the same inputs: what `run_trunk` gives for each of them."""
    if inputs.is_cuda:
        return tuple(run_trunk(first, rnn, inputs, lengths) for first, rnn in trunks)
    stacked = (torch.stack(weights) for weights in zip(*(_weights(*trunk) for trunk in trunks), strict=True))
    return _run(inputs, lengths, *stacked).unbind(1)


def _weights(first: nn.Linear, rnn: nn.GRU) -> tuple[Tensor, ...]:
    return (first.weight, first.bias, *rnn.all_weights[0])


def _run(inputs: Tensor, lengths: NDArray[np.int64] | None, *weights: Tensor) -> Tensor:
    packing = pack(lengths if inputs.device.type == "cpu" else None, *inputs.shape[:2])
    if torch.is_grad_enabled():
        return TrunkSequence.apply(inputs, packing, *weights)  # type: ignore[no-any-return]  # apply is untyped
    hidden = _unroll(_select(inputs, packing.order), packing, *weights, keep=False)[2]
    return _select(hidden[1:], packing.inverse)


def pack(lengths: NDArray[np.int64] | None, n_steps: int, n_rows: int) -> Packing:
    """Order rows by their lengths, if some are shorter than the batch."""
    starts = [part.start for part in _chunks(n_steps)]
    if lengths is None or (lengths > starts[-1]).all():
        return Packing(active=(n_rows,) * len(starts))
    order = np.argsort(-lengths, kind="stable")
    active = tuple(m for start in starts if (m := int((lengths > start).sum())))
    return Packing(active, torch.from_numpy(order), torch.from_numpy(np.argsort(order)))


class TrunkSequence(torch.autograd.Function):
    """The recurrence and its gradient with respect to the weights."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, packing: Packing, *weights: Tensor) -> Tensor:
        """Unroll; weights are W, b of the first layer, then w_ih, w_hh, b_ih and b_hh."""
        inputs = _select(inputs, packing.order)
        x, gates, hidden = _unroll(inputs, packing, *weights, keep=True)
        w_first, _, w_ih, w_hh, _, _ = weights
        ctx.save_for_backward(inputs, hidden, w_first, w_ih, w_hh, *x, *gates)
        ctx.packing = packing
        return _select(hidden[1:], packing.inverse)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]  # one output
        """Return no gradient of the inputs, then those of the weights."""
        inputs, hidden, w_first, w_ih, w_hh, *kept = ctx.saved_tensors
        active = ctx.packing.active
        grad = _select(grad, ctx.packing.order)
        w_hidden = _hidden_first(w_hh, -2)
        sums = WeightSums(w_first, w_ih, w_hidden)
        carried = torch.zeros_like(hidden[0])
        chunks = list(zip(_chunks(len(inputs)), active, kept[: len(active)], kept[len(active) :], strict=False))
        for part, m, x, gates in reversed(chunks):
            before = hidden[part][..., :m, :]
            side = _step_backward(grad[part][..., :m, :], carried[..., :m, :], _by_step(gates, m), before, w_hidden)
            sums.add(_by_row(side), inputs[part, :m].flatten(0, 1), x, _by_row(before))
        return None, None, *sums.gradients()


def _select(sequences: Tensor, rows: Tensor | None) -> Tensor:
    return sequences if rows is None else sequences.index_select(-2, rows)


def _by_step(rows: Tensor, m: int) -> Tensor:
    """View [..., K m, X] as [K, ..., m, X]."""
    return rows.unflatten(-2, (-1, m)).movedim(-3, 0)


def _by_row(steps: Tensor) -> Tensor:
    """Lay [K, ..., m, X] out as [..., K m, X]."""
    return steps.movedim(0, -3).flatten(-3, -2)


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add a matrix product, or one for each of G networks, in place."""
    if right.dim() == 2:
        total.addmm_(left, right)
    else:
        total.baddbmm_(left, right)


class WeightSums:
    """Gradients of all weights, added up over chunks of steps."""

    def __init__(self, w_first: Tensor, w_ih: Tensor, w_hidden: Tensor) -> None:
        self._w_ih, self._width = w_ih, w_hidden.shape[-1]
        self._first, self._x, self._hidden = (torch.zeros_like(w) for w in (w_first, w_ih, w_hidden))
        self._b_first, self._bias = (w_ih.new_zeros(*w_ih.shape[:-2], n * self._width) for n in (1, 4))

    def add(self, side: Tensor, inputs: Tensor, x: Tensor, hidden: Tensor) -> None:
        """Add R rows: side [..., R, 4H], inputs [R, I], x [..., R, H] and the hidden states before [..., R, H]."""
        from_h, from_x = side[..., : 3 * self._width], side[..., self._width :]
        _add_product(self._hidden, from_h.mT, hidden)
        _add_product(self._x, from_x.mT, x)
        self._bias += side.sum(-2)
        grad_x = through_relu(from_x @ self._w_ih, x)
        _add_product(self._first, grad_x.mT, inputs.expand(*grad_x.shape[:-2], -1, -1))
        self._b_first += grad_x.sum(-2)

    def gradients(self) -> tuple[Tensor, ...]:
        """Return the gradients of W, b of the first layer, w_ih, w_hh, b_ih and b_hh."""
        width, bias = self._width, self._bias
        w_hh = torch.cat([self._hidden[..., width:, :], self._hidden[..., :width, :]], -2)
        b_hh = torch.cat([bias[..., width : 3 * width], bias[..., :width]], -1)
        return self._first, self._b_first, self._x, w_hh, bias[..., width:], b_hh


def _apply_layer(bias: Tensor, rows: Tensor, weight: Tensor, *, out: Tensor) -> Tensor:
    """Apply a linear layer to rows [R, I], or G layers to the same rows."""
    if weight.dim() == 2:
        return torch.addmm(bias, rows, weight.mT, out=out)
    return torch.baddbmm(bias.unsqueeze(-2), rows.expand(len(weight), -1, -1), weight.mT, out=out)


def _chunks(n_steps: int) -> list[slice]:
    return [slice(t, min(t + CHUNK_STEPS, n_steps)) for t in range(0, n_steps, CHUNK_STEPS)]


def _hidden_first(weights: Tensor, dim: int) -> Tensor:
    """Turn the library's order r, z, n of what h feeds into the order u, r, z."""
    r, z, n = weights.chunk(3, dim)
    return torch.cat([n, r, z], dim)


def _unroll(
    inputs: Tensor,
    packing: Packing,
    w_first: Tensor,
    b_first: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor,
    b_hh: Tensor,
    *,
    keep: bool,
) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """Return x [..., K m, H] and gates [..., K m, 4H] of the chunks (none unless `keep`); hidden [T+1, ..., M, H]."""
    n_steps, n_rows, _ = inputs.shape
    lead, width = w_hh.shape[:-2], w_hh.shape[-1]
    bias = torch.cat([_hidden_first(b_hh, -1), b_ih[..., 2 * width :]], -1)
    bias[..., width : 3 * width] += b_ih[..., : 2 * width]
    from_hidden = _hidden_first(w_hh, -2).mT.contiguous()
    hidden = inputs.new_zeros(n_steps + 1, *lead, n_rows, width)
    most = 0 if keep else min(CHUNK_STEPS, n_steps) * n_rows  # what is not kept is written over by the next chunk
    rooms = [inputs.new_empty(most * each * lead.numel()) for each in (width, 4 * width)]
    kept_x, kept_gates = [], []
    for part, m in zip(_chunks(n_steps), packing.active, strict=False):
        n = (part.stop - part.start) * m
        rows = inputs[part, :m].flatten(0, 1)
        x, gates = (
            room.new_empty(*lead, n, each) if keep else room[: lead.numel() * n * each].view(*lead, n, each)
            for room, each in zip(rooms, (width, 4 * width), strict=True)
        )
        _apply_layer(b_first, rows, w_first, out=x).relu_()
        gates.copy_(bias.unsqueeze(-2))
        _add_product(gates[..., width:], x, w_ih.mT)
        _step_forward(_by_step(gates, m), hidden[part.start : part.stop + 1][..., :m, :], from_hidden)
        if keep:
            kept_x.append(x)
            kept_gates.append(gates)
    return kept_x, kept_gates, hidden


def _step_forward(gates: Tensor, hidden: Tensor, from_hidden: Tensor) -> None:
    """Fill gates and hidden[1:] of a few steps in place, from bias and x's share in `gates` and from hidden[0]."""
    width = from_hidden.shape[-2]
    u, r, z, n = (gate.unbind(0) for gate in gates.chunk(4, -1))
    fed, rz = gates[..., : 3 * width].unbind(0), gates[..., width : 3 * width].unbind(0)
    steps = zip(fed, rz, u, r, z, n, hidden[:-1].unbind(0), hidden[1:].unbind(0), strict=True)
    for fed_t, rz_t, u_t, r_t, z_t, n_t, before, after in steps:
        _add_product(fed_t, before, from_hidden)
        rz_t.sigmoid_()
        n_t.addcmul_(r_t, u_t).tanh_()
        torch.lerp(n_t, before, z_t, out=after)


def _step_backward(grad: Tensor, carried: Tensor, gates: Tensor, before: Tensor, w_hidden: Tensor) -> Tensor:
    """Go back through a few steps.

    Args:
        grad: [K, ..., M, H] gradient of the hidden states after these steps.
        carried: [..., M, H] gradient that later steps send back; on return, what these steps send back.
        gates: [K, ..., M, 4H] u, r, z, n.
        before: [K, ..., M, H] hidden states before these steps.
        w_hidden: [..., 3H, H] weights by which h feeds u, r, z.

    Returns:
        Gradients of u and of what enters the sigmoids and the tanh, [K, ..., M, 4H].
    """
    u, r, z, n = gates.chunk(4, -1)
    # First what a unit of gradient at h' becomes.
    side = torch.empty_like(gates)
    at_u, at_r, at_z, at_n = side.chunk(4, -1)
    _through_tanh(1.0 - z, n, grad_input=at_n)
    torch.mul(at_n, r, out=at_u)
    _through_sigmoid(at_n * u, r, grad_input=at_r)
    _through_sigmoid(before - n, z, grad_input=at_z)
    along = torch.empty_like(carried)
    steps = zip(
        side.unflatten(-1, (4, -1)).unbind(0),
        side[..., : w_hidden.shape[-2]].unbind(0),
        grad.unbind(0),
        z.unbind(0),
        strict=True,
    )
    for side_t, from_h_t, grad_t, z_t in reversed(list(steps)):
        torch.add(grad_t, carried, out=along)
        side_t.mul_(along.unsqueeze(-2))
        torch.mul(along, z_t, out=carried)
        _add_product(carried, from_h_t, w_hidden)
    return side
