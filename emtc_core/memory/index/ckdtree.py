"""SciPy's k-d tree: nearest node at any distance on CPU."""

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import KDTree  # cKDTree behind it

from emtc_core.memory.index.base import Metric, Points, Slots

TIE = 1e-12  # relative; the tree may sum squares in another order than another index


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
