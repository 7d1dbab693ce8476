"""Augmentation of state vectors for the contrastive term: mask, noise and an optional cyclic shift.

Only the state is touched, never the time index. Stage before: a mini-batch of nodes; after: the encoder.
"""

import torch
from torch import Tensor

from emtc_core.config.embed import EmbedConfig


def augment(state: Tensor, config: EmbedConfig, generator: torch.Generator) -> Tensor:
    """Draw one random view of each state: m_d s_d + sigma eps_d, masked first, then noised (B8).

    Args:
        state: [B, S] states.
        config: `p_mask`, `sigma`, `noise_on_masked`, `aug_shift`.
        generator: Source of randomness, on the device of `state`.

    Returns:
        [B, S], a new tensor; equal to `state` when all three strengths are 0.
    """
    view = _shift(state, config.aug_shift, generator) if config.aug_shift else state
    keep = torch.rand(view.shape, device=view.device, generator=generator) >= config.p_mask
    view = view * keep
    if config.sigma == 0:
        return view
    noise = config.sigma * torch.randn(view.shape, device=view.device, generator=generator)
    return view + (noise if config.noise_on_masked else noise * keep)


def _shift(state_BS: Tensor, largest: int, generator: torch.Generator) -> Tensor:
    """Rotate each row's coordinates by its own offset in [-largest, largest]."""
    B, S = state_BS.shape
    offset_B = torch.randint(-largest, largest + 1, (B, 1), device=state_BS.device, generator=generator)
    column_S = torch.arange(S, device=state_BS.device)
    return state_BS.gather(1, (column_S - offset_B) % S)
