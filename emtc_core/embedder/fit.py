"""Algorithm 1: one refit of the embedder on a sample of memory nodes.

A refit is one pass over the sample in mini-batches. The caller then re-projects the memory. `GradientStep` is one
gradient step on the CPU with autograd and a compiled InfoNCE (`info_nce_gradient`). A GPU runs the same step as a CUDA
graph (`device_step`). Stage before: memory (`sample`); after: memory (`reproject`).
"""

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from emtc_core.devices import send_tensor
from emtc_core.embedder.augmentation import augment, count_views
from emtc_core.embedder.device_step import get_device_step
from emtc_core.embedder.info_nce_gradient import CompiledInfoNce
from emtc_core.embedder.linear_stack import group_layers, list_parameters, split_vector
from emtc_core.embedder.losses import return_loss, state_loss
from emtc_core.embedder.networks import Embedder, State
from emtc_core.errors import NonFiniteLossError
from emtc_core.stopwatch import Stopwatch


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
    loss, return_loss, state_loss, info_nce, accuracy = terms_5.tolist()
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
        seconds=watch.stop().read_ms() / 1e3,
    )


def _fit_on_cpu(embedder: Embedder, state_MS: Tensor, time_M1: Tensor, h_M: Tensor, *, batch: int) -> Tensor:
    """Take one step per mini-batch; return the mean loss terms [5] float64."""
    step = GradientStep(embedder)
    rows = [slice(i, i + batch) for i in range(0, len(h_M) - batch + 1, batch)]
    return torch.stack([step.take(state_MS[r], time_M1[r], h_M[r]) for r in rows]).double().mean(dim=0)


class GradientStep:
    """The gradient step on the CPU. The gradients of all parameters are views of one vector, so clipping is fast."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        encoder, decoder = group_layers(embedder)
        parameters = list_parameters([*encoder, *decoder])
        self._gradient = torch.zeros(sum(parameter.numel() for parameter in parameters))
        for parameter, gradient in zip(parameters, split_vector(self._gradient, parameters), strict=True):
            parameter.grad = gradient

    def take(self, state_BS: Tensor, time_B1: Tensor, h_B: Tensor) -> Tensor:
        """Take one gradient step on the total loss (Eq. 4).

        Args:
            state_BS: [B, S] [state features].
            time_B1: [B, 1], time steps divided by the episode limit, dimensionless.
            h_B: [B], returns divided by the embedder's return unit, dimensionless.

        Returns:
            [5] [loss]: the terms of `compute_gradient`.
        """
        terms_5 = self.compute_gradient(state_BS, time_B1, h_B)
        max_norm = self._embedder.config.grad_clip
        self._gradient *= (max_norm / (self._gradient.norm() + 1e-6)).clamp(max=1.0)
        self._embedder.optimizer.step()
        return terms_5

    def compute_gradient(self, state_BS: Tensor, time_B1: Tensor, h_B: Tensor) -> Tensor:
        """Set the gradient of the total loss in the parameters (Eq. 4).

        Args:
            state_BS: [B, S] [state features].
            time_B1: [B, 1], time steps divided by the episode limit, dimensionless.
            h_B: [B], returns divided by the embedder's return unit, dimensionless.

        Returns:
            [5] [loss]: total, return, state and InfoNCE loss, and the InfoNCE accuracy. All but the total are means
            over rows, also with `reduction = "sum"`. The last two are NaN without InfoNCE.
        """
        self._gradient.zero_()
        with torch.enable_grad():
            terms_5 = self._compute_losses(state_BS, time_B1, h_B)
            terms_5[0].backward()
        return terms_5.detach()

    def _compute_losses(self, state_BS: Tensor, time_B1: Tensor, h_B: Tensor) -> Tensor:
        """Compute the loss terms [5] of `compute_gradient`. Only the raw view is decoded."""
        embedder, config, rows = self._embedder, self._embedder.config, len(h_B)
        n_views = count_views(config)
        views = [state_BS, *(augment(state_BS, config, embedder.generator) for _ in range(n_views - 1))]
        x_VBX = embedder.encoder(torch.cat(views), time_B1.repeat(n_views, 1)).unflatten(0, (n_views, rows))
        state_hat_BS, h_hat_B = embedder.decoder(x_VBX[0], time_B1)
        on_return = return_loss(h_B, h_hat_B, reduction=config.reduction)
        on_state = state_loss(state_BS, state_hat_BS, reduction=config.reduction)
        total = on_return + config.lambda_rcon * on_state
        contrast = accuracy = total.new_tensor(math.nan)
        if n_views > 1:
            contrast, accuracy = CompiledInfoNce.apply(x_VBX[-2], x_VBX[-1], config.tau_cl, config.cl_symmetric)
            total = total + config.lambda_cl * contrast
        per_row = 1 / rows if config.reduction == "sum" else 1.0
        return torch.stack([total, per_row * on_return, per_row * on_state, contrast, accuracy])
