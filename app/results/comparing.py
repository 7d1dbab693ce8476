"""Is one variant better than another? Numbers over seeds, each with what so few seeds can tell.

Probability of improvement and performance profiles follow Agarwal et al., "Deep reinforcement learning at the edge of
the statistical precipice" (2021), and its library rliable: runs are drawn with replacement within each task, so that a
seed is the unit and tasks stay balanced. Knows no storage and draws nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb

import numpy as np
from numpy.typing import NDArray
from scipy.stats import permutation_test, ttest_ind

from app.results.statistics import Values

Scores = Sequence[Values]
"""The last value of every seed, one array for each task."""
_DRAWS = 2000
_LEVEL = 0.95
_PERMUTATIONS = 20_000
TELLING = 0.05
"""A p value below this is called a difference."""


@dataclass(frozen=True)
class Interval:
    """An estimate with its 95 % bootstrap interval over seeds."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Tests:
    """Two tests of equal means on one task; NaN where a test is not defined."""

    n: tuple[int, int]
    difference: float
    welch_p: float
    permutation_p: float

    @property
    def verdict(self) -> str:
        """Say what the seeds can tell."""
        if (least := least_p(*self.n)) > TELLING:
            return f"too few seeds to tell: with {self.n[0]} and {self.n[1]} no permutation falls below p = {least:.2g}"
        if not np.isfinite(self.permutation_p):
            return "not defined"
        return "differs" if self.permutation_p < TELLING else "no difference shown"


def probability_of_improvement(x: Scores, y: Scores, *, seed: int = 0) -> Interval:
    """Estimate how often a run of x beats a run of y on a task drawn at random; a tie counts half.

    Args:
        x: Scores of one variant by task.
        y: Scores of the other, the same tasks in the same order.
        seed: Of the bootstrap's draws.

    Source: Agarwal et al. (2021), the Mann-Whitney U statistic of each task over the number of pairs, then the mean.
    """
    rng = np.random.default_rng(seed)
    values, drawn = [], []
    for ours, theirs in zip(x, y, strict=True):
        wins_NK = (ours[:, None] > theirs) + 0.5 * (ours[:, None] == theirs)
        rows, columns = _draw(rng, len(ours)), _draw(rng, len(theirs))
        values.append(wins_NK.mean())
        drawn.append(wins_NK[rows[:, :, None], columns[:, None, :]].mean(axis=(1, 2)))
    low, high = np.quantile(np.mean(drawn, axis=0), _edges())
    return Interval(float(np.mean(values)), float(low), float(high))


def performance_profile(scores: Scores, thresholds: Values, *, seed: int = 0) -> tuple[Values, Values, Values]:
    """Measure which share of runs scores above each threshold, tasks weighing equally.

    Args:
        scores: Scores of one variant by task.
        thresholds: [T] ascending.
        seed: Of the bootstrap's draws.

    Returns:
        The share [T] and the edges of its 95 % bootstrap interval [T].

    Source: Agarwal et al. (2021), run-score distributions.
    """
    rng = np.random.default_rng(seed)
    above = [each[:, None] > thresholds for each in scores]
    drawn = np.mean([part[_draw(rng, len(part))].mean(axis=1) for part in above], axis=0)
    low, high = np.quantile(drawn, _edges(), axis=0)
    return np.mean([part.mean(axis=0) for part in above], axis=0), low, high


def compare_means(x: Values, y: Values, *, seed: int = 0) -> Tests:
    """Test whether two variants have one mean on a task: Welch's t and a permutation of the seeds, both two-sided.

    The permutation test is exact as long as there are at most 20,000 ways to deal the seeds.
    """
    n, difference = (len(x), len(y)), float(x.mean() - y.mean())
    if min(n) < 2:
        return Tests(n, difference, np.nan, np.nan)
    spread = x.var() + y.var()
    welch = float(np.asarray(ttest_ind(x, y, equal_var=False))[1]) if spread > 0 else np.nan
    found = permutation_test(
        (x, y),
        lambda a, b, axis: a.mean(axis=axis) - b.mean(axis=axis),
        vectorized=True,
        n_resamples=_PERMUTATIONS,
        rng=np.random.default_rng(seed),
    )
    return Tests(n, difference, welch, float(found.pvalue))


def least_p(n: int, k: int) -> float:
    """Compute the smallest two-sided p value that a permutation of n and k seeds can reach."""
    return min(1.0, 2 / comb(n + k, n))


def _draw(rng: np.random.Generator, n: int) -> NDArray[np.int64]:
    return rng.integers(n, size=(_DRAWS, n))


def _edges() -> tuple[float, float]:
    return (1 - _LEVEL) / 2, (1 + _LEVEL) / 2
