"""Seeded sample of the nodes of a memory snapshot, stratified by return × time."""

import numpy as np
from numpy.typing import NDArray

N_DECILES = 10


def sample_stratified_rows(
    returns: NDArray[np.floating], time_steps: NDArray[np.integer], *, n: int, seed: int
) -> NDArray[np.int64]:
    """Sample n rows with the same fraction of nodes from each stratum of return × time.

    A stratum is one decile of the return combined with one decile of the time. The number of rows per stratum is
    rounded by the method of largest remainders.

    Args:
        returns: Return of each node.
        time_steps: Time step of each node in its episode.
        n: Number of rows.
        seed: Random seed.

    Returns:
        Exactly n rows, ascending; all rows if there are at most n.
    """
    total = len(returns)
    if total <= n:
        return np.arange(total, dtype=np.int64)
    stratum = _compute_deciles(returns) * N_DECILES + _compute_deciles(time_steps)
    counts = np.bincount(stratum, minlength=N_DECILES * N_DECILES)
    # The number of rows of each stratum, rounded down.
    exact_quota = counts * (n / total)
    quota = np.floor(exact_quota).astype(np.int64)
    # The strata with the largest remainders get one row more, until the sum is n.
    n_missing = n - int(quota.sum())
    by_remainder = np.argsort(quota - exact_quota, kind="stable")
    quota[by_remainder[:n_missing]] += 1
    # The rows in the order of the strata, and in random order within a stratum.
    shuffled = np.random.default_rng(seed).permutation(total)
    order = shuffled[np.argsort(stratum[shuffled], kind="stable")]
    # The first `quota` rows of each stratum are selected.
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    rank_in_stratum = np.arange(total) - np.repeat(starts, counts)
    return np.sort(order[rank_in_stratum < np.repeat(quota, counts)])


def _compute_deciles(values: NDArray[np.generic]) -> NDArray[np.int64]:
    """Return the decile of each value, 0 to 9; equal values have equal deciles."""
    exact = np.nan_to_num(values.astype(np.float64))
    edges = np.quantile(exact, np.linspace(0, 1, N_DECILES + 1)[1:-1])
    return np.searchsorted(edges, exact, side="right").astype(np.int64)
