"""Augmentation of states for the contrastive loss: mask, noise and cyclic shift. The time index is not changed.

On the CPU a compiled function makes the mask and the noise (random_view.py), with other random numbers than on a GPU.
"""

import torch
from torch import Tensor

from emtc_core.config.memory import EmbedConfig
from emtc_core.embedder.random_view import make_view


def count_views(config: EmbedConfig) -> int:
    """Return the number of encoded views per row: the raw view, plus one or two augmented ones for InfoNCE (B4)."""
    if config.type != "tcse" or config.lambda_cl == 0:
        return 1
    return 3 if config.cl_views == "aug_aug" else 2


def augment(state: Tensor, config: EmbedConfig, generator: torch.Generator) -> Tensor:
    """Make one random view of each state, m_d s_d + sigma eps_d: first the mask, then the noise (Algorithm 1, B8).

    Args:
        state: [B, S] float32 [state features].
        config: `p_mask`, `sigma`, `noise_on_masked`, `aug_shift`.
        generator: Source of randomness, on the device of `state`.

    Returns:
        [B, S] [state features], a new tensor; equal to `state` if `p_mask`, `sigma` and `aug_shift` are 0.
    """
    view = _shift(state, config.aug_shift, generator) if config.aug_shift else state
    if view.device.type == "cpu":
        return make_view(
            view, p_mask=config.p_mask, sigma=config.sigma, noise_everywhere=config.noise_on_masked, generator=generator
        )
    keep = torch.rand(view.shape, device=view.device, generator=generator) >= config.p_mask
    view = view * keep
    if config.sigma == 0:
        return view
    noise = config.sigma * torch.randn(view.shape, device=view.device, generator=generator)
    return view + (noise if config.noise_on_masked else noise * keep)


def _shift(state_BS: Tensor, largest: int, generator: torch.Generator) -> Tensor:
    """Rotate each row's coordinates by a separate random offset in [-largest, largest]."""
    B, S = state_BS.shape
    offset_B = torch.randint(-largest, largest + 1, (B, 1), device=state_BS.device, generator=generator)
    column_S = torch.arange(S, device=state_BS.device)
    return state_BS.gather(1, (column_S - offset_B) % S)
