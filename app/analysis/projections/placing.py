"""Placement of additional points in a finished layout, each by its nearest landmarks.

The position of a point depends only on its own coordinates and on the landmarks: not on the other points, their order,
the chunks or the number of threads. The landmarks do not move.

The nearest landmarks of a point get weights as in t-SNE, by a normal kernel of fixed perplexity. The point starts at
the weighted mean of the landmarks' positions. Ten fixed-point steps move it to a position that agrees with the Student
kernel of the layout. They are needed for a point with neighbors in two clusters: the weighted mean is in the empty
space between the clusters, and the steps move the point into one of them.

Source: Poličar, Stražar, Zupan 2023, "Embedding to reference t-SNE space addresses batch effects in single-cell
classification": perplexity 5, attraction by landmarks only. Two differences: there is no repulsion, because it needs
all landmarks in each step; and fixed-point steps replace gradient steps, so there is no learning rate.
"""

import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy.spatial import KDTree

from app.analysis.projections.types import Coordinates, Progress, ignore_progress

N_NEAREST_LANDMARKS = 15
PERPLEXITY = 5.0
N_FIXED_POINT_STEPS = 10
CHUNK_SIZE = 8192
"""Number of points between two progress reports. It also limits the memory that is needed."""
_MAX_BISECTIONS = 40


def place_points(
    landmarks: NDArray[np.floating],
    layout: NDArray[np.floating],
    points: NDArray[np.floating],
    *,
    n_jobs: int = 1,
    progress: Progress = ignore_progress,
) -> Coordinates:
    """Compute the positions of points in the layout of the landmarks.

    Args:
        landmarks: [L, d], finite, at least one.
        layout: Positions [L, 2] of the landmarks.
        points: Points [n, d] in the same space, finite.
        n_jobs: Number of threads; the positions do not depend on it.
        progress: Called with the finished fraction in [0, 1] after each chunk; can raise to cancel.

    Returns:
        Positions [n, 2] in float32.
    """
    positions = np.empty((len(points), 2), np.float32)
    tree = KDTree(landmarks.astype(np.float64))
    landmark_positions = np.ascontiguousarray(layout, dtype=np.float64)
    k = min(N_NEAREST_LANDMARKS, len(landmarks))

    def place_chunk(start: int) -> None:
        rows = slice(start, start + CHUNK_SIZE)
        chunk = points[rows].astype(np.float64)
        distance, index = (np.reshape(array, (len(chunk), k)) for array in tree.query(chunk, k=k))
        _compute_positions(distance, index, landmark_positions, PERPLEXITY, N_FIXED_POINT_STEPS, positions[rows])

    starts = range(0, len(points), CHUNK_SIZE)
    pool = ThreadPoolExecutor(n_jobs)
    try:
        for n_chunks, _ in enumerate(pool.map(place_chunk, starts), 1):
            progress(n_chunks / len(starts))
    finally:
        pool.shutdown(cancel_futures=True)
    return positions


@njit(cache=True, nogil=True)
def _compute_weights(distance: NDArray[Any], target_entropy: float, weight: NDArray[Any]) -> None:
    """Write normal weights of one point into `weight` [k]. Their sum is 1.

    The precision of the normal kernel is found by bisection: the entropy of the weights is `target_entropy`, or as near
    to it as the distances allow.
    """
    k = distance.shape[0]
    mean_square = (distance**2).mean()
    precision = 1.0 / mean_square if mean_square > 0 else 1.0
    low = 0.0
    high = math.inf
    for _ in range(_MAX_BISECTIONS):
        total = 0.0
        moment = 0.0
        for j in range(k):
            difference = distance[j] ** 2 - distance[0] ** 2
            weight[j] = math.exp(-precision * difference)
            total += weight[j]
            moment += precision * difference * weight[j]
        entropy = math.log(total) + moment / total
        excess = entropy - target_entropy
        if abs(excess) < 1e-4:
            break
        if excess > 0:
            low = precision
            precision = precision * 2 if high == math.inf else (low + high) / 2
        else:
            high = precision
            precision = (low + high) / 2
    weight /= weight.sum()


@njit(cache=True, nogil=True)
def _compute_positions(
    distance: NDArray[Any],
    index: NDArray[Any],
    layout: NDArray[Any],
    perplexity: float,
    n_steps: int,
    positions: NDArray[Any],
) -> None:
    """Write the positions of points into `positions` [n, 2].

    `distance` and `index` [n, k] are the nearest landmarks of each point, nearest first.
    """
    n, k = distance.shape
    target_entropy = math.log(min(perplexity, k))
    weight = np.empty(k)
    for i in range(n):
        _compute_weights(distance[i], target_entropy, weight)
        # start: the weighted mean of the positions of the landmarks
        x = 0.0
        y = 0.0
        for j in range(k):
            x += weight[j] * layout[index[i, j], 0]
            y += weight[j] * layout[index[i, j], 1]
        for _ in range(n_steps):
            total = 0.0
            sum_x = 0.0
            sum_y = 0.0
            for j in range(k):
                landmark_x = layout[index[i, j], 0]
                landmark_y = layout[index[i, j], 1]
                attraction = weight[j] / (1.0 + (x - landmark_x) ** 2 + (y - landmark_y) ** 2)
                total += attraction
                sum_x += attraction * landmark_x
                sum_y += attraction * landmark_y
            x = sum_x / total
            y = sum_y / total
        positions[i, 0] = x
        positions[i, 1] = y
