"""Nearest node at any distance while nodes come and move: a built index plus the few nodes written since.

A tree costs too much to rebuild at every episode, and few nodes change between two. Those that were written
since the last build (the tail) are compared one by one; the index answers for the others. Equal to an index
built anew (a test), ties included. Rebuilt when the tail has grown to a share of the nodes, O(log M) amortised.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from emtc_core.memory.index.base import Metric, NeighborIndex, Points, Slots

LONGEST_TAIL = 2048
TAIL_SHARE = 0.05


class SettledIndex:
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
        slots = self._settle(z).query(q)[0]
        if not len(self._tail):
            return slots
        has_moved = self._has_moved(z, slots)
        slots[has_moved] = self._nearest_of(np.arange(len(z)), z, q[has_moved])
        rest = ~has_moved
        slots[rest] = self._nearer(z, q[rest], slots[rest], self._nearest_of(self._tail, z, q[rest]))
        return slots

    def _settle(self, z: Points) -> NeighborIndex:
        """Make or build the index anew where it is due."""
        index = self._index = self._index or self._make_index()
        if self._built is None or len(self._tail) > max(LONGEST_TAIL, TAIL_SHARE * len(self._built)):
            index.build(z)
            self._built, self._tail = z.copy(), np.zeros(0, np.int64)
        return index

    def _has_moved(self, z: Points, slots: Slots) -> NDArray[np.bool_]:
        """Tell whose answer no longer stands where the index saw it; its true neighbour must be sought anew."""
        assert self._built is not None
        return (slots < 0) | (z[slots] != self._built[np.maximum(slots, 0)]).any(axis=1)

    def _nearest_of(self, slots: Slots, z: Points, q: Points) -> Slots:
        """Compare with each of some slots, sorted; the first minimum is the lowest slot."""
        found = [slots[np.argmin(self._distance(z[slots], row), axis=0)] for row in q]
        return np.array(found, np.int64)

    def _nearer(self, z: Points, q: Points, a: Slots, b: Slots) -> Slots:
        distance_a, distance_b = self._distance(z[a], q), self._distance(z[b], q)
        takes_b = (distance_b < distance_a) | ((distance_b == distance_a) & (b < a))
        return np.where(takes_b, b, a)

    def _distance(self, z: Points, q: Points) -> NDArray[np.float64]:
        return np.linalg.norm(z - q, ord=self._p, axis=1)
