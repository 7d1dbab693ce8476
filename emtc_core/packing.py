"""Several arrays in one block of memory, so that one copy moves all of them to a device.

A copy of a few kilobytes to a GPU takes about as long as one of a few hundred, so arrays that are sent at the same time
are sent as one block. The tensors on the device are views of the block.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

ALIGNMENT = 8
"""Each array of a block starts at a multiple of this [bytes], the largest size of a number."""


class PackedLayout:
    """The positions of several arrays in one block."""

    def __init__(self, arrays: Mapping[str, tuple[tuple[int, ...], torch.dtype]]) -> None:
        """Place the arrays one after another in a block.

        Args:
            arrays: Shape and number type by name.
        """
        self._arrays = dict(arrays)
        self._starts: dict[str, int] = {}
        self.size_bytes = 0
        for name, (shape, dtype) in self._arrays.items():
            self._starts[name] = self.size_bytes
            self.size_bytes += -(-math.prod(shape) * dtype.itemsize // ALIGNMENT) * ALIGNMENT

    def split(self, block: Tensor) -> dict[str, Tensor]:
        """Return the arrays of one or more blocks as views.

        Source: implementation detail.

        Args:
            block: Bytes, shape [..., size_bytes] [unit varies].

        Returns:
            Name -> [..., *shape of the array] [unit varies].
        """
        views = {}
        for name, (shape, dtype) in self._arrays.items():
            start = self._starts[name]
            part = block[..., start : start + math.prod(shape) * dtype.itemsize]
            views[name] = part.view(dtype).view(block.shape[:-1] + shape)
        return views


def make_host_block(size_bytes: int, device: torch.device) -> Tensor:
    """Make a block on the host, in pinned memory if it is to be copied to a GPU.

    Source: implementation detail.

    Args:
        size_bytes: Size [bytes].
        device: Device to which the block is copied.

    Returns:
        Zeros, uint8, shape [size_bytes] [unit varies].
    """
    return torch.zeros(size_bytes, dtype=torch.uint8, pin_memory=device.type == "cuda")


def send_together(tensors: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """Copy several tensors of the host to a device as one block, without waiting for earlier work of a GPU.

    Source: implementation detail.

    Args:
        tensors: Tensors of any shape by name [unit varies].
        device: Device of the results.

    Returns:
        The same tensors on the device, by name.
    """
    if device.type == "cpu":
        return dict(tensors)
    layout = PackedLayout({name: (tuple(x.shape), x.dtype) for name, x in tensors.items()})
    block = make_host_block(layout.size_bytes, device)
    for name, view in layout.split(block).items():
        view.copy_(tensors[name])
    return layout.split(block.to(device, non_blocking=True))
