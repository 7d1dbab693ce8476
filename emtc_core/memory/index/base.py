"""What a search index over embedded nodes can do, and the one for any distance on the CPU, SciPy's k-d tree.

Four indexes give the same answers (a test): the nearest node, the lowest slot among equals.

    grid       CPU   within a fixed radius only; live: nodes come, move and go one by one in O(1)
    ckdtree    CPU   any distance; built for a batch of queries
    brute      any   any distance; exact differences in float64 on the device
    faiss_gpu  CUDA  any distance; candidates by faiss, exact order among them

The memory's own lookups, which end at delta, use the grid; "nearest at any distance" uses one of the others.
Coordinates are those in which delta is tested, float64, so search and test share space and metric (A12).
"""

from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import KDTree  # cKDTree behind it

Metric = Literal["l2", "linf"]
Points = NDArray[np.float64]  # [M, X]
Slots = NDArray[np.int64]  # [Q]

TIE = 1e-12  # relative; the tree may sum squares in another order than another index


class NeighborIndex(Protocol):
    """Nearest neighbours among nodes given as rows; a row's number is its slot."""

    def build(self, z: Points) -> None:
        """Forget everything and index these nodes."""
        ...

    def query(self, q: Points) -> tuple[Slots, NDArray[np.float64]]:
        """Find the nearest node of each query.

        Returns:
            (slots, distances) [Q]; slot -1 and distance inf where there is none (within the radius, for an
            index that has one). Among equally near nodes the lowest slot.
        """
        ...


class CKDTreeIndex:
    """Exact, built for a batch of queries; equal distances give the lowest slot."""

    def __init__(self, metric: Metric) -> None:
        self._p = 2.0 if metric == "l2" else np.inf
        self._tree: KDTree | None = None

    def build(self, z: Points) -> None:
        """Index a copy of all rows."""
        self._tree = KDTree(z, copy_data=True) if len(z) else None

    def query(self, q: Points) -> tuple[Slots, NDArray[np.float64]]:
        """Find the nearest node of each query."""
        if self._tree is None:
            return np.full(len(q), -1), np.full(len(q), np.inf)
        found = self._tree.query(q, k=2, p=self._p, workers=-1)
        distances, slots = np.asarray(found[0], np.float64), np.asarray(found[1], np.int64)
        is_tie = distances[:, 1] <= distances[:, 0] * (1 + TIE)
        nearest = slots[:, 0].copy()
        for row in np.flatnonzero(is_tie):  # rare: two nodes in one place, or symmetric about the query
            reach = distances[row, 0] * (1 + TIE)
            nearest[row] = min(self._tree.query_ball_point(q[row], reach, p=self._p))
        return nearest, distances[:, 0]
