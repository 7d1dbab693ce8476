"""Distinct points and exact nearest neighbors. The order of the neighbors does not depend on the number of threads."""

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import KDTree


def find_distinct_points(points: NDArray[np.floating]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Find the distinct points, in the order of their first rows.

    Returns:
        The first row [k] of each distinct point, and for each row [n] the index of its point.
    """
    # `np.unique` sorts by coordinates; `order` sorts its points by first row.
    _, first_rows, sorted_index_of_row = np.unique(points, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first_rows)
    rank_of_sorted_index = np.argsort(order)  # the inverse permutation
    return first_rows[order], rank_of_sorted_index[sorted_index_of_row.ravel()]


def find_neighbors(
    points: NDArray[np.floating], k: int, *, n_jobs: int = 1
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Find the k nearest other points of each point.

    Returns:
        Indices [n, k] and distances [n, k], nearest first, without the point itself.
    """
    tree = KDTree(points.astype(np.float64))
    distance, index = (np.asarray(array) for array in tree.query(points, k=k + 1, workers=n_jobs))
    is_removed = index == np.arange(len(points))[:, None]  # the point itself
    # With more than k points at equal coordinates, the point itself can be missing. Remove the last point instead.
    is_removed[~is_removed.any(axis=1), -1] = True
    index = index[~is_removed].reshape(-1, k)
    distance = distance[~is_removed].reshape(-1, k)
    return index.astype(np.int64), distance.astype(np.float64)
