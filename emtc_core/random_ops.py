"""Random tensors of whatever computes on a device: drawn on the host and sent along, so that a run can change devices.

A generator of a GPU has another algorithm and a state of 16 bytes, which no CPU can go on from. Every stateful
generator of a run is therefore one of the host; what is drawn is small, and nobody waits for it to arrive.
"""

import hashlib
import logging
from collections.abc import Sequence

import torch
from torch import Tensor

from emtc_core.device import send_tensor

_LOG = logging.getLogger(__name__)


def rand(shape: Sequence[int], *, generator: torch.Generator, device: torch.device) -> Tensor:
    """Draw uniform numbers in [0, 1)."""
    return send_tensor(torch.rand(tuple(shape), generator=generator), device)


def permutation(n: int, *, generator: torch.Generator, device: torch.device) -> Tensor:
    """Draw an order of n things, int64."""
    return send_tensor(torch.randperm(n, generator=generator), device)


def fork(generator: torch.Generator, device: torch.device) -> torch.Generator:
    """Make a generator on a device for many draws at once, seeded by the host's; on the CPU it is the host's own."""
    if device.type == "cpu":
        return generator
    seed = int(torch.randint(2**62, (), generator=generator))
    return torch.Generator(device).manual_seed(seed)


def restore(generator: torch.Generator, state: Tensor) -> None:
    """Go on from a saved state; one that a GPU's generator left seeds this one, always in the same way."""
    state = state.cpu()
    if state.shape == generator.get_state().shape:
        generator.set_state(state)
        return
    digest = hashlib.sha256(state.numpy().tobytes()).digest()
    generator.manual_seed(int.from_bytes(digest[:7]))
    _LOG.warning(
        "The checkpoint's random numbers come from a GPU's generator, which this version does not use. They go on from "
        "a seed made of its state: repeatable, but not what the run would have drawn there."
    )
