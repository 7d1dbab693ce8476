"""Exact nearest neighbors of few-dimensional points, in a fixed order whatever the number of threads."""

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import KDTree


def find_neighbors(
    points: NDArray[np.floating], k: int, *, n_jobs: int = 1
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Find the k nearest other points of each point.

    Returns:
        Indices [n, k] and distances [n, k], nearest first, the point itself left out.
    """
    tree = KDTree(points.astype(np.float64))
    distance, index = (np.asarray(part) for part in tree.query(points, k=k + 1, workers=n_jobs))
    own = index == np.arange(len(points))[:, None]
    own[~own.any(axis=1), -1] = True  # k + 1 or more twins stand in its place: leave the last one out
    keep = ~own
    return index[keep].reshape(-1, k).astype(np.int64), distance[keep].reshape(-1, k).astype(np.float64)
