"""Interface of nearest-neighbor indexes over nodes, and the index with SciPy's k-d tree.

All indexes give the same results (there is a test): the nearest node; with equal distances, the lowest slot.

    GridIndex     CPU   within a fixed radius only; nodes are added, moved and removed one by one in O(1)
    CKDTreeIndex  CPU   any distance; built for a batch of queries
    BruteIndex    CUDA  any distance; exact differences in float64
    FaissIndex    CUDA  any distance; candidates by faiss, exact order among them

Lookups within delta use the grid. `memory.index_device` chooses the index for any distance. Positions are scaled
embeddings in float64, so that the search and the test of delta use the same space and metric (A12).
"""

from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import KDTree  # cKDTree behind it

Metric = Literal["l2", "linf"]
Points = NDArray[np.float64]  # [M, X] positions of nodes or queries [normalized embedding]
Slots = NDArray[np.int64]  # [Q] slot indices

TIE = 1e-12  # relative tolerance for equal distances: indexes may sum squares in different orders


class NeighborIndex(Protocol):
    """Nearest-neighbor search among nodes, given as rows; the row number is the slot."""

    def build(self, z: Points) -> None:
        """Index these nodes, and drop all earlier nodes.

        Source: implementation detail.

        Args:
            z: [M, X] [normalized embedding].
        """
        ...

    def query(self, q: Points) -> tuple[Slots, NDArray[np.float64]]:
        """Find the nearest node of each query.

        Source: the nearest node of Algorithm 2.

        Args:
            q: [Q, X] [normalized embedding].

        Returns:
            Slot indices [Q] and distances [Q] [normalized embedding]; slot -1 and distance inf if there is no node, or
            none within the radius of the index. With equal distances, the lowest slot.
        """
        ...


class CKDTreeIndex:
    """Exact nearest-neighbor search with SciPy's k-d tree."""

    def __init__(self, metric: Metric) -> None:
        self._p = 2.0 if metric == "l2" else np.inf
        self._tree: KDTree | None = None

    def build(self, z: Points) -> None:
        """Build the tree from a copy of all rows.

        Source: `scipy.spatial.KDTree`.

        Args:
            z: [M, X] [normalized embedding].
        """
        self._tree = KDTree(z, copy_data=True) if len(z) else None

    def query(self, q: Points) -> tuple[Slots, NDArray[np.float64]]:
        """Find the nearest node of each query.

        Source: `scipy.spatial.KDTree`, with ties resolved to the lowest slot.

        Args:
            q: [Q, X] [normalized embedding].

        Returns:
            Slot indices [Q] and distances [Q] [normalized embedding]; (-1, inf) if there is no node.
        """
        if self._tree is None:
            return np.full(len(q), -1), np.full(len(q), np.inf)
        result = self._tree.query(q, k=2, p=self._p, workers=-1)
        distances, slots = np.asarray(result[0], np.float64), np.asarray(result[1], np.int64)
        is_tie = distances[:, 1] <= distances[:, 0] * (1 + TIE)
        nearest = slots[:, 0].copy()
        for row in np.flatnonzero(is_tie):  # rare: two nodes at one position, or symmetric about the query
            reach = distances[row, 0] * (1 + TIE)
            nearest[row] = min(self._tree.query_ball_point(q[row], reach, p=self._p))
        return nearest, distances[:, 0]
