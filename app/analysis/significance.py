"""Is one variant better than another? Numbers over seeds, each with what so few seeds can tell.

Probability of improvement and performance profiles are those of Agarwal et al., "Deep reinforcement learning at the
edge of the statistical precipice" (2021): tasks weigh equally, and a seed is the unit. Their intervals are not: that
paper resamples seeds, which with three to five of them covers far less than it says. Knows no storage, draws nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb

import numpy as np
from scipy.optimize import root_scalar
from scipy.special import stdtrit

from app.analysis.statistics import LEVEL, Rate, Values, interval_over_seeds, score_interval

Scores = Sequence[Values]
"""The last value of every seed, one array for each task."""
_PERMUTATIONS = 20_000
_CLOSE = 1e-9  # to 0 and 1, where the variance of a probability of improvement vanishes
TELLING = 0.05
"""A p value below this is called a difference."""


@dataclass(frozen=True)
class Interval:
    """An estimate with its 95 % interval; NaN where there is none."""

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
        """What the seeds can tell."""
        if (least := least_p(*self.n)) > TELLING:
            return f"too few seeds to tell: with {self.n[0]} and {self.n[1]} no permutation falls below p = {least:.2g}"
        if not np.isfinite(self.permutation_p):
            return "not defined"
        return "differs" if self.permutation_p < TELLING else "no difference shown"


def probability_of_improvement(x: Scores, y: Scores) -> Interval:
    """Estimate how often a run of x beats a run of y on a task drawn at random; a tie counts half.

    The interval holds every probability from which the estimate lies less than Student's t standard errors away, the
    standard error being that of the probability itself, so that it has a width where every run of x won.

    Args:
        x: Scores of one variant by task.
        y: Scores of the other, the same tasks in the same order.

    Source: Agarwal et al. (2021), the Mann-Whitney U statistic of each task over the number of pairs, then the mean;
    Hanley and McNeil (1982), the variance; Newcombe (2006), the interval, there with the normal quantile.
    """
    sizes = [(len(ours), len(theirs)) for ours, theirs in zip(x, y, strict=True)]
    value = float(np.mean([_beats(ours, theirs) for ours, theirs in zip(x, y, strict=True)]))
    freedom = sum(n + k - 2 for n, k in sizes)
    if not freedom:
        return Interval(value, 0.0, 1.0)
    reach = float(stdtrit(freedom, (1 + LEVEL) / 2)) ** 2 / len(sizes) ** 2

    def excess(theta: float) -> float:
        return (theta - value) ** 2 - reach * sum(_win_variance(theta, *size) for size in sizes)

    low = 0.0 if value < _CLOSE else root_scalar(excess, bracket=(0.0, min(value, 1 - _CLOSE))).root
    high = 1.0 if value > 1 - _CLOSE else root_scalar(excess, bracket=(max(value, _CLOSE), 1.0)).root
    return Interval(value, low, high)


def difference_of_means(x: Scores, y: Scores, rate: Rate) -> Interval:
    """Estimate by how much the mean share of x lies above that of y, tasks weighing equally.

    Args:
        x: Shares of one variant by task.
        y: Shares of the other, the same tasks in the same order.
        rate: What they are shares of.

    Source: Zou and Donner (2008): the distances of both means to the edges of their own intervals, in squares.
    """
    tasks = list(zip(x, y, strict=True))
    value = float(np.mean([ours.mean() - theirs.mean() for ours, theirs in tasks]))
    if any(len(each) < 2 for task in tasks for each in task):
        return Interval(value, np.nan, np.nan)
    reach = np.array([_reach(ours, theirs, rate) for ours, theirs in tasks])
    down, up = np.sqrt((reach**2).sum(axis=(0, 2))) / len(tasks)
    return Interval(value, value - float(down), value + float(up))


def performance_profile(scores: Scores, thresholds: Values) -> tuple[Values, Values, Values]:
    """Measure which share of runs scores above each threshold, tasks weighing equally.

    Args:
        scores: Scores of one variant by task.
        thresholds: [T] ascending.

    Returns:
        The share [T] and the edges of its 95 % interval [T], Wilson's at each threshold.

    Source: Agarwal et al. (2021), run-score distributions.
    """
    share = np.mean([(each[:, None] > thresholds).mean(axis=0) for each in scores], axis=0)
    runs = len(scores) ** 2 / sum(1 / len(each) for each in scores)
    return share, *score_interval(share, runs)


def compare_means(x: Values, y: Values) -> Tests:
    """Test whether two variants have one mean on a task: Welch's t and a permutation of the seeds, both two-sided.

    The permutation test is exact as long as there are at most 20,000 ways to deal the seeds.
    """
    from scipy.stats import permutation_test, ttest_ind_from_stats  # half a second, for which no other figure waits

    n, difference = (len(x), len(y)), float(x.mean() - y.mean())
    if min(n) < 2:
        return Tests(n, difference, np.nan, np.nan)
    stats = [each for values in (x, y) for each in (values.mean(), values.std(ddof=1), len(values))]
    spread = np.ptp(x) + np.ptp(y)
    welch = float(np.asarray(ttest_ind_from_stats(*stats, equal_var=False))[1]) if spread > 0 else np.nan
    found = permutation_test(
        (x, y),
        lambda a, b, axis: a.mean(axis=axis) - b.mean(axis=axis),
        vectorized=True,
        n_resamples=_PERMUTATIONS,
        rng=np.random.default_rng(0),
    )
    return Tests(n, difference, welch, float(found.pvalue))


def least_p(n: int, k: int) -> float:
    """Compute the smallest two-sided p value that a permutation of n and k seeds can reach."""
    return min(1.0, 2 / comb(n + k, n))


def _beats(ours: Values, theirs: Values) -> float:
    """Compute the share of pairs that ours wins; a tie counts half."""
    return float(((ours[:, None] > theirs) + 0.5 * (ours[:, None] == theirs)).mean())


def _win_variance(theta: float, n: int, k: int) -> float:
    """Compute the variance of the share of pairs won if the probability of a win is theta (Hanley and McNeil)."""
    more = (n + k) / 2 - 1
    return theta * (1 - theta) * (1 + more * ((1 - theta) / (2 - theta) + theta / (1 + theta))) / (n * k)


def _reach(ours: Values, theirs: Values, rate: Rate) -> tuple[tuple[float, float], tuple[float, float]]:
    """Measure how far the means may lie apart the other way: down by (ours, theirs), up by (ours, theirs)."""
    (low, high), (least, most) = (interval_over_seeds(each, "mean", rate) for each in (ours, theirs))
    x, y = ours.mean(), theirs.mean()
    return (float(x - low), float(most - y)), (float(high - x), float(y - least))
