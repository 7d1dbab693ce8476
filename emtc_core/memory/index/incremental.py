"""Nearest-neighbor search at any distance while nodes are added and moved.

A tree takes too long to be rebuilt at every episode, and few nodes change in one episode. So a built index is combined
with the list of slots written since its build (the tail). Queries are compared with each node of the tail, and with the
result of the index. The result equals that of a new index, with ties (there is a test). The index is rebuilt when the
tail is a fixed fraction of the nodes: O(log M) amortized.

On a GPU there are two indexes. `BruteIndex` compares all differences; it is the fallback, and the reference in tests.
`FaissGpuIndex` finds candidates with a flat faiss index in float32, and selects among them by float64 differences. The
L2 metric of faiss expands |a - b|² and loses differences below about 1e-3. So the general metric with exact
differences is used, on coordinates minus their mean. If many nodes are at nearly one position, rounding may still
exclude the nearest node from the candidates; such a query is compared with all nodes by `BruteIndex`. The exponent of
the general metric is an attribute of an index, and `knn_gpu` has no parameter for it, so a flat index is used; it
needs the same memory.
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
"""The index is rebuilt if the tail is longer than LONGEST_TAIL and than this fraction of the nodes."""

PAIRS_AT_ONCE = 32_000_000  # limits the block of distances to 256 MB
CANDIDATES = 16
SCRATCH_BYTES = 256 * 2**20
"""Device memory that faiss may use for temporary data; its default is 1.5 GB."""


class IncrementalIndex:
    """Keeps a `NeighborIndex` up to date while nodes change. The index is made at the first query."""

    def __init__(self, make_index: Callable[[], NeighborIndex], metric: Metric) -> None:
        self._make_index = make_index
        self._index: NeighborIndex | None = None
        self._p = 2.0 if metric == "l2" else np.inf
        self._built: Points | None = None
        self._tail: Slots = np.zeros(0, np.int64)

    def invalidate(self) -> None:
        """Rebuild the index at the next query, because all nodes have moved."""
        self._built = None

    def mark_written(self, slots: Slots) -> None:
        """Add slots whose nodes may be new or may have moved since the index was built.

        Source: implementation detail.

        Args:
            slots: [K], slot indices; -1 is skipped.
        """
        if self._built is not None:
            self._tail = np.union1d(self._tail, slots[slots >= 0])

    def query(self, z: Points, q: Points) -> Slots:
        """Find the nearest row for each query.

        Source: the nearest node of Algorithm 2.

        Args:
            z: [M, X], all positions [normalized embedding].
            q: [Q, X] [normalized embedding].

        Returns:
            [Q], slot indices, the lowest among equally near ones; -1 only if `z` has no rows.
        """
        if not len(z):
            return np.full(len(q), -1)
        index = self._index = self._index or self._make_index()
        if self._built is None or len(self._tail) > max(LONGEST_TAIL, TAIL_SHARE * len(self._built)):
            index.build(z)
            self._built, self._tail = z.copy(), np.zeros(0, np.int64)
        slots = index.query(q)[0]
        if not len(self._tail):
            return slots
        is_linf = self._p == np.inf
        has_moved = (slots < 0) | (z[slots] != self._built[np.maximum(slots, 0)]).any(axis=1)
        slots[has_moved] = nearest_of(np.arange(len(z)), z, q[has_moved], is_linf)
        rest = ~has_moved
        slots[rest] = self._select_nearer(z, q[rest], slots[rest], nearest_of(self._tail, z, q[rest], is_linf))
        return slots

    def _select_nearer(self, z: Points, q: Points, a: Slots, b: Slots) -> Slots:
        distance_a = np.linalg.norm(z[a] - q, ord=self._p, axis=1)
        distance_b = np.linalg.norm(z[b] - q, ord=self._p, axis=1)
        is_b_nearer = (distance_b < distance_a) | ((distance_b == distance_a) & (b < a))
        return np.where(is_b_nearer, b, a)


def make_nearest_index(metric: Metric, *, device: str) -> NeighborIndex:
    """Make the fastest index for any distance on a device: "cpu" or "cuda…"."""
    if not device.startswith("cuda"):
        return CKDTreeIndex(metric)
    return FaissGpuIndex(metric, device=device) if can_use_faiss(device) else BruteIndex(metric, device=device)


@cache
def can_use_faiss(device: str) -> bool:
    """Whether faiss can search on a GPU. Checked once per process, in a child process, because faiss may abort."""
    if not torch.cuda.is_available():
        return False
    probe = probe_faiss(device)
    if probe.state != "usable":
        _LOG.warning("torch is used instead of faiss: same neighbors, slower. Reason: %s.", probe.reason)
    return probe.state == "usable"


@njit(cache=True, nogil=True)
def nearest_of(
    slots: NDArray[Any], z: NDArray[Any], q: NDArray[Any], is_linf: bool
) -> NDArray[Any]:  # pragma: no cover  # compiled
    """Find for each query the nearest of the given slots; the first slot among equally near ones.

    Square roots are computed only if the square is smaller: roots of different squares can be equal, which is a tie.

    Source: exhaustive search.

    Args:
        slots: [K], slot indices, K >= 1.
        z: [M, X], all positions [normalized embedding].
        q: [Q, X] [normalized embedding].
        is_linf: Whether the metric is linf; else it is l2.

    Returns:
        [Q], slot indices.
    """
    nearest = np.full(len(q), slots[0])
    smallest = np.full(len(q), np.inf)  # squared distance for l2
    for slot in slots:
        for row in range(len(q)):
            total = 0.0
            for i in range(q.shape[1]):
                gap = abs(z[slot, i] - q[row, i])
                total = max(total, gap) if is_linf else total + gap * gap
            if total < smallest[row] and (is_linf or np.sqrt(total) < np.sqrt(smallest[row])):
                nearest[row], smallest[row] = slot, total
    return nearest


class FlatIndex(Protocol):
    """The methods of `GpuIndexFlat` and `IndexFlat` of faiss that are used."""

    metric_arg: float

    def add(self, x: torch.Tensor, /) -> None:
        """Add vectors. Source: `add` of a faiss index.

        Args:
            x: [M, X] float32 [normalized embedding].
        """
        ...

    def search(self, x: torch.Tensor, k: int, /) -> tuple[torch.Tensor, torch.Tensor]:
        """Find the k nearest vectors of each query. Source: `search` of a faiss index.

        Args:
            x: [Q, X] float32 [normalized embedding].
            k: Number of neighbors, K.

        Returns:
            Distances [Q, K] [normalized embedding] and indices [Q, K].
        """
        ...


MakeFlat = Callable[[int, Metric], FlatIndex]


def flat_on_gpu(device: str) -> MakeFlat:
    """Return a function that makes flat faiss indexes on a device: "cuda" or "cuda:1"."""
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


class FaissGpuIndex:
    """Nearest-neighbor search at any distance on CUDA, with faiss."""

    def __init__(self, metric: Metric, *, device: str, make_flat: MakeFlat | None = None) -> None:
        """Make an empty index on a device; tests replace faiss by `make_flat`."""
        self._make_flat = make_flat or flat_on_gpu(device)
        self._metric: Metric = metric
        self._exact = BruteIndex(metric, device=device)
        self._flat: FlatIndex | None = None

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
        z_MX = self._exact.z
        self._mean_X = z_MX.mean(0)
        centered_MX = z_MX - self._mean_X
        self._reach = centered_MX.abs().max()
        self._flat = self._make_flat(z.shape[1], self._metric)
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
        slot_Q, distance_Q, farthest_Q = select_nearest_candidates(
            q_QX, z_MX, slots_QK.long(), is_linf=self._metric == "linf"
        )
        reach = torch.maximum(self._reach, centered_QX.abs().max())
        rounding_Q = rounding_error(farthest_Q, reach=reach, dim=q.shape[1])
        is_certain_Q = (distance_Q + 2 * rounding_Q < farthest_Q) | (slots_QK.shape[1] == len(z_MX))
        slots, distances, is_certain = (x.cpu().numpy() for x in (slot_Q, distance_Q, is_certain_Q))
        if not is_certain.all():
            slots[~is_certain], distances[~is_certain] = self._exact.query(q[~is_certain])
        return slots, distances


def rounding_error(distance: torch.Tensor, *, reach: torch.Tensor, dim: int) -> torch.Tensor:
    """Compute an upper bound of the float32 rounding error of distances.

    Source: own bound from the machine epsilon of float32.

    Args:
        distance: Distances, any shape [normalized embedding].
        reach: Largest absolute coordinate, a scalar [normalized embedding].
        dim: Number of coordinates.

    Returns:
        The bound, same shape and unit as `distance`.
    """
    eps = torch.finfo(torch.float32).eps
    return eps * (2.0 * dim**0.5 * reach + (dim + 16) * distance)


def select_nearest_candidates(
    q_QX: torch.Tensor, z_MX: torch.Tensor, slots_QK: torch.Tensor, *, is_linf: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Select the nearest candidate of each query by float64 differences.

    Source: the nearest node of Algorithm 2.

    Args:
        q_QX: Queries [Q, X] [normalized embedding].
        z_MX: Positions of all nodes [M, X] [normalized embedding].
        slots_QK: Slot indices of the candidates [Q, K].
        is_linf: Whether the metric is linf; else it is l2.

    Returns:
        [Q] slot index of the nearest candidate (the lowest with equal distances), [Q] its distance, and [Q] the
        distance of the farthest candidate.
    """
    gap_QKX = (z_MX[slots_QK] - q_QX[:, None]).abs()
    distance_QK = gap_QKX.amax(dim=2) if is_linf else gap_QKX.pow(2).sum(dim=2).sqrt()
    nearest_Q = distance_QK.min(dim=1).values
    is_nearest_QK = distance_QK == nearest_Q[:, None]
    slots_Q = torch.where(is_nearest_QK, slots_QK, len(z_MX)).min(dim=1).values
    return slots_Q, nearest_Q, distance_QK.amax(dim=1)
