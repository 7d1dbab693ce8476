"""Algorithm 1: one refit of the embedder from a sample of memory nodes.

One pass over the sample in mini-batches; the caller then re-projects the memory. Stage before: memory
(`sample`); after: memory (`reproject`).
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from emtc_core.embedder.augment import augment
from emtc_core.embedder.losses import info_nce, return_loss, state_loss
from emtc_core.embedder.networks import Embedder
from emtc_core.embedder.step import Step
from emtc_core.errors import NonFiniteLossError
from emtc_core.random_ops import fork


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
    started = time.perf_counter()
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
        raise NonFiniteLossError(f"The embedder's loss must be finite, got {loss}. Lower embed.lr.")
    return EmbedStats(
        loss=loss,
        return_loss=on_return * unit**2,
        state_loss=on_state,
        info_nce=contrast,
        info_nce_accuracy=accuracy,
        info_nce_chance=1 / B if np.isfinite(accuracy) else accuracy,
        return_unit=unit,
        updates=len(rows),
        seconds=time.perf_counter() - started,
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
