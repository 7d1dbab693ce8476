"""One gradient step of Algorithm 1 on the CPU, forward and backward written out.

The same equations as `fit.compute_losses` under autograd, which takes the step on other devices and is what this
is checked against. Here all views of a batch pass the encoder together, both heads are one product, every result
lands in a buffer made once per refit, and InfoNCE never forms its [B, B] matrix. Stage before: networks, contrast;
after: fit.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from emtc_core.embedder.augment import augment
from emtc_core.embedder.contrast import info_nce_gradient
from emtc_core.embedder.networks import Embedder, hidden_layers


@dataclass(frozen=True)
class Layer:
    """Weight [out, in] and bias of a linear layer, and where their gradients go."""

    weight: Tensor
    bias: Tensor
    d_weight: Tensor
    d_bias: Tensor


class Chain:
    """Linear layers with ReLU between them, and room for one batch of outputs and gradients."""

    def __init__(self, layers: list[Layer], rows: int) -> None:
        self._layers = layers
        self._outputs = [torch.empty(rows, len(layer.bias)) for layer in layers]
        self._gradients = [torch.empty(rows, len(layer.bias)) for layer in layers]
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


class Step:
    """The step, and the buffers that the batches of one refit share."""

    def __init__(self, embedder: Embedder, rows: int) -> None:
        self._embedder, self._rows = embedder, rows
        config, encoder, decoder = embedder.config, embedder.encoder, embedder.decoder
        contrasts = config.type == "tcse" and config.lambda_cl > 0
        self._views = 1 + contrasts * (2 if config.cl_views == "aug_aug" else 1)
        self._gradient = torch.empty(sum(parameter.numel() for parameter in embedder.parameters))
        encoding = [[layer] for layer in (*hidden_layers(encoder), encoder.out)]
        decoding = [*([layer] for layer in hidden_layers(decoder)), [decoder.state, decoder.h]]
        layers = _lay_out([*encoding, *decoding], self._gradient)
        self._encoder = Chain(layers[: len(encoding)], self._views * rows)
        self._decoder = Chain(layers[len(encoding) :], rows)
        self._input = torch.empty(self._views, rows, embedder.state_dim + 1)
        self._target = torch.empty(rows, embedder.state_dim + 1)
        self._code, self._d_code = torch.empty(2, rows, config.dim + 1)
        per_row = 1.0 if config.reduction == "sum" else 1.0 / rows
        self._weight = torch.tensor([config.lambda_rcon] * embedder.state_dim + [1.0]) * 2 * per_row

    @torch.no_grad()
    def take(self, state_BS: Tensor, time_B1: Tensor, h_B: Tensor) -> Tensor:
        """Take one step; return the loss terms as `compute_losses` does."""
        terms_5 = self.compute_gradient(state_BS, time_B1, h_B)
        largest = self._embedder.config.grad_clip
        self._gradient *= (largest / (self._gradient.norm() + 1e-6)).clamp(max=1.0)
        self._embedder.optimizer.step()
        return terms_5

    @torch.no_grad()
    def compute_gradient(self, state_BS: Tensor, time_B1: Tensor, h_B: Tensor) -> Tensor:
        """Leave the gradient of the total loss in the parameters; return the loss terms."""
        config = self._embedder.config
        self._fill(state_BS, time_B1, h_B)
        x_VBX = self._encoder.forward(self._input.flatten(0, 1)).unflatten(0, (self._views, self._rows))
        on_return, on_state = self._reconstruct(x_VBX[0])
        d_x_VBX = self._encoder.d_output.unflatten(0, (self._views, self._rows))
        contrast, accuracy = self._contrast(x_VBX, d_x_VBX)
        self._encoder.backward()
        summed = self._rows if config.reduction == "sum" else 1
        total = summed * (on_return + config.lambda_rcon * on_state)
        if self._views > 1:
            total += config.lambda_cl * contrast
        return torch.tensor([total, on_return, on_state, contrast, accuracy], dtype=torch.float64)

    def _fill(self, state_BS: Tensor, time_B1: Tensor, h_B: Tensor) -> None:
        self._input[0, :, :-1] = state_BS
        self._input[:, :, -1:] = time_B1
        for view in self._input[1:]:
            view[:, :-1] = augment(state_BS, self._embedder.config, self._embedder.generator)
        self._target[:, :-1] = state_BS
        self._target[:, -1] = h_B
        self._code[:, -1:] = time_B1

    def _reconstruct(self, x_BX: Tensor) -> tuple[float, float]:
        """Decode the raw view; leave the gradient by its embedding in `_d_code`; return both losses per row."""
        self._code[:, :-1] = x_BX
        residual = self._decoder.forward(self._code).sub_(self._target)
        on_state = residual[:, :-1].square().sum().item() / self._rows
        on_return = residual[:, -1].square().sum().item() / self._rows
        torch.mul(residual, self._weight, out=self._decoder.d_output)
        self._decoder.backward(self._d_code)
        return on_return, on_state

    def _contrast(self, x_VBX: Tensor, d_x_VBX: Tensor) -> tuple[float, float]:
        """Gather the gradient by every view's embedding from decoder and InfoNCE; return the latter's loss (B4)."""
        config = self._embedder.config
        from_decoder = self._d_code[:, :-1]
        if self._views == 1:
            d_x_VBX[0] = from_decoder
            return math.nan, math.nan
        loss, accuracy = info_nce_gradient(
            x_VBX[-2].numpy(),
            x_VBX[-1].numpy(),
            tau_cl=config.tau_cl,
            symmetric=config.cl_symmetric,
            d_anchor=d_x_VBX[-2].numpy(),
            d_candidate=d_x_VBX[-1].numpy(),
        )
        d_x_VBX[-2:] *= config.lambda_cl
        if self._views == 2:
            d_x_VBX[0] += from_decoder
        else:
            d_x_VBX[0] = from_decoder
        return loss, accuracy


def _lay_out(groups: list[list[nn.Linear]], gradient: Tensor) -> list[Layer]:
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
