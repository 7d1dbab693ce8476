"""A flat index with the interface of faiss, in torch."""

import torch

from emtc_core.memory.index.base import Metric


class FlatByHand:
    """What `faiss.IndexFlat` and `faiss.GpuIndexFlat` take and give in releases 1.8 to 1.15: float32, squared sums."""

    def __init__(self, dim: int, metric: Metric) -> None:
        self._is_linf = metric == "linf"
        self.metric_arg = 0.0
        self._x = torch.zeros((0, dim))

    def add(self, x: torch.Tensor, /) -> None:
        assert x.dtype == torch.float32
        self._x = torch.cat([self._x.to(x.device), x])

    def search(self, x: torch.Tensor, k: int, /) -> tuple[torch.Tensor, torch.Tensor]:
        assert x.dtype == torch.float32
        gaps = (x[:, None] - self._x).abs()
        distances = gaps.amax(-1) if self._is_linf else gaps.pow(self.metric_arg).sum(-1)
        return distances.topk(k, largest=False)
