"""Nearest node at any distance while nodes come and move: a built index plus the few nodes written since.

A tree costs too much to rebuild at every episode, and few nodes change between two. Those that were written
since the last build (the tail) are compared one by one; the index answers for the others. Equal to an index
built anew (a test), ties included. Rebuilt when the tail has grown to a share of the nodes, O(log M) amortised.

On a GPU every difference is compared (the fallback, and the judge of the other indexes), or faiss answers: a flat
index of all nodes in float32 finds candidates, float64 differences choose among them. faiss' L2 metric expands
|a - b|² and loses differences smaller than about 1e-3, so the general metric (exact differences) is used, of
coordinates about their mean. Where rounding may still have hidden the nearest node behind the candidates, because many
stand in nearly one place, that query is compared with every node (`brute`). The exponent of the general metric is a
property of an index; `knn_gpu` takes none in any release, so a flat index is made instead, which answers the same
question from the same memory.
"""

import importlib
import logging
from collections.abc import Callable
from functools import cache
from typing import Any, Protocol

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray

from emtc_core.faiss_probe import probe_faiss
from emtc_core.memory.index.base import CKDTreeIndex, Metric, NeighborIndex, Points, Slots

_LOG = logging.getLogger(__name__)

LONGEST_TAIL = 2048
TAIL_SHARE = 0.05


class IncrementalIndex:
    """Any `NeighborIndex` of unlimited distance, made at the first query and kept current by a tail."""

    def __init__(self, make_index: Callable[[], NeighborIndex], metric: Metric) -> None:
        self._make_index = make_index
        self._index: NeighborIndex | None = None
        self._p = 2.0 if metric == "l2" else np.inf
        self._built: Points | None = None
        self._tail: Slots = np.zeros(0, np.int64)

    def forget(self) -> None:
        """Everything has moved: build anew at the next query."""
        self._built = None

    def note_written(self, slots: Slots) -> None:
        """Remember which slots may hold another place than when the index was built."""
        if self._built is not None:
            self._tail = np.union1d(self._tail, slots[slots >= 0])

    def query(self, z: Points, q: Points) -> Slots:
        """Find the nearest row of `z` for each row of `q`, the lowest among equals; -1 only without rows."""
        if not len(z):
            return np.full(len(q), -1)
        slots = self._current(z).query(q)[0]
        if not len(self._tail):
            return slots
        has_moved = self._has_moved(z, slots)
        slots[has_moved] = self._nearest_of(np.arange(len(z)), z, q[has_moved])
        rest = ~has_moved
        slots[rest] = self._nearer(z, q[rest], slots[rest], self._nearest_of(self._tail, z, q[rest]))
        return slots

    def _current(self, z: Points) -> NeighborIndex:
        """Make or build the index anew where it is due."""
        index = self._index = self._index or self._make_index()
        if self._built is None or len(self._tail) > max(LONGEST_TAIL, TAIL_SHARE * len(self._built)):
            index.build(z)
            self._built, self._tail = z.copy(), np.zeros(0, np.int64)
        return index

    def _has_moved(self, z: Points, slots: Slots) -> NDArray[np.bool_]:
        """Which answers no longer stand where the index saw it; its true neighbour must be sought anew."""
        assert self._built is not None
        return (slots < 0) | (z[slots] != self._built[np.maximum(slots, 0)]).any(axis=1)

    def _nearest_of(self, slots: Slots, z: Points, q: Points) -> Slots:
        """Compare with each of some slots, sorted; the first minimum is the lowest slot."""
        return nearest_of(slots, z, q, self._p == np.inf)

    def _nearer(self, z: Points, q: Points, a: Slots, b: Slots) -> Slots:
        distance_a, distance_b = self._distance(z[a], q), self._distance(z[b], q)
        takes_b = (distance_b < distance_a) | ((distance_b == distance_a) & (b < a))
        return np.where(takes_b, b, a)

    def _distance(self, z: Points, q: Points) -> NDArray[np.float64]:
        return np.linalg.norm(z - q, ord=self._p, axis=1)


def make_nearest_index(metric: Metric, *, device: str) -> NeighborIndex:
    """Make the best index for unlimited distance on a device: "cpu" or "cuda…"."""
    if not device.startswith("cuda"):
        return CKDTreeIndex(metric)
    return FaissGpuIndex(metric, device=device) if can_use_faiss(device) else BruteIndex(metric, device=device)


@cache
def can_use_faiss(device: str) -> bool:
    """Whether faiss searches on a GPU: checked once per process, in another one, because faiss may abort."""
    if not torch.cuda.is_available():
        return False
    probe = probe_faiss(device)
    if probe.state != "usable":
        _LOG.warning("Every node is compared with torch: same neighbours, more time. Reason: %s.", probe.reason)
    return probe.state == "usable"


@njit(cache=True, nogil=True)
def nearest_of(
    slots: NDArray[Any], z: NDArray[Any], q: NDArray[Any], is_linf: bool
) -> NDArray[Any]:  # pragma: no cover  # compiled
    """Find for each row of `q` the first of some slots that is nearest to it; there is at least one.

    A root is drawn only where a smaller square was found: roots of different squares can be equal, and those are ties.
    """
    found = np.full(len(q), slots[0])
    least = np.full(len(q), np.inf)  # before the root
    for slot in slots:
        for row in range(len(q)):
            total = 0.0
            for i in range(q.shape[1]):
                gap = abs(z[slot, i] - q[row, i])
                total = max(total, gap) if is_linf else total + gap * gap
            if total < least[row] and (is_linf or np.sqrt(total) < np.sqrt(least[row])):
                found[row], least[row] = slot, total
    return found


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
