"""Place any number of points into a layout that is ready: each by its nearest landmarks alone.

A point's place is a function of its own coordinates and of the landmarks. It does not depend on which other points
are placed beside it, in what order, in which chunk or by how many threads. Nothing is learned or moved here.

A point weighs its nearest landmarks as t-SNE weighs neighbors, by a normal kernel of fixed perplexity, and then goes
downhill: from the weighted mean, in a fixed number of steps, to a place where the Student kernel of the layout agrees.
The mean alone puts a point whose neighbors lie in two clusters into the empty middle; the steps settle it in one.
Source: Poličar, Stražar, Zupan 2023, "Embedding to reference t-SNE space addresses batch effects in single-cell
classification": perplexity 5, attraction by landmarks only. The repulsion that they keep is left out: it needs
every landmark at every step, and the steps here are fixed-point ones, which need no rate.
"""

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy.spatial import KDTree

from app.analysis.projections.linear import Coordinates, Progress, ignore_progress

NEIGHBORS = 15
PERPLEXITY = 5.0
STEPS = 10
CHUNK = 8192  # points between two reports; bounds what is in memory at a time
_BISECTIONS = 40


def place(
    landmarks: NDArray[np.floating],
    layout: NDArray[np.floating],
    points: NDArray[np.floating],
    *,
    n_jobs: int = 1,
    progress: Progress = ignore_progress,
) -> Coordinates:
    """Give each of the points [n, d] its place in the layout of the landmarks.

    Args:
        landmarks: [L, d], finite, one at least.
        layout: Their places [L, 2].
        points: Points [n, d] of the same space, finite.
        n_jobs: Threads; they change nothing but the time.
        progress: Receives the finished part in [0, 1] after each chunk; may raise to cancel.

    Returns:
        Places [n, 2] in float32.
    """
    drawn = np.empty((len(points), 2), np.float32)
    place_chunk = _make_placer(landmarks, layout, points, drawn)
    starts = range(0, len(points), CHUNK)
    pool = ThreadPoolExecutor(n_jobs)
    try:
        for done, _ in enumerate(pool.map(place_chunk, starts), 1):
            progress(done / len(starts))
    finally:
        pool.shutdown(cancel_futures=True)
    return drawn


def _make_placer(
    landmarks: NDArray[np.floating], layout: NDArray[np.floating], points: NDArray[np.floating], drawn: Coordinates
) -> Callable[[int], None]:
    tree = KDTree(landmarks.astype(np.float64))
    places = np.ascontiguousarray(layout, dtype=np.float64)
    k = min(NEIGHBORS, len(landmarks))

    def place_chunk(start: int) -> None:
        chunk = points[start : start + CHUNK].astype(np.float64)
        distance, index = (np.reshape(part, (len(chunk), k)) for part in tree.query(chunk, k=k))
        _go_downhill(distance, index, places, PERPLEXITY, STEPS, drawn[start : start + CHUNK])

    return place_chunk


@njit(cache=True, nogil=True)
def _weigh(distance: NDArray[Any], target: float, weight: NDArray[Any]) -> None:
    """Fill in weights that sum to 1, and whose entropy is `target` where the distances allow it (bisection)."""
    k = distance.shape[0]
    mean = (distance**2).mean()
    low, high, precision = 0.0, math.inf, 1.0 / mean if mean > 0 else 1.0
    for _ in range(_BISECTIONS):
        total, moment = 0.0, 0.0
        for j in range(k):
            beyond = distance[j] ** 2 - distance[0] ** 2
            weight[j] = math.exp(-precision * beyond)
            total += weight[j]
            moment += precision * beyond * weight[j]
        excess = math.log(total) + moment / total - target
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
def _go_downhill(
    distance: NDArray[Any],
    index: NDArray[Any],
    layout: NDArray[Any],
    perplexity: float,
    steps: int,
    drawn: NDArray[Any],
) -> None:
    """Write the places of points whose nearest landmarks are given, nearest first."""
    n, k = distance.shape
    target = math.log(min(perplexity, k))
    weight = np.empty(k)
    for i in range(n):
        _weigh(distance[i], target, weight)
        x, y = 0.0, 0.0
        for j in range(k):
            x += weight[j] * layout[index[i, j], 0]
            y += weight[j] * layout[index[i, j], 1]
        for _ in range(steps):
            total, to_x, to_y = 0.0, 0.0, 0.0
            for j in range(k):
                at_x, at_y = layout[index[i, j], 0], layout[index[i, j], 1]
                pull = weight[j] / (1.0 + (x - at_x) ** 2 + (y - at_y) ** 2)
                total += pull
                to_x += pull * at_x
                to_y += pull * at_y
            x, y = to_x / total, to_y / total
        drawn[i, 0], drawn[i, 1] = x, y
