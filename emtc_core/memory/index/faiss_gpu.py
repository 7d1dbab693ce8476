"""faiss on CUDA: `knn_gpu` over the live tensor, then exact order among its candidates.

faiss computes in float32. Its L2 metric expands |a - b|² and loses differences smaller than about 1e-3, so
the general metric (exact differences) finds the candidates, and float64 differences choose among them.
Two nodes closer to each other than float32 can tell are thus still ordered exactly, as long as fewer than
`CANDIDATES` stand in one place.
"""

import importlib
import importlib.util
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from emtc_core.memory.index.base import Metric, Points, Slots

CANDIDATES = 16


def is_available() -> bool:
    """Whether faiss with GPU support and a CUDA device are here."""
    if importlib.util.find_spec("faiss") is None or not torch.cuda.is_available():
        return False
    return hasattr(importlib.import_module("faiss"), "knn_gpu")


class FaissGpuIndex:
    """Nearest node at any distance on CUDA; nothing is built beyond the tensor itself."""

    def __init__(self, metric: Metric, *, device: str) -> None:
        self._faiss: Any = importlib.import_module("faiss")
        importlib.import_module("faiss.contrib.torch_utils")  # lets faiss take torch tensors
        self._resources = self._faiss.StandardGpuResources()
        self._metric = metric
        self._device = device
        self._z = torch.zeros((0, 1), dtype=torch.float64)

    def build(self, z: Points) -> None:
        """Copy all rows to the device."""
        self._z = torch.tensor(z, dtype=torch.float64, device=self._device)

    def query(self, q: Points) -> tuple[Slots, NDArray[np.float64]]:
        """Find the nearest node of each query."""
        if not len(self._z):
            return np.full(len(q), -1), np.full(len(q), np.inf)
        q_QX = torch.tensor(q, dtype=torch.float64, device=self._device)
        is_linf = self._metric == "linf"
        _, slots_QK = self._faiss.knn_gpu(
            self._resources,
            q_QX.float().contiguous(),
            self._z.float().contiguous(),
            min(CANDIDATES, len(self._z)),
            metric=self._faiss.METRIC_Linf if is_linf else self._faiss.METRIC_Lp,
            metric_arg=0.0 if is_linf else 2.0,
        )
        slots, distances = choose_exactly(q_QX, self._z, slots_QK.long(), is_linf=is_linf)
        return slots.cpu().numpy(), distances.cpu().numpy()


def choose_exactly(
    q_QX: torch.Tensor, z_MX: torch.Tensor, slots_QK: torch.Tensor, *, is_linf: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose among candidates by float64 difference, the lowest slot among equals."""
    gap_QKX = (z_MX[slots_QK] - q_QX[:, None]).abs()
    distance_QK = gap_QKX.amax(dim=2) if is_linf else gap_QKX.pow(2).sum(dim=2).sqrt()
    nearest_Q = distance_QK.min(dim=1).values
    is_nearest_QK = distance_QK == nearest_Q[:, None]
    return torch.where(is_nearest_QK, slots_QK, len(z_MX)).min(dim=1).values, nearest_Q
