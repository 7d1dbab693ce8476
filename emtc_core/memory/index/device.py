"""Nearest-neighbor search at any distance on a GPU, and the choice of the index (`memory.index_device`).

`BruteIndex` computes the distance to every node, in blocks. `FaissIndex` finds candidates with a flat index of faiss in
float32, and selects among them by float64 differences. The L2 metric of faiss expands |a - b|² and loses differences
below about 1e-3. So its general metric with exact differences is used, on coordinates minus their mean.
"""

import importlib
import logging
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from emtc_core.install import find_faiss
from emtc_core.memory.index.base import CKDTreeIndex, Metric, NeighborIndex, Points, Slots

_LOG = logging.getLogger(__name__)
PAIRS_AT_ONCE = 32_000_000  # limits the block of distances to 256 MB
CANDIDATES = 16
TEMPORARY_BYTES = 256 * 2**20
"""Device memory that faiss may use for temporary data; its default is 1.5 GB."""


def make_nearest_index(metric: Metric, *, device: str) -> NeighborIndex:
    """Make the fastest index for any distance on a device: "cpu" or "cuda…"."""
    if not device.startswith("cuda"):
        return CKDTreeIndex(metric)
    if find_faiss().is_usable:
        try:
            return FaissIndex(metric, device=device)
        except ImportError as exc:  # for example, torch and faiss are built for different versions of CUDA
            _LOG.warning("torch is used instead of faiss: same neighbors, slower. Reason: %s.", exc)
    return BruteIndex(metric, device=device)


class BruteIndex:
    """Exact search with float64 differences. The expansion |a|² - 2ab + |b|² has rounding errors larger than delta."""

    def __init__(self, metric: Metric, *, device: str = "cpu") -> None:
        self._p = 2.0 if metric == "l2" else float("inf")
        self._device = device
        self.z = torch.zeros((0, 1), dtype=torch.float64)

    def build(self, z: Points) -> None:
        """Copy all rows to the device.

        Source: implementation detail.

        Args:
            z: [M, X] [normalized embedding].
        """
        self.z = torch.tensor(z, dtype=torch.float64, device=self._device)

    def query(self, q: Points) -> tuple[Slots, NDArray[np.float64]]:
        """Find the nearest node of each query.

        Source: exhaustive search.

        Args:
            q: [Q, X] [normalized embedding].

        Returns:
            Slot indices [Q] and distances [Q] [normalized embedding]; (-1, inf) if there is no node.
        """
        if not len(self.z):
            return np.full(len(q), -1), np.full(len(q), np.inf)
        rows = max(1, PAIRS_AT_ONCE // len(self.z))
        results = [self._find_nearest(block) for block in torch.tensor(q, device=self._device).split(rows)]
        slots, distances = (torch.cat(column).cpu().numpy() for column in zip(*results, strict=True))
        return slots, distances

    def _find_nearest(self, q_QX: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mode = "donot_use_mm_for_euclid_dist"
        distance_QM = torch.cdist(q_QX, self.z, p=self._p, compute_mode=mode)
        nearest_Q = distance_QM.min(dim=1).values
        slot_M = torch.arange(len(self.z), device=self._device)
        is_nearest_QM = distance_QM == nearest_Q[:, None]
        slots_Q = torch.where(is_nearest_QM, slot_M, len(self.z)).min(dim=1).values
        return slots_Q, nearest_Q


class FaissIndex:
    """Candidates by a flat index of faiss; among them, and where rounding could matter, exact search."""

    def __init__(self, metric: Metric, *, device: str) -> None:
        """Make an empty index.

        Args:
            metric: Metric of the distance.
            device: "cuda", "cuda:1", or "cpu".

        Raises:
            ImportError: If faiss cannot be loaded.
        """
        self._faiss: Any = importlib.import_module("faiss")
        importlib.import_module("faiss.contrib.torch_utils")  # lets faiss take torch tensors
        self._metric: Metric = metric
        self._device = torch.device(device)
        self._exact = BruteIndex(metric, device=device)
        self._flat: Any = None
        if self._device.type == "cuda":
            self._resources = self._faiss.StandardGpuResources()
            self._resources.setTempMemory(TEMPORARY_BYTES)

    def build(self, z: Points) -> None:
        """Copy all rows to the device: in float64 for exact distances, in float32 for faiss.

        Source: `GpuIndexFlat` of faiss.

        Args:
            z: [M, X] [normalized embedding].
        """
        self._flat = None  # frees its memory before the new index is made
        self._exact.build(z)
        if not len(z):
            return
        self._mean_X = self._exact.z.mean(0)
        centered_MX = self._exact.z - self._mean_X
        self._reach = centered_MX.abs().max()
        self._flat = self._make_flat(z.shape[1])
        self._flat.metric_arg = 2.0  # exponent of the metric; linf ignores it
        self._flat.add(centered_MX.float())

    def query(self, q: Points) -> tuple[Slots, NDArray[np.float64]]:
        """Find the nearest node of each query.

        Source: candidates by `GpuIndexFlat` of faiss, selection by exact distances.

        Args:
            q: [Q, X] [normalized embedding].

        Returns:
            Slot indices [Q] and distances [Q] [normalized embedding]; (-1, inf) if there is no node.
        """
        if self._flat is None or not len(q):
            return np.full(len(q), -1), np.full(len(q), np.inf)
        z_MX = self._exact.z
        q_QX = torch.tensor(q, dtype=torch.float64, device=z_MX.device)
        centered_QX = q_QX - self._mean_X
        _, slots_QK = self._flat.search(centered_QX.float(), min(CANDIDATES, len(z_MX)))
        gap_QKX = (z_MX[slots_QK] - q_QX[:, None]).abs()
        distance_QK = gap_QKX.amax(dim=2) if self._metric == "linf" else gap_QKX.pow(2).sum(dim=2).sqrt()
        nearest_Q, farthest_Q = distance_QK.min(dim=1).values, distance_QK.amax(dim=1)
        is_nearest_QK = distance_QK == nearest_Q[:, None]
        slot_Q = torch.where(is_nearest_QK, slots_QK, len(z_MX)).min(dim=1).values
        # If all candidates are equally near up to rounding, another node may be nearer: compare all nodes.
        reach = torch.maximum(self._reach, centered_QX.abs().max())
        eps, dim = torch.finfo(torch.float32).eps, z_MX.shape[1]
        rounding_Q = eps * (2.0 * dim**0.5 * reach + (dim + 16) * farthest_Q)
        is_certain_Q = (nearest_Q + 2 * rounding_Q < farthest_Q) | (slots_QK.shape[1] == len(z_MX))
        slots, distances, is_certain = (x.cpu().numpy() for x in (slot_Q, nearest_Q, is_certain_Q))
        if not is_certain.all():
            slots[~is_certain], distances[~is_certain] = self._exact.query(q[~is_certain])
        return slots, distances

    def _make_flat(self, dim: int) -> Any:
        faiss = self._faiss
        kind = faiss.METRIC_Linf if self._metric == "linf" else faiss.METRIC_Lp
        if self._device.type == "cpu":
            return faiss.IndexFlat(dim, kind)
        settings = faiss.GpuIndexFlatConfig()
        settings.device = self._device.index or 0
        return faiss.GpuIndexFlat(self._resources, dim, kind, settings)
