"""Distinct points and exact nearest neighbors. The order of the neighbors does not depend on the number of threads."""

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import KDTree


def find_distinct_points(points: NDArray[np.floating]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Find the distinct points, in the order of their first rows.

    Returns:
        The first row [k] of each distinct point, and for each row [n] the index of its point.
    """
    # `np.unique` numbers the distinct points by their coordinates. Renumber them by their first rows.
    _, first_rows, old_number_of_row = np.unique(points, axis=0, return_index=True, return_inverse=True)
    old_numbers = np.argsort(first_rows)  # the old number of each point, in the new order
    new_numbers = np.empty_like(old_numbers)  # the new number of each point, in the old order
    new_numbers[old_numbers] = np.arange(len(old_numbers))
    return first_rows[old_numbers], new_numbers[old_number_of_row.ravel()]


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
