"""Choose which of N memory nodes a picture shows: stratified by return × time, seeded, or all of them.

Exact nearest neighbors of few-dimensional points, in a fixed order whatever the number of threads.
"""

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


STRATA = 10  # in each direction


def stratified_rows(h: NDArray[np.floating], t: NDArray[np.integer], *, n: int, seed: int) -> NDArray[np.int64]:
    """Choose n rows so that every stratum of return × time gives the same share of its nodes.

    Strata are deciles of each quantity. Shares are rounded by largest remainder, so exactly n rows come
    back, ascending; all rows when there are no more than n.
    """
    total = len(h)
    if total <= n:
        return np.arange(total, dtype=np.int64)
    stratum = _deciles(h) * STRATA + _deciles(t)
    counts = np.bincount(stratum, minlength=STRATA * STRATA)
    exact = counts * (n / total)
    quota = np.floor(exact).astype(np.int64)
    short = n - int(quota.sum())
    quota[np.argsort(quota - exact, kind="stable")[:short]] += 1
    shuffled = np.random.default_rng(seed).permutation(total)
    order = shuffled[np.argsort(stratum[shuffled], kind="stable")]
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    rank = np.arange(total) - np.repeat(starts, counts)
    return np.sort(order[rank < np.repeat(quota, counts)])


def _deciles(values: NDArray[np.generic]) -> NDArray[np.int64]:
    """Number the decile of each value, 0…9; equal values share one."""
    finite = np.nan_to_num(values.astype(np.float64))
    edges = np.quantile(finite, np.linspace(0, 1, STRATA + 1)[1:-1])
    return np.searchsorted(edges, finite, side="right").astype(np.int64)
