"""Algorithm 1: one refit of the embedder on a sample of memory nodes.

A refit is one pass over the sample in mini-batches. The caller then re-projects the memory. `GradientStep` is one
gradient step on the CPU with a hand-written forward and backward pass; tests compare it with autograd. It encodes all
views of a batch together, computes both heads as one product and writes all results to buffers that are allocated once
per refit. InfoNCE does not store its [B, B] matrix. A GPU runs the same step as a CUDA graph (`device_step`). Stage
before: memory (`sample`); after: memory (`reproject`).

The measured reason for the hand-written pass, on 3s_vs_5z, one thread (a refit has 100 steps and occurs every 1,000 env
steps; medians of 60 steps, and of five trainings side by side):

    gradient step                                  ms     steps/s of a whole training from 200,000 nodes
    this one                                       3.0    798
    autograd, InfoNCE by `info_nce_gradient`       3.6    735
    autograd, all losses by torch.compile         11      not measured
    autograd, losses of `losses`                  19      not measured
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from emtc_core.devices import fetch, send_tensor
from emtc_core.embedder.augmentation import augment, count_views
from emtc_core.embedder.device_step import get_device_step
from emtc_core.embedder.info_nce_gradient import info_nce_gradient
from emtc_core.embedder.linear_stack import LinearStack, group_layers, share_layers
from emtc_core.embedder.networks import Embedder, State
from emtc_core.errors import NonFiniteLossError
from emtc_core.stopwatch import Stopwatch
from emtc_core.threads import start_task


class Sample(Protocol):
    """M memory nodes for a refit: states, steps of the episode and returns."""

    @property
    def state(self) -> State:
        """States [M, S] [state features]. Source: the sample of Algorithm 1."""
        ...

    @property
    def t(self) -> NDArray[np.int32]:
        """Time steps of the states [M] [steps]. Source: the sample of Algorithm 1."""
        ...

    @property
    def h(self) -> NDArray[np.float64]:
        """H of the nodes [M] [return]. Source: the sample of Algorithm 1."""
        ...


@dataclass(frozen=True)
class EmbedStats:
    """Means over the mini-batches of one refit; NaN for a term that the configuration does not use."""

    loss: float  # total, as minimized
    return_loss: float  # squared error [return²]
    state_loss: float  # squared, summed over coordinates
    info_nce: float  # nats
    info_nce_accuracy: float  # fraction
    info_nce_chance: float  # accuracy of random guessing, 1 / batch size
    return_unit: float  # divisor of the returns
    updates: int
    seconds: float

    def means(self) -> dict[str, float]:
        """Return the means by name."""
        return {name: value for name, value in vars(self).items() if name not in ("updates", "seconds")}


NO_FIT = EmbedStats(*([float("nan")] * 7), updates=0, seconds=0.0)


def fit(embedder: Embedder, sample: Sample) -> EmbedStats:
    """Train for one pass over the sample (Algorithm 1): floor(M / B) updates, at least one (B10).

    A sample smaller than the batch size is one batch. The random projection is not trained.

    Args:
        embedder: Embedder to train.
        sample: M nodes.

    Returns:
        Mean losses; `NO_FIT` if there is nothing to train.

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
    h_M = send_tensor(torch.as_tensor(sample.h / unit).to(torch.float32), embedder.device)
    B = min(config.batch, len(h_M))
    updates = len(h_M) // B
    if embedder.device.type == "cpu":
        terms_5 = _fit_on_cpu(embedder, state_MS, time_M1, h_M, batch=B)
    else:
        terms_5 = get_device_step(embedder, rows=B, batches=updates).fit(embedder, state_MS, time_M1, h_M)
    terms, encoder = fetch(terms_5), fetch(embedder.pack_encoder())
    seconds = watch.stop().read_ms() / 1e3  # waits for a GPU, so both copies are complete
    embedder.on_new_weights(encoder.value)
    loss, return_loss, state_loss, info_nce, accuracy = terms.value.tolist()
    if not np.isfinite(loss):
        raise NonFiniteLossError(f"The embedder's loss must be finite, got {loss}. Lower embed.lr.")
    return EmbedStats(
        loss=loss,
        return_loss=return_loss * unit**2,
        state_loss=state_loss,
        info_nce=info_nce,
        info_nce_accuracy=accuracy,
        info_nce_chance=1 / B if np.isfinite(accuracy) else accuracy,
        return_unit=unit,
        updates=updates,
        seconds=seconds,
    )


def _fit_on_cpu(embedder: Embedder, state_MS: Tensor, time_M1: Tensor, h_M: Tensor, *, batch: int) -> Tensor:
    """Take one step per mini-batch; return the mean loss terms [5] float64.

    The second thread of the run makes the random views of a mini-batch during the step on the one before.
    """
    step = GradientStep(embedder, batch)
    states = [state_MS[i : i + batch] for i in range(0, len(h_M) - batch + 1, batch)]
    terms, wait = [], start_task(partial(step.make_views, states[0]))
    for i, state_BS in enumerate(states):
        views = wait()
        if i + 1 < len(states):
            wait = start_task(partial(step.make_views, states[i + 1]))
        rows = slice(i * batch, (i + 1) * batch)
        terms.append(step.take(state_BS, views, time_M1[rows], h_M[rows]))
    return torch.stack(terms).double().mean(dim=0)


class GradientStep:
    """The gradient step on the CPU, with buffers for all batches of a refit."""

    def __init__(self, embedder: Embedder, rows: int) -> None:
        self._embedder, self._rows = embedder, rows
        config, self._views = embedder.config, count_views(embedder.config)
        self._gradient = torch.empty(sum(parameter.numel() for parameter in embedder.parameters))
        encoding, decoding = group_layers(embedder)
        layers = share_layers([*encoding, *decoding], self._gradient)
        self._encoder = LinearStack(layers[: len(encoding)], self._views * rows)
        self._decoder = LinearStack(layers[len(encoding) :], rows)
        self._input = torch.empty(self._views, rows, embedder.state_dim + 1)
        self._target = torch.empty(rows, embedder.state_dim + 1)
        self._code, self._d_code = torch.empty(2, rows, config.dim + 1)
        per_row = 1.0 if config.reduction == "sum" else 1.0 / rows
        self._weight = torch.tensor([config.lambda_rcon] * embedder.state_dim + [1.0]) * 2 * per_row

    def make_views(self, state_BS: Tensor) -> list[Tensor]:
        """Make the random views of a mini-batch for InfoNCE.

        Source: Algorithm 1.

        Args:
            state_BS: [B, S] [state features].

        Returns:
            Tensors [B, S] [state features]: one or two, or none without InfoNCE.
        """
        return [augment(state_BS, self._embedder.config, self._embedder.generator) for _ in range(self._views - 1)]

    @torch.no_grad()
    def take(self, state_BS: Tensor, views: list[Tensor], time_B1: Tensor, h_B: Tensor) -> Tensor:
        """Take one gradient step on the total loss (Eq. 4).

        Args:
            state_BS: [B, S] [state features].
            views: Result of `make_views`, [B, S] each [state features].
            time_B1: [B, 1], time steps divided by the episode limit, dimensionless.
            h_B: [B], returns divided by the embedder's return unit, dimensionless.

        Returns:
            [5] float64 [loss]: total, return, state and InfoNCE loss, and the InfoNCE accuracy. All but the total are
            means over rows, also with `reduction = "sum"`. Only the raw view is decoded.
        """
        terms_5 = self.compute_gradient(state_BS, views, time_B1, h_B)
        max_norm = self._embedder.config.grad_clip
        self._gradient *= (max_norm / (self._gradient.norm() + 1e-6)).clamp(max=1.0)
        self._embedder.optimizer.step()
        return terms_5

    @torch.no_grad()
    def compute_gradient(self, state_BS: Tensor, views: list[Tensor], time_B1: Tensor, h_B: Tensor) -> Tensor:
        """Set the gradient of the total loss in the parameters (Eq. 4).

        Args:
            state_BS: [B, S] [state features].
            views: Result of `make_views`, [B, S] each [state features].
            time_B1: [B, 1], time steps divided by the episode limit, dimensionless.
            h_B: [B], returns divided by the embedder's return unit, dimensionless.

        Returns:
            [5] float64 [loss]: the terms of `take`.
        """
        config = self._embedder.config
        self._input[0, :, :-1] = state_BS
        self._input[:, :, -1:] = time_B1
        for rows, view in zip(self._input[1:], views, strict=True):
            rows[:, :-1] = view
        self._target[:, :-1] = state_BS
        self._target[:, -1] = h_B
        self._code[:, -1:] = time_B1
        x_VBX = self._encoder.forward(self._input.flatten(0, 1)).unflatten(0, (self._views, self._rows))
        d_x_VBX = self._encoder.d_output.unflatten(0, (self._views, self._rows))
        wait_for_decoder = start_task(partial(self._reconstruct, x_VBX[0]))
        info_nce, accuracy = self._contrast(x_VBX, d_x_VBX)
        return_loss, state_loss = wait_for_decoder()
        d_x_VBX[0] += self._d_code[:, :-1]
        self._encoder.backward()
        factor = self._rows if config.reduction == "sum" else 1
        total = factor * (return_loss + config.lambda_rcon * state_loss)
        if self._views > 1:
            total += config.lambda_cl * info_nce
        return torch.tensor([total, return_loss, state_loss, info_nce, accuracy], dtype=torch.float64)

    def _reconstruct(self, x_BX: Tensor) -> tuple[float, float]:
        """Decode the raw view; return the mean return and state losses.

        The gradient with respect to the embedding is written to `_d_code`.
        """
        self._code[:, :-1] = x_BX
        residual = self._decoder.forward(self._code).sub_(self._target)
        state_loss = residual[:, :-1].square().sum().item() / self._rows
        return_loss = residual[:, -1].square().sum().item() / self._rows
        torch.mul(residual, self._weight, out=self._decoder.d_output)
        self._decoder.backward(self._d_code)
        return return_loss, state_loss

    def _contrast(self, x_VBX: Tensor, d_x_VBX: Tensor) -> tuple[float, float]:
        """Compute InfoNCE (B4); return its loss [nats] and accuracy.

        `d_x_VBX` is overwritten with the gradient of InfoNCE, times its weight, with respect to `x_VBX`.
        """
        config = self._embedder.config
        if self._views != 2:  # InfoNCE does not contain the raw view
            d_x_VBX[0] = 0.0
        if self._views == 1:
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
        return loss, accuracy
