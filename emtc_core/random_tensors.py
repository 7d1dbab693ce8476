"""Random tensors and their generators.

Random tensors are drawn on the host and copied to the device, so that a run can be resumed on another device. A GPU's
generator uses another algorithm with a state of 16 bytes, which a CPU generator cannot continue. So every generator
whose state is saved is on the host. The tensors are small, and the copies run in the background.
`make_device_generator` is for large tensors that are drawn from a generator whose state is not saved.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from emtc_core.devices import send_tensor


def rand(shape: Sequence[int], *, generator: torch.Generator, device: torch.device) -> Tensor:
    """Sample uniform numbers in [0, 1).

    Source: `torch.rand` with a CPU generator, so that all devices get the same numbers.

    Args:
        shape: Shape of the result.
        generator: CPU generator of the numbers.
        device: Device of the result.

    Returns:
        Float32 tensor of that shape, dimensionless.
    """
    return send_tensor(torch.rand(tuple(shape), generator=generator), device)


def permutation(n: int, *, generator: torch.Generator, device: torch.device) -> Tensor:
    """Sample a random permutation of 0 … n-1.

    Source: `torch.randperm` with a CPU generator, so that all devices get the same numbers.

    Args:
        n: Length of the permutation.
        generator: CPU generator of the numbers.
        device: Device of the result.

    Returns:
        Int64 indices, shape [n].
    """
    return send_tensor(torch.randperm(n, generator=generator), device)


def make_device_generator(generator: torch.Generator, device: torch.device) -> torch.Generator:
    """Make a generator on a GPU, seeded by the host's generator. On the CPU, return the host's generator.

    The state of the GPU's generator is not saved, so make a new one for each use.
    """
    if device.type == "cpu":
        return generator
    seed = int(torch.randint(2**62, (), generator=generator))
    return torch.Generator(device).manual_seed(seed)
