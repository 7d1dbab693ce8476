"""Live index: a hash grid over the space where delta is tested.

Cells are four radii wide over the first four coordinates. A ball of one radius meets at most two cells per
coordinate (five cells on average), and each node sits in the chain of its cell's hash bucket, so nodes are
added, moved and removed in O(1) and a query reads a handful of nodes. Two cells that share a bucket cost
time, not correctness: every candidate's distance is computed. The walk of Algorithm 2 runs inside these
kernels, hence each state sees what the states after it in its own episode did.
"""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from emtc_core.memory.index.base import Metric, Points, Slots
from emtc_core.memory.nodes import Int

CELL_RADII = 4.0
SLACK = 1.0 + 1e-6  # keeps a node on the rim of the ball inside the visited cells despite rounding
NONE = -1


class GridIndex:
    """Nodes within `radius` (l2: strictly closer; linf: at most as far), nearest first."""

    def __init__(self, radius: float, metric: Metric) -> None:
        self.radius = radius
        self.is_linf = metric == "linf"
        self.z: Points = np.zeros((0, 1))
        self._room_for(0)

    def build(self, z: Points, size: int | None = None) -> None:
        """Index the first `size` rows of `z` (all), which stays the caller's and is read again by `query`."""
        self._room_for(len(z))
        self.z = z
        insert_rows(self.buckets, self.chain, z, len(z) if size is None else size, self.radius)

    def query(self, q: Points) -> tuple[Slots, NDArray[np.float64]]:
        """Find the nearest node within the radius, -1 and inf where there is none."""
        return query_rows(self.buckets, self.z, self.chain, q, self.radius, self.is_linf)

    def reserve(self, z: Points, size: int) -> None:
        """Follow a table whose `z` may have been copied into a longer one; `size` rows are occupied."""
        if len(z) > len(self.chain):
            self.build(z, size)
        self.z = z

    def count(self) -> int:
        """Count the nodes in all chains, for checks."""
        return count_nodes(self.buckets, self.chain)

    def _room_for(self, rows: int) -> None:
        buckets = 1 << max(int(2 * rows - 1).bit_length(), 4)
        self.buckets = np.full(buckets, NONE, np.int32)
        self.chain = np.full((rows, 2), NONE, np.int32)  # neighbors in the bucket: previous, next


@njit(cache=True, nogil=True)
def _hash(a: Int, b: Int, c: Int, d: Int, buckets: Int) -> Int:  # pragma: no cover  # compiled
    mixed = np.uint64(a) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(29)
    mixed = (mixed + np.uint64(b)) * np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(31)
    mixed = (mixed + np.uint64(c)) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(30)
    mixed = (mixed + np.uint64(d)) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(32)
    return np.int64(mixed & np.uint64(buckets - 1))


@njit(cache=True, nogil=True)
def _cell(value: float, radius: float) -> Int:  # pragma: no cover  # compiled
    return np.int64(np.floor(value / (CELL_RADII * radius)))


@njit(cache=True, nogil=True)
def _bucket_of(point: NDArray[Any], radius: float, buckets: Int) -> Int:  # pragma: no cover  # compiled
    dim = len(point)
    a = _cell(point[0], radius)
    b = _cell(point[1], radius) if dim > 1 else 0
    c = _cell(point[2], radius) if dim > 2 else 0
    d = _cell(point[3], radius) if dim > 3 else 0
    return _hash(a, b, c, d, buckets)


@njit(cache=True, nogil=True)
def insert(
    buckets: NDArray[Any], chain: NDArray[Any], z: NDArray[Any], slot: Int, radius: float
) -> None:  # pragma: no cover
    """Add the node whose coordinates stand in its row of `z`."""
    bucket = _bucket_of(z[slot], radius, len(buckets))
    first = buckets[bucket]
    chain[slot, 0] = NONE
    chain[slot, 1] = first
    if first >= 0:
        chain[first, 0] = slot
    buckets[bucket] = slot


@njit(cache=True, nogil=True)
def remove(
    buckets: NDArray[Any], chain: NDArray[Any], z: NDArray[Any], slot: Int, radius: float
) -> None:  # pragma: no cover
    """Take out a node; its row of `z` must still hold the coordinates it was added with."""
    before, after = chain[slot, 0], chain[slot, 1]
    if before >= 0:
        chain[before, 1] = after
    else:
        buckets[_bucket_of(z[slot], radius, len(buckets))] = after
    if after >= 0:
        chain[after, 0] = before


@njit(cache=True, nogil=True)
def insert_rows(
    buckets: NDArray[Any], chain: NDArray[Any], z: NDArray[Any], rows: Int, radius: float
) -> None:  # pragma: no cover
    """Add the first `rows` nodes."""
    for slot in range(rows):
        insert(buckets, chain, z, slot, radius)


@njit(cache=True, nogil=True)
def count_nodes(buckets: NDArray[Any], chain: NDArray[Any]) -> int:  # pragma: no cover  # compiled
    """Walk every chain."""
    count = 0
    for first in buckets:
        slot = first
        while slot >= 0:
            count += 1
            slot = chain[slot, 1]
    return count


@njit(cache=True, nogil=True)
def distance(p: NDArray[Any], q: NDArray[Any], is_linf: bool) -> float:  # pragma: no cover  # compiled
    """Euclidean or largest-coordinate distance."""
    total = 0.0
    for i in range(len(p)):
        gap = abs(p[i] - q[i])
        total = max(total, gap) if is_linf else total + gap * gap
    return total if is_linf else np.sqrt(total)


@njit(cache=True, nogil=True)
def _scan(
    first: Int, z: NDArray[Any], chain: NDArray[Any], q: NDArray[Any], is_linf: bool, best: Int, best_distance: float
) -> tuple[Int, float]:  # pragma: no cover  # compiled
    slot = first
    while slot >= 0:
        d = distance(z[slot], q, is_linf)
        if d < best_distance or (d == best_distance and slot < best):
            best, best_distance = slot, d
        slot = chain[slot, 1]
    return best, best_distance


@njit(cache=True, nogil=True)
def nearest(
    buckets: NDArray[Any], z: NDArray[Any], chain: NDArray[Any], q: NDArray[Any], radius: float, is_linf: bool
) -> tuple[Int, float]:  # pragma: no cover  # compiled
    """Find the nearest node of one query within the radius; (-1, inf) where there is none."""
    return nearest_in_cells(buckets, z, chain, q, radius, radius, is_linf)


@njit(cache=True, nogil=True)
def nearest_in_cells(
    buckets: NDArray[Any],
    z: NDArray[Any],
    chain: NDArray[Any],
    q: NDArray[Any],
    radius: float,
    cell_radius: float,
    is_linf: bool,
) -> tuple[Int, float]:  # pragma: no cover  # compiled
    """As `nearest`, among nodes that were inserted with another radius: smaller cells where nodes crowd."""
    dim = len(q)
    reach = radius * SLACK
    best, best_distance = np.int64(NONE), np.inf
    for a in range(_cell(q[0] - reach, cell_radius), _cell(q[0] + reach, cell_radius) + 1):
        b0, b1 = (_cell(q[1] - reach, cell_radius), _cell(q[1] + reach, cell_radius)) if dim > 1 else (0, 0)
        for b in range(b0, b1 + 1):
            c0, c1 = (_cell(q[2] - reach, cell_radius), _cell(q[2] + reach, cell_radius)) if dim > 2 else (0, 0)
            for c in range(c0, c1 + 1):
                d0, d1 = (_cell(q[3] - reach, cell_radius), _cell(q[3] + reach, cell_radius)) if dim > 3 else (0, 0)
                for d in range(d0, d1 + 1):
                    first = buckets[_hash(a, b, c, d, len(buckets))]
                    best, best_distance = _scan(first, z, chain, q, is_linf, best, best_distance)
    if best_distance < radius or (is_linf and best_distance == radius):
        return best, best_distance
    return NONE, np.inf


@njit(cache=True, nogil=True)
def query_rows(
    buckets: NDArray[Any], z: NDArray[Any], chain: NDArray[Any], q: NDArray[Any], radius: float, is_linf: bool
) -> tuple[NDArray[Any], NDArray[Any]]:  # pragma: no cover  # compiled
    """Answer all rows of `q`."""
    slots = np.empty(len(q), np.int64)
    distances = np.empty(len(q))
    for i in range(len(q)):
        slots[i], distances[i] = nearest(buckets, z, chain, q[i], radius, is_linf)
    return slots, distances
