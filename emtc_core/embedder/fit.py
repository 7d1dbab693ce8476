"""Algorithm 1: one refit of the embedder from a sample of memory nodes.

One pass over the sample in mini-batches; the caller then re-projects the memory. `Step` is one gradient step on the
CPU, forward and backward written out: the same equations as `compute_losses` under autograd, which takes the step on
other devices and is what it is checked against. In it all views of a batch pass the encoder together, both heads are
one product, every result lands in a buffer made once per refit, and InfoNCE never forms its [B, B] matrix. Stage
before: memory (`sample`); after: memory (`reproject`).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from emtc_core.devices import Stopwatch, fork
from emtc_core.embedder.losses import augment, info_nce, info_nce_gradient, return_loss, state_loss
from emtc_core.embedder.networks import Embedder, hidden_layers
from emtc_core.errors import NonFiniteLossError


class Sample(Protocol):
    """Nodes to learn from."""

    @property
    def state(self) -> NDArray[np.float32]: ...  # [M, S]
    @property
    def t(self) -> NDArray[np.int32]: ...  # [M]
    @property
    def h(self) -> NDArray[np.float64]: ...  # [M]


@dataclass(frozen=True)
class EmbedStats:
    """Means over the mini-batches of one refit; NaN where a term does not exist."""

    loss: float  # as minimised
    return_loss: float  # return²
    state_loss: float  # squared, summed over coordinates
    info_nce: float  # nats
    info_nce_accuracy: float  # fraction
    info_nce_chance: float  # fraction, of an embedder that tells no rows apart
    return_unit: float  # divisor of the returns
    updates: int
    seconds: float

    def means(self) -> dict[str, float]:
        """The means by name."""
        return {name: value for name, value in vars(self).items() if name not in ("updates", "seconds")}


NO_FIT = EmbedStats(*([float("nan")] * 7), updates=0, seconds=0.0)


def fit(embedder: Embedder, sample: Sample) -> EmbedStats:
    """Train for one pass over the sample, floor(N / B) updates, at least one (B10).

    A sample smaller than the batch is one batch. The random projection learns nothing.

    Raises:
        NonFiniteLossError: If a loss is NaN or infinite.
    """
    if not embedder.is_trainable or len(sample.h) == 0:
        return NO_FIT
    watch = Stopwatch(embedder.device)
    config = embedder.config
    if config.reset_each_update:
        embedder.initialize()
    state_MS, time_M1 = embedder.to_inputs(sample.state, sample.t)
    unit = embedder.return_scale.update(sample.h)
    h_M = torch.as_tensor(sample.h / unit).to(embedder.device, torch.float32)
    B = min(config.batch, len(h_M))
    update = _make_update(embedder, B)
    rows = [slice(i, i + B) for i in range(0, len(h_M) - B + 1, B)]
    terms_K5 = torch.stack([update(state_MS[r], time_M1[r], h_M[r]) for r in rows])
    loss, on_return, on_state, contrast, accuracy = terms_K5.double().mean(dim=0).tolist()
    if not np.isfinite(loss):
        raise NonFiniteLossError(
            f"The embedder's loss must be finite, got {loss}. Lower embed.lr.",
            reason="embedder_loss",
            subject="embed.lr",
        )
    return EmbedStats(
        loss=loss,
        return_loss=on_return * unit**2,
        state_loss=on_state,
        info_nce=contrast,
        info_nce_accuracy=accuracy,
        info_nce_chance=1 / B if np.isfinite(accuracy) else accuracy,
        return_unit=unit,
        updates=len(rows),
        seconds=watch.stop().read_ms() / 1e3,
    )


def _make_update(embedder: Embedder, rows: int) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    if embedder.device.type == "cpu":
        return Step(embedder, rows).take
    return partial(_update, embedder, fork(embedder.generator, embedder.device))


def _update(embedder: Embedder, generator: torch.Generator, state_BS: Tensor, time_B1: Tensor, h_B: Tensor) -> Tensor:
    """Take one gradient step; return its loss terms without waiting for the device."""
    terms_5 = compute_losses(embedder, state_BS, time_B1, h_B, generator=generator)
    embedder.optimizer.zero_grad()
    terms_5[0].backward()
    torch.nn.utils.clip_grad_norm_(embedder.parameters, embedder.config.grad_clip)
    embedder.optimizer.step()
    return terms_5.detach()


def compute_losses(
    embedder: Embedder,
    state_BS: Tensor,
    time_B1: Tensor,
    h_B: Tensor,
    *,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Stack total, return, state and InfoNCE losses and the InfoNCE accuracy of one mini-batch (Eq. 4).

    Only the raw view is decoded. The reported parts are means per row whatever `reduction` minimises. The views are
    drawn by a generator of the device, or by the embedder's own.
    """
    config = embedder.config
    x_BX = embedder.encoder(state_BS, time_B1)
    state_hat_BS, h_hat_B = embedder.decoder(x_BX, time_B1)
    on_return = return_loss(h_B, h_hat_B, reduction=config.reduction)
    on_state = state_loss(state_BS, state_hat_BS, reduction=config.reduction)
    total = on_return + config.lambda_rcon * on_state
    contrast, accuracy = _contrast(embedder, state_BS, time_B1, x_BX, generator or embedder.generator)
    if contrast is not None:
        total = total + config.lambda_cl * contrast
    nan = torch.full((), float("nan"), device=total.device)
    rows = len(h_B) if config.reduction == "sum" else 1
    return torch.stack([total, on_return / rows, on_state / rows, nan if contrast is None else contrast, accuracy])


def _contrast(
    embedder: Embedder, state_BS: Tensor, time_B1: Tensor, x_BX: Tensor, generator: torch.Generator
) -> tuple[Tensor | None, Tensor]:
    """InfoNCE between two views of each row (B4); nothing for dCAE or a weight of 0."""
    config = embedder.config
    if config.type != "tcse" or config.lambda_cl == 0:
        return None, torch.full((), float("nan"), device=x_BX.device)
    if config.cl_views == "aug_aug":
        x_BX = embedder.encoder(augment(state_BS, config, generator), time_B1)
    view_BX = embedder.encoder(augment(state_BS, config, generator), time_B1)
    return info_nce(x_BX, view_BX, tau_cl=config.tau_cl, symmetric=config.cl_symmetric)


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
