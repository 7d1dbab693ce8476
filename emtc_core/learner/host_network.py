"""The networks of a learner on the host, for acting without a wait at every step."""

import copy
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from emtc_core.devices import fetch

Network = TypeVar("Network", bound=nn.Module)


class HostNetwork(Generic[Network]):
    """The network of a learner, or a copy of it on the host if the learner uses a GPU."""

    def __init__(self, network: Network) -> None:
        self._source = network
        self._is_copy = any(x.is_cuda for x in network.parameters())
        self.network = copy.deepcopy(network).cpu().requires_grad_(False) if self._is_copy else network
        self._is_stale = True

    def mark_stale(self) -> None:
        """Note that the learner has changed its weights."""
        self._is_stale = True

    def refresh(self) -> None:
        """Copy the weights to the host if they have changed since the last call."""
        if self._is_copy and self._is_stale:
            _copy_to_host(_list_tensors(self._source), _list_tensors(self.network))
        self._is_stale = False


@torch.no_grad()
def _copy_to_host(sources: list[Tensor], targets: list[Tensor]) -> None:
    """Copy tensors from a GPU to the host: one launch, one copy and one wait for all tensors of a type."""
    arriving = []
    for dtype in {x.dtype for x in sources}:
        flat = fetch(torch.cat([x.flatten() for x in sources if x.dtype == dtype]))
        arriving.append((flat, [x for x in targets if x.dtype == dtype]))
    for flat, on_host in arriving:
        parts = flat.wait().split([x.numel() for x in on_host])
        for target, part in zip(on_host, parts, strict=True):
            target.copy_(part.view_as(target))


def _list_tensors(network: nn.Module) -> list[Tensor]:
    return [x.detach() for x in (*network.parameters(), *network.buffers())]
