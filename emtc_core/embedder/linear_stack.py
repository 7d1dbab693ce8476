"""A stack of linear layers with a hand-written gradient, for the steps of a refit.

All results are written to buffers that the batches of a refit share. The layers use or copy the weights of `networks`;
`fit` and `device_step` use the layers.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from emtc_core.embedder.networks import Embedder, hidden_layers


@dataclass(frozen=True)
class Layer:
    """Parameters of a linear layer and the buffers of their gradients, dimensionless.

    Source: `torch.nn.Linear`.
    """

    weight: Tensor  # shape [out, in]
    bias: Tensor  # shape [out]
    d_weight: Tensor  # shape [out, in]
    d_bias: Tensor  # shape [out]


class LinearStack:
    """Linear layers with ReLU between them, and buffers for the outputs and gradients of one batch."""

    def __init__(self, layers: list[Layer], rows: int) -> None:
        """Allocate the buffers for batches of `rows` rows. `d_output` [rows, out] is filled by the caller."""
        self._layers = layers
        self._outputs = [layer.bias.new_empty(rows, len(layer.bias)) for layer in layers]
        self._gradients = [layer.bias.new_empty(rows, len(layer.bias)) for layer in layers]
        self.d_output = self._gradients[-1]

    def forward(self, x: Tensor) -> Tensor:
        """Compute the outputs of all layers.

        Source: the encoder and decoder of Algorithm 1.

        Args:
            x: Inputs, shape [rows, in], dimensionless.

        Returns:
            Outputs of the last layer, shape [rows, out], dimensionless; a shared buffer.
        """
        self._inputs = [x, *self._outputs[:-1]]
        for layer, x, output in zip(self._layers, self._inputs, self._outputs, strict=True):
            torch.addmm(layer.bias, x, layer.weight.t(), out=output)
            if output is not self._outputs[-1]:
                output.relu_()
        return self._outputs[-1]

    def backward(self, d_input: Tensor | None = None) -> None:
        """Compute the gradients of all parameters from `d_output`.

        Source: the chain rule for the layers of `forward`.

        Args:
            d_input: If given, it is overwritten with the gradient of the inputs, shape [rows, in] [loss per unit of
                input].
        """
        input_gradients = [d_input, *self._gradients[:-1]]
        for i in reversed(range(len(self._layers))):
            layer, d, x, d_x = self._layers[i], self._gradients[i], self._inputs[i], input_gradients[i]
            torch.mm(d.t(), x, out=layer.d_weight)
            torch.sum(d, 0, out=layer.d_bias)
            if d_x is not None:
                torch.mm(d, layer.weight, out=d_x)
            if d_x is not None and i:
                torch.ops.aten.threshold_backward.grad_input(d_x, x, 0, grad_input=d_x)


def group_layers(embedder: Embedder) -> tuple[list[list[nn.Linear]], list[list[nn.Linear]]]:
    """List the layers of the encoder and of the decoder.

    A group is computed as one product. Both heads of the decoder are one group; all other groups have one layer.
    """
    encoder, decoder = embedder.encoder, embedder.decoder
    encoder_groups = [[layer] for layer in (*hidden_layers(encoder), encoder.out)]
    return encoder_groups, [*([layer] for layer in hidden_layers(decoder)), [decoder.state, decoder.h]]


def share_layers(groups: list[list[nn.Linear]], gradient: Tensor) -> list[Layer]:
    """Make one layer of each group. The parameters of the group become views of it.

    Source: implementation detail.

    Args:
        groups: Layers that read the same input; their outputs are concatenated.
        gradient: [P] vector, dimensionless. The gradients of all parameters become views of it.
    """
    layers: list[Layer] = []
    for group in groups:
        weight, bias = torch.cat([g.weight.data for g in group]), torch.cat([g.bias.data for g in group])
        n, m = weight.numel(), weight.numel() + len(bias)
        layer = Layer(weight, bias, gradient[:n].view_as(weight), gradient[n:m])
        gradient = gradient[m:]
        sizes = [linear.out_features for linear in group]
        _set_views([linear.weight for linear in group], layer.weight.split(sizes), layer.d_weight.split(sizes))
        _set_views([linear.bias for linear in group], layer.bias.split(sizes), layer.d_bias.split(sizes))
        layers.append(layer)
    return layers


def _set_views(parameters: Sequence[Tensor], values: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
    for parameter, value, gradient in zip(parameters, values, gradients, strict=True):
        parameter.data, parameter.grad = value, gradient


def view_layers(groups: list[list[nn.Linear]], weights: Tensor, gradient: Tensor) -> list[Layer]:
    """Make layers with the shapes of the groups as views of two vectors.

    Source: implementation detail.

    Args:
        groups: Layers with the shapes.
        weights: [P], all parameters, dimensionless.
        gradient: [P], their gradient, dimensionless.
    """
    layers: list[Layer] = []
    offset = 0
    for group in groups:
        n_out, n_in = sum(linear.out_features for linear in group), group[0].in_features
        middle, end = offset + n_out * n_in, offset + n_out * (n_in + 1)
        (weight, d_weight), (bias, d_bias) = (
            [vector[start:stop] for vector in (weights, gradient)] for start, stop in ((offset, middle), (middle, end))
        )
        layers.append(Layer(weight.view(n_out, n_in), bias, d_weight.view(n_out, n_in), d_bias))
        offset = end
    return layers


def list_parameters(groups: list[list[nn.Linear]]) -> list[nn.Parameter]:
    """List all parameters in the order of the vectors of `view_layers`."""
    parts = [[getattr(layer, name) for layer in group] for group in groups for name in ("weight", "bias")]
    return [parameter for part in parts for parameter in part]


def split_vector(vector: Tensor, parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    """Return views of a vector with the shapes of the parameters.

    Source: implementation detail.

    Args:
        vector: [P], dimensionless.
        parameters: Parameters with P numbers in total.
    """
    parts = vector.split([parameter.numel() for parameter in parameters])
    return [part.view_as(parameter) for part, parameter in zip(parts, parameters, strict=True)]
