"""A GRU over whole sequences for the CPU: nn.GRU's equations and weights with a gradient written by hand.

PyTorch's own CPU path records a dozen small operations per step; here a step is six forward and four backward,
and whatever does not depend on the step before is one operation over a chunk of steps. On CUDA nn.GRU is used.

    r, z = sigmoid(x W_r + h U_r), sigmoid(x W_z + h U_z)      with biases in every term
    n    = tanh(x W_n + r * u),   u = h U_n + b                 h' = n + z (h - n)
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

CHUNK_STEPS = 8
"""Steps handled together: few enough for their arrays to stay in the processor's cache."""


def run_gru(rnn: nn.GRU, x: Tensor) -> Tensor:
    """Run a one-layer GRU from a zero hidden state: [T, M, I] to [T, M, H]."""
    if x.is_cuda:
        return rnn(x)[0]
    w_ih, w_hh, b_ih, b_hh = rnn.all_weights[0]
    if not torch.is_grad_enabled():
        return _unroll(x.contiguous(), w_ih, w_hh, b_ih, b_hh, keep=False)[2][1:]
    return GruSequence.apply(x, w_ih, w_hh, b_ih, b_hh)  # type: ignore[no-any-return]  # apply is untyped


class GruSequence(torch.autograd.Function):
    """The recurrence and its gradient with respect to inputs and weights."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor) -> Tensor:
        """Unroll; gates [T, M, 3H] hold r, z, n afterwards."""
        x = x.contiguous()
        gates, u, hidden = _unroll(x, w_ih, w_hh, b_ih, b_hh, keep=True)
        ctx.save_for_backward(x, w_ih, w_hh, gates, u, hidden)
        return hidden[1:]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]  # one output
        """Return gradients of x, w_ih, w_hh, b_ih and b_hh."""
        x, w_ih, w_hh, gates, u, hidden = ctx.saved_tensors
        grad_x = torch.empty_like(x) if ctx.needs_input_grad[0] else None
        sums = [torch.zeros_like(w_ih), torch.zeros_like(w_hh), *w_ih.new_zeros(2, len(w_ih)).unbind()]
        carried = torch.zeros_like(hidden[0])
        for part in reversed(_chunks(len(x))):
            side_x, side_h = _step_backward(grad[part], carried, gates[part], u[part], hidden[part], w_hh)
            sums[0].addmm_(side_x.t(), x[part].flatten(0, 1))
            sums[1].addmm_(side_h.t(), hidden[part].flatten(0, 1))
            sums[2] += side_x.sum(0)
            sums[3] += side_h.sum(0)
            if grad_x is not None:
                torch.mm(side_x, w_ih, out=grad_x[part].flatten(0, 1))
        return grad_x, *sums


def _chunks(n_steps: int) -> list[slice]:
    return [slice(t, min(t + CHUNK_STEPS, n_steps)) for t in range(0, n_steps, CHUNK_STEPS)]


def _unroll(
    x: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor, *, keep: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return gates and u of all steps (of one chunk unless `keep`), and hidden states [T+1, M, H]."""
    n_steps, n_rows, _ = x.shape
    width = w_hh.shape[1]
    bias = b_ih.clone()
    bias[: 2 * width] += b_hh[: 2 * width]
    kept = n_steps if keep else min(CHUNK_STEPS, n_steps)
    gates = x.new_empty(kept, n_rows, 3 * width)
    u = x.new_empty(kept, n_rows, width)
    hidden = x.new_empty(n_steps + 1, n_rows, width)
    hidden[0] = 0.0
    for part in _chunks(n_steps):
        place = part if keep else slice(0, part.stop - part.start)
        torch.addmm(bias, x[part].flatten(0, 1), w_ih.t(), out=gates[place].flatten(0, 1))
        _step_forward(gates[place], u[place], hidden[part.start : part.stop + 1], w_hh, b_hh)
    return gates, u, hidden


def _step_forward(gates: Tensor, u: Tensor, hidden: Tensor, w_hh: Tensor, b_hh: Tensor) -> None:
    """Fill gates, u and hidden[1:] of a few steps in place, from x's share in `gates` and from hidden[0]."""
    width = w_hh.shape[1]
    u_rz, u_n, b_n = w_hh[: 2 * width].t(), w_hh[2 * width :].t(), b_hh[2 * width :]
    steps = zip(
        gates[..., : 2 * width].unbind(0),
        gates[..., :width].unbind(0),
        gates[..., width : 2 * width].unbind(0),
        gates[..., 2 * width :].unbind(0),
        u.unbind(0),
        hidden[:-1].unbind(0),
        hidden[1:].unbind(0),
        strict=True,
    )
    for rz, r, z, n, u_t, before, after in steps:
        rz.addmm_(before, u_rz).sigmoid_()
        torch.addmm(b_n, before, u_n, out=u_t)
        n.addcmul_(r, u_t).tanh_()
        torch.lerp(n, before, z, out=after)


def _step_backward(
    grad: Tensor, carried: Tensor, gates: Tensor, u: Tensor, before: Tensor, w_hh: Tensor
) -> tuple[Tensor, Tensor]:
    """Go back through a few steps.

    Args:
        grad: [K, M, H] gradient of the hidden states after these steps.
        carried: [M, H] gradient that later steps send back; on return, what these steps send back.
        gates: [K, M, 3H] r, z, n.
        u: [K, M, H] hidden side of n.
        before: [K, M, H] hidden states before these steps.
        w_hh: [3H, H].

    Returns:
        Gradients at the input side and at the hidden side of the gates, [K * M, 3H] each.
    """
    r, z, n = gates.chunk(3, dim=-1)
    at_n = (1.0 - z).mul_(1.0 - n.square())
    # What a unit of gradient at h' becomes at the hidden side of r, z and n.
    factors = gates.new_empty(*u.shape[:2], 3, u.shape[2])
    torch.mul(at_n, r, out=factors[:, :, 2])
    torch.mul(factors[:, :, 2], (1.0 - r).mul_(u), out=factors[:, :, 0])
    torch.mul(before - n, (1.0 - z).mul_(z), out=factors[:, :, 1])
    along = torch.empty_like(u)
    steps = zip(factors.unbind(0), along.unbind(0), grad.unbind(0), z.unbind(0), strict=True)
    for factors_t, along_t, grad_t, z_t in reversed(list(steps)):
        torch.add(grad_t, carried, out=along_t)
        factors_t.mul_(along_t.unsqueeze(1))
        torch.mul(along_t, z_t, out=carried)
        carried.addmm_(factors_t.flatten(1), w_hh)
    side_h = factors.flatten(2).flatten(0, 1)
    side_x = side_h.clone()
    side_x[:, 2 * u.shape[2] :] = at_n.mul_(along).flatten(0, 1)
    return side_x, side_h
