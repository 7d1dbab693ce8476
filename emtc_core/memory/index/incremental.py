"""Nearest-neighbor search at any distance while nodes are added and moved.

A tree takes too long to be rebuilt at every episode, and few nodes change in one episode. So a built index is combined
with the list of slots written since its build (the tail). Queries are compared with each node of the tail, and with the
result of the index. The result equals that of a new index, with ties (there is a test). The index is rebuilt when the
tail is a fixed fraction of the nodes: O(log M) amortized.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from emtc_core.memory.index.base import Metric, NeighborIndex, Points, Slots

LONGEST_TAIL = 2048
TAIL_SHARE = 0.05
"""The index is rebuilt if the tail is longer than LONGEST_TAIL and than this fraction of the nodes."""


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
