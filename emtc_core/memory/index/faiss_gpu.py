"""Search on a GPU: every difference (the fallback, and the judge of the other indexes), or faiss.

faiss: a flat index of all nodes in float32 finds candidates, float64 differences choose among them.

faiss' L2 metric expands |a - b|² and loses differences smaller than about 1e-3, so the general metric (exact
differences) is used, of coordinates about their mean. Where rounding may still have hidden the nearest node behind the
candidates, because many stand in nearly one place, that query is compared with every node (`brute`).

The exponent of the general metric is a property of an index. `knn_gpu` takes none in any release, so a flat index is
made instead, which answers the same question from the same memory.
"""

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from emtc_core.memory.index.base import Metric, Points, Slots

PAIRS_AT_ONCE = 32_000_000  # bounds the distance block to 256 MB
CANDIDATES = 16
SCRATCH_BYTES = 256 * 2**20
"""Device memory that faiss keeps for itself; its own choice is 1.5 GB."""


class FlatIndex(Protocol):
    """What is asked of faiss: the part of `GpuIndexFlat` that `IndexFlat`, its twin on the CPU, has too."""

    metric_arg: float

    def add(self, x: torch.Tensor, /) -> None: ...

    def search(self, x: torch.Tensor, k: int, /) -> tuple[torch.Tensor, torch.Tensor]: ...


MakeFlat = Callable[[int, Metric], FlatIndex]


def is_available() -> bool:
    """Whether faiss with GPU support and a CUDA device are here."""
    if importlib.util.find_spec("faiss") is None or not torch.cuda.is_available():
        return False
    faiss = importlib.import_module("faiss")
    return hasattr(faiss, "GpuIndexFlat") and faiss.get_num_gpus() > 0


def flat_on_gpu(device: str) -> MakeFlat:
    """Make flat indexes on a device: "cuda" or "cuda:1"."""
    faiss: Any = importlib.import_module("faiss")
    importlib.import_module("faiss.contrib.torch_utils")  # lets faiss take torch tensors
    resources, settings = faiss.StandardGpuResources(), faiss.GpuIndexFlatConfig()
    resources.setTempMemory(SCRATCH_BYTES)
    settings.device = torch.device(device).index or 0

    def make(dim: int, metric: Metric) -> FlatIndex:
        kind = faiss.METRIC_Linf if metric == "linf" else faiss.METRIC_Lp
        return faiss.GpuIndexFlat(resources, dim, kind, settings)

    return make


class BruteIndex:
    """Exact differences in float64, not the |a|² - 2ab + |b|² expansion, whose rounding exceeds delta."""

    def __init__(self, metric: Metric, *, device: str = "cpu") -> None:
        self._p = 2.0 if metric == "l2" else float("inf")
        self._device = device
        self.z = torch.zeros((0, 1), dtype=torch.float64)

    def build(self, z: Points) -> None:
        """Copy all rows to the device."""
        self.z = torch.tensor(z, dtype=torch.float64, device=self._device)

    def query(self, q: Points) -> tuple[Slots, NDArray[np.float64]]:
        """Find the nearest node of each query."""
        if not len(self.z):
            return np.full(len(q), -1), np.full(len(q), np.inf)
        rows = max(1, PAIRS_AT_ONCE // len(self.z))
        found = [self._nearest(part) for part in torch.tensor(q, device=self._device).split(rows)]
        slots, distances = (torch.cat(column).cpu().numpy() for column in zip(*found, strict=True))
        return slots, distances

    def _nearest(self, q_QX: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mode = "donot_use_mm_for_euclid_dist"
        distance_QM = torch.cdist(q_QX, self.z, p=self._p, compute_mode=mode)
        nearest_Q = distance_QM.min(dim=1).values
        slot_M = torch.arange(len(self.z), device=self._device)
        is_nearest_QM = distance_QM == nearest_Q[:, None]
        slots_Q = torch.where(is_nearest_QM, slot_M, len(self.z)).min(dim=1).values
        return slots_Q, nearest_Q


class FaissGpuIndex:
    """Nearest node at any distance on CUDA."""

    def __init__(self, metric: Metric, *, device: str, make_flat: MakeFlat | None = None) -> None:
        """Ask faiss for an index on the device, or `make_flat` for another of the same kind."""
        self._make_flat = make_flat or flat_on_gpu(device)
        self._metric: Metric = metric
        self._exact = BruteIndex(metric, device=device)
        self._flat: FlatIndex | None = None

    def build(self, z: Points) -> None:
        """Copy all rows to the device: in float64 for the choice, in float32 for faiss."""
        self._flat = None  # its memory is free before the next one takes some
        self._exact.build(z)
        if not len(z):
            return
        z_MX = self._exact.z
        self._middle_X = z_MX.mean(0)
        centred_MX = z_MX - self._middle_X
        self._reach = centred_MX.abs().max()
        self._flat = self._make_flat(z.shape[1], self._metric)
        self._flat.metric_arg = 2.0  # the exponent; the largest difference has none and ignores it
        self._flat.add(centred_MX.float())

    def query(self, q: Points) -> tuple[Slots, NDArray[np.float64]]:
        """Find the nearest node of each query."""
        if self._flat is None or not len(q):
            return np.full(len(q), -1), np.full(len(q), np.inf)
        z_MX = self._exact.z
        q_QX = torch.tensor(q, dtype=torch.float64, device=z_MX.device)
        centred_QX = q_QX - self._middle_X
        _, slots_QK = self._flat.search(centred_QX.float(), min(CANDIDATES, len(z_MX)))
        found, distance, farthest = choose_exactly(q_QX, z_MX, slots_QK.long(), is_linf=self._metric == "linf")
        rounding = rounding_error(farthest, reach=torch.maximum(self._reach, centred_QX.abs().max()), dim=q.shape[1])
        is_certain = (distance + 2 * rounding < farthest) | (slots_QK.shape[1] == len(z_MX))
        slots, distances, certain = (x.cpu().numpy() for x in (found, distance, is_certain))
        if not certain.all():
            slots[~certain], distances[~certain] = self._exact.query(q[~certain])
        return slots, distances


def rounding_error(distance: torch.Tensor, *, reach: torch.Tensor, dim: int) -> torch.Tensor:
    """Bound how far a distance in float32 is off: coordinates up to `reach` are rounded, then their differences."""
    eps = torch.finfo(torch.float32).eps
    return eps * (2.0 * dim**0.5 * reach + (dim + 16) * distance)


def choose_exactly(
    q_QX: torch.Tensor, z_MX: torch.Tensor, slots_QK: torch.Tensor, *, is_linf: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Choose among candidates by float64 difference, the lowest slot among equals.

    Returns:
        [Q] the slot, its distance, and the distance of the farthest candidate.
    """
    gap_QKX = (z_MX[slots_QK] - q_QX[:, None]).abs()
    distance_QK = gap_QKX.amax(dim=2) if is_linf else gap_QKX.pow(2).sum(dim=2).sqrt()
    nearest_Q = distance_QK.min(dim=1).values
    is_nearest_QK = distance_QK == nearest_Q[:, None]
    slots_Q = torch.where(is_nearest_QK, slots_QK, len(z_MX)).min(dim=1).values
    return slots_Q, nearest_Q, distance_QK.amax(dim=1)
