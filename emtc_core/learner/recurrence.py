"""The agents' trunk over whole sequences for the CPU: Linear, ReLU and nn.GRU's equations, with a gradient by hand.

PyTorch's own CPU path records a dozen small operations per step; here a step is five forward and four backward, and
whatever does not depend on the step before is one operation over a chunk of steps, whose arrays stay in the
processor's cache from the input to the hidden state and back. On CUDA the library's layers are used.

    x    = relu(inputs W + b)
    r, z = sigmoid(x W_r + h U_r), sigmoid(x W_z + h U_z)      with biases in every term
    n    = tanh(x W_n + r * u),   u = h U_n + b                 h' = n + z (h - n)

Columns of `gates` and of its gradient `side` stand in the order u, r, z, n: the first three are fed by h, the last
three by x, so that each side is one matrix product.
"""

from collections.abc import Callable
from typing import Any

import torch
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


def run_trunk(first: nn.Linear, rnn: nn.GRU, inputs: Tensor) -> Tensor:
    """Run Linear, ReLU and a one-layer GRU from a zero hidden state: [T, M, I] to [T, M, H].

    Weights get gradients; inputs are data and get none on the CPU.
    """
    if inputs.is_cuda:
        return rnn(first(inputs).relu_())[0]
    weights = (first.weight, first.bias, *rnn.all_weights[0])
    if not torch.is_grad_enabled():
        return _unroll(inputs, *weights, keep=False)[2][1:]
    return TrunkSequence.apply(inputs, *weights)  # type: ignore[no-any-return]  # apply is untyped


class TrunkSequence(torch.autograd.Function):
    """The recurrence and its gradient with respect to the weights."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, *weights: Tensor) -> Tensor:
        """Unroll; weights are W, b of the first layer, then w_ih, w_hh, b_ih and b_hh."""
        x, gates, hidden = _unroll(inputs, *weights, keep=True)
        w_first, _, w_ih, w_hh, _, _ = weights
        ctx.save_for_backward(inputs, x, gates, hidden, w_first, w_ih, w_hh)
        return hidden[1:]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]  # one output
        """Return no gradient of the inputs, then those of the weights."""
        inputs, x, gates, hidden, w_first, w_ih, w_hh = ctx.saved_tensors
        w_hidden = _hidden_first(w_hh)
        sums = WeightSums(w_first, w_ih, w_hidden)
        carried = torch.zeros_like(hidden[0])
        for part in reversed(_chunks(len(x))):
            side = _step_backward(grad[part], carried, gates[part], hidden[part], w_hidden)
            sums.add(side.flatten(0, 1), *(v[part].flatten(0, 1) for v in (inputs, x, hidden)))
        return None, *sums.gradients()


class WeightSums:
    """Gradients of all weights, added up over chunks of steps."""

    def __init__(self, w_first: Tensor, w_ih: Tensor, w_hidden: Tensor) -> None:
        self._w_ih, self._width = w_ih, w_hidden.shape[1]
        self._first, self._x, self._hidden = (torch.zeros_like(w) for w in (w_first, w_ih, w_hidden))
        self._b_first, self._bias = w_ih.new_zeros(self._width), w_ih.new_zeros(4 * self._width)

    def add(self, side: Tensor, inputs: Tensor, x: Tensor, hidden: Tensor) -> None:
        """Add R rows: side [R, 4H], inputs [R, I], x [R, H] and the hidden states before [R, H]."""
        from_h, from_x = side[:, : 3 * self._width], side[:, self._width :]
        self._hidden.addmm_(from_h.t(), hidden)
        self._x.addmm_(from_x.t(), x)
        self._bias += side.sum(0)
        grad_x = through_relu(torch.mm(from_x, self._w_ih), x)
        self._first.addmm_(grad_x.t(), inputs)
        self._b_first += grad_x.sum(0)

    def gradients(self) -> tuple[Tensor, ...]:
        """Return the gradients of W, b of the first layer, w_ih, w_hh, b_ih and b_hh."""
        width, bias = self._width, self._bias
        w_hh = torch.cat([self._hidden[width:], self._hidden[:width]])
        b_hh = torch.cat([bias[width : 3 * width], bias[:width]])
        return self._first, self._b_first, self._x, w_hh, bias[width:], b_hh


def _chunks(n_steps: int) -> list[slice]:
    return [slice(t, min(t + CHUNK_STEPS, n_steps)) for t in range(0, n_steps, CHUNK_STEPS)]


def _hidden_first(rows: Tensor) -> Tensor:
    """Turn the library's order r, z, n of rows that h feeds into the order u, r, z."""
    third = len(rows) // 3
    return torch.cat([rows[2 * third :], rows[: 2 * third]])


def _unroll(
    inputs: Tensor,
    w_first: Tensor,
    b_first: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor,
    b_hh: Tensor,
    *,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return x and gates of all steps (of one chunk unless `keep`), and hidden states [T+1, M, H]."""
    n_steps, n_rows, _ = inputs.shape
    width = w_hh.shape[1]
    bias = _hidden_first(b_hh)
    bias = torch.cat([bias, b_ih[2 * width :]])
    bias[width : 3 * width] += b_ih[: 2 * width]
    from_hidden = _hidden_first(w_hh).t().contiguous()
    kept = n_steps if keep else min(CHUNK_STEPS, n_steps)
    x = inputs.new_empty(kept, n_rows, width)
    gates = inputs.new_empty(kept, n_rows, 4 * width)
    hidden = inputs.new_empty(n_steps + 1, n_rows, width)
    hidden[0] = 0.0
    for part in _chunks(n_steps):
        place = part if keep else slice(0, part.stop - part.start)
        x_RH, gates_RG = x[place].flatten(0, 1), gates[place].flatten(0, 1)
        torch.addmm(b_first, inputs[part].flatten(0, 1), w_first.t(), out=x_RH).relu_()
        gates_RG.copy_(bias)
        gates_RG[:, width:].addmm_(x_RH, w_ih.t())
        _step_forward(gates[place], hidden[part.start : part.stop + 1], from_hidden)
    return x, gates, hidden


def _step_forward(gates: Tensor, hidden: Tensor, from_hidden: Tensor) -> None:
    """Fill gates and hidden[1:] of a few steps in place, from bias and x's share in `gates` and from hidden[0]."""
    width = len(from_hidden)
    u, r, z, n = (gate.unbind(0) for gate in gates.chunk(4, -1))
    fed, rz = gates[..., : 3 * width].unbind(0), gates[..., width : 3 * width].unbind(0)
    steps = zip(fed, rz, u, r, z, n, hidden[:-1].unbind(0), hidden[1:].unbind(0), strict=True)
    for fed_t, rz_t, u_t, r_t, z_t, n_t, before, after in steps:
        fed_t.addmm_(before, from_hidden)
        rz_t.sigmoid_()
        n_t.addcmul_(r_t, u_t).tanh_()
        torch.lerp(n_t, before, z_t, out=after)


def _step_backward(grad: Tensor, carried: Tensor, gates: Tensor, before: Tensor, w_hidden: Tensor) -> Tensor:
    """Go back through a few steps.

    Args:
        grad: [K, M, H] gradient of the hidden states after these steps.
        carried: [M, H] gradient that later steps send back; on return, what these steps send back.
        gates: [K, M, 4H] u, r, z, n.
        before: [K, M, H] hidden states before these steps.
        w_hidden: [3H, H] weights by which h feeds u, r, z.

    Returns:
        Gradients of u and of what enters the sigmoids and the tanh, [K, M, 4H].
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
        side[..., : len(w_hidden)].unbind(0),
        grad.unbind(0),
        z.unbind(0),
        strict=True,
    )
    for side_t, from_h_t, grad_t, z_t in reversed(list(steps)):
        torch.add(grad_t, carried, out=along)
        side_t.mul_(along.unsqueeze(1))
        torch.mul(along, z_t, out=carried)
        carried.addmm_(from_h_t, w_hidden)
    return side
