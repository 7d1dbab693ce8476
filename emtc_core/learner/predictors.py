"""CDS's two predictors of an agent's next observation, with a gradient written by hand.

    p(o' | z)      from z = [h_{t-1}; o_t; a_t]
    q(o' | z, id)  from the same and the agent's id, which its first two layers read

Each is three linear layers with ReLU between them; log p and log q are minus squared errors. A pass over a batch is
dozens of steps on a few hundred rows, where recording a graph would cost as much as the arithmetic. What z and the
id are made of, and what the errors are for, lives in diversity.py.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from emtc_core.learner.recurrence import through_relu

WIDTH = 128
CLIP = 1.0
ROWS_AT_ONCE = 1024
"""Rows whose errors are measured together: few enough for their activations to stay in the processor's cache."""


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
    grad = through_relu(grad @ layers[2].weight, a.second)
    _fill_layer(layers[1], grad, a.first)
    grad = through_relu(grad @ layers[1].weight[:, :WIDTH], a.first[:, :WIDTH])
    _fill_layer(layers[0], grad, a.inputs)


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
