"""Nearest node at any distance while nodes come and move: a built index plus the few nodes written since.

A tree costs too much to rebuild at every episode, and few nodes change between two. Those that were written
since the last build (the tail) are compared one by one; the index answers for the others. Equal to an index
built anew (a test), ties included. Rebuilt when the tail has grown to a share of the nodes, O(log M) amortised.
"""

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from emtc_core.memory.index.base import CKDTreeIndex, Metric, NeighborIndex, Points, Slots
from emtc_core.memory.index.faiss_gpu import BruteIndex, FaissGpuIndex, is_available

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
    return _make_faiss(metric, device) if is_available() else BruteIndex(metric, device=device)


def _make_faiss(metric: Metric, device: str) -> NeighborIndex:
    """Take faiss if it answers a first question: wheels for another GPU or driver load and then fail."""
    try:
        index = FaissGpuIndex(metric, device=device)
        index.build(np.zeros((2, 4)))
        index.query(np.zeros((1, 4)))
    except Exception as exc:  # what a foreign library raises on a GPU it was not made for is not documented
        reason = str(exc).strip().partition("\n")[0]
        _LOG.warning("faiss does not search on this GPU (%s). Every node is compared instead: same answers.", reason)
        return BruteIndex(metric, device=device)
    return index


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
