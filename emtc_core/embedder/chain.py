"""Linear layers in a row with their gradient written out, for the steps of a refit.

Every result lands in a buffer that the batches of one refit share. Before: networks, whose weights the layers use or
copy; after: fit.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from emtc_core.embedder.networks import Embedder, hidden_layers


@dataclass(frozen=True)
class Layer:
    """Weight [out, in] and bias of a linear layer, and where their gradients go."""

    weight: Tensor
    bias: Tensor
    d_weight: Tensor
    d_bias: Tensor


class Chain:
    """Linear layers with ReLU between them, and room for one batch of outputs and gradients on their device."""

    def __init__(self, layers: list[Layer], rows: int) -> None:
        self._layers = layers
        self._outputs = [layer.bias.new_empty(rows, len(layer.bias)) for layer in layers]
        self._gradients = [layer.bias.new_empty(rows, len(layer.bias)) for layer in layers]
        self.d_output = self._gradients[-1]

    def forward(self, x: Tensor) -> Tensor:
        """Compute and keep every layer's output; return the last."""
        self._inputs = [x, *self._outputs[:-1]]
        for layer, x, output in zip(self._layers, self._inputs, self._outputs, strict=True):
            torch.addmm(layer.bias, x, layer.weight.t(), out=output)
            if output is not self._outputs[-1]:
                output.relu_()
        return self._outputs[-1]

    def backward(self, d_input: Tensor | None = None) -> None:
        """Turn `d_output` into the gradient of every weight, and of the input where room for it is given."""
        below = [d_input, *self._gradients[:-1]]
        for i in reversed(range(len(self._layers))):
            layer, d, x, d_x = self._layers[i], self._gradients[i], self._inputs[i], below[i]
            torch.mm(d.t(), x, out=layer.d_weight)
            torch.sum(d, 0, out=layer.d_bias)
            if d_x is not None:
                torch.mm(d, layer.weight, out=d_x)
            if d_x is not None and i:
                torch.ops.aten.threshold_backward.grad_input(d_x, x, 0, grad_input=d_x)


def group_layers(embedder: Embedder) -> tuple[list[list[nn.Linear]], list[list[nn.Linear]]]:
    """List the layers of encoder and decoder; both heads of the decoder are one product, so they are one group."""
    encoder, decoder = embedder.encoder, embedder.decoder
    encoding = [[layer] for layer in (*hidden_layers(encoder), encoder.out)]
    return encoding, [*([layer] for layer in hidden_layers(decoder)), [decoder.state, decoder.h]]


def share_layers(groups: list[list[nn.Linear]], gradient: Tensor) -> list[Layer]:
    """Make each group one layer, its outputs side by side, and every parameter's gradient a part of one vector."""
    layers: list[Layer] = []
    for group in groups:
        weight, bias = torch.cat([g.weight.data for g in group]), torch.cat([g.bias.data for g in group])
        n, m = weight.numel(), weight.numel() + len(bias)
        layer = Layer(weight, bias, gradient[:n].view_as(weight), gradient[n:m])
        gradient = gradient[m:]
        sizes = [linear.out_features for linear in group]
        _share(layer.weight, layer.d_weight, [linear.weight for linear in group], sizes)
        _share(layer.bias, layer.d_bias, [linear.bias for linear in group], sizes)
        layers.append(layer)
    return layers


def _share(values: Tensor, gradient: Tensor, parameters: Sequence[Tensor], sizes: list[int]) -> None:
    for parameter, own, d_own in zip(parameters, values.split(sizes), gradient.split(sizes), strict=True):
        parameter.data, parameter.grad = own, d_own


def view_layers(groups: list[list[nn.Linear]], weights: Tensor, gradient: Tensor) -> list[Layer]:
    """View two vectors [P], of all weights and of their gradient, as layers like those of the groups."""
    layers: list[Layer] = []
    at = 0
    for group in groups:
        n_out, n_in = sum(linear.out_features for linear in group), group[0].in_features
        middle, end = at + n_out * n_in, at + n_out * (n_in + 1)
        (weight, d_weight), (bias, d_bias) = (
            [vector[start:stop] for vector in (weights, gradient)] for start, stop in ((at, middle), (middle, end))
        )
        layers.append(Layer(weight.view(n_out, n_in), bias, d_weight.view(n_out, n_in), d_bias))
        at = end
    return layers


def list_parameters(groups: list[list[nn.Linear]]) -> list[nn.Parameter]:
    """List all parameters in the order in which `view_layers` has them."""
    parts = [[getattr(layer, name) for layer in group] for group in groups for name in ("weight", "bias")]
    return [parameter for part in parts for parameter in part]


def split_vector(vector: Tensor, parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    """View a vector [P] as parts of the parameters' shapes."""
    parts = vector.split([parameter.numel() for parameter in parameters])
    return [part.view_as(parameter) for part, parameter in zip(parts, parameters, strict=True)]
