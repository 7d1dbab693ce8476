"""Is one variant better than another? Differences over seeds: estimate, interval, p values, verdict.

`compare_seeds` computes every such difference. Compare, Sweeps, the command line and the findings all call it and
therefore show the same interval for the same runs. The seed is the unit of replication: episodes are averaged per seed.

Runs of two variants with the same seed start from the same networks and the same random streams, so their results are
correlated. Where both variants have the same seeds the analysis is therefore paired by seed.

Probability of improvement and performance profiles follow Agarwal et al., "Deep reinforcement learning at the edge of
the statistical precipice" (2021). Their bootstrap intervals are replaced, because a bootstrap of 3 to 5 seeds covers
much less than its nominal level (`tests/reference/coverage.py`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np
from scipy.optimize import root_scalar
from scipy.special import nctdtrinc, stdtr, stdtrit

from app.analysis.intervals import (
    LEVEL,
    BinomialScale,
    IntervalLabel,
    Values,
    compute_binomial_variance,
    compute_score_interval,
)

Scores = Sequence[Values]
"""Final value of every seed, one array per task."""
SeedValues = Mapping[int, float]
"""One number per run, by seed."""
Verdict = Literal[
    "too few seeds", "equal", "supported", "contradicted", "no relevant difference", "cannot tell"
]  # fmt: skip
ALPHA: Final = 1 - LEVEL
"""Significance level of the tests."""
POWER: Final = 0.8
"""Power at which `MeanDifference.detectable_difference` is computed."""
MIN_SEEDS: Final = 5
"""Minimum number of pairs of seeds, or of seeds per variant, for a verdict."""
NEGLIGIBLE: Final = 0.05
"""Two win rates have no relevant difference if the confidence interval of the difference is within ± this value."""
PAIRED_LABEL: Final = IntervalLabel("paired t", 46, 100, "if one seed in five of one variant gets stuck")
"""Label of a paired interval. Coverage measured by `tests/reference/coverage.py` with 3 to 10 pairs."""
_MAX_PERMUTATIONS = 20_000
"""Maximum number of permutations in an exact test."""
_EPSILON = 1e-9
"""Distance from 0 and 1 within which no end of an interval is searched: there the variance of the probability is 0."""


@dataclass(frozen=True)
class Interval:
    """An estimate with its 95 % confidence interval; NaN if undefined."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class MeanDifference:
    """Difference of the means of two variants, or of one mean and 0. Undefined numbers are NaN."""

    estimate: float
    low: float
    high: float
    n: tuple[int, ...]
    """Sample sizes: (pairs,) if paired, (seeds,) of a single variant, or (seeds, seeds) if unpaired.

    A difference that is pooled over tasks has their sums.
    """
    min_n: int
    """Smallest number of seeds, or of pairs of seeds, in any of the means."""
    is_paired: bool = False
    unpaired: tuple[int, ...] = ()
    """Seeds that only one of the variants has; a paired comparison leaves them out."""
    standard_error: float = np.nan
    dof: float = np.nan
    p: float = np.nan
    """Two-sided p value of the t test."""
    randomization_p: float = np.nan
    """Two-sided p value of the exact sign-flip test, or of the exact permutation test of the means if unpaired."""
    is_equal: bool = False
    """Whether there are at least two pairs of seeds and both variants have equal numbers in each pair."""

    @property
    def detectable_difference(self) -> float:
        """The difference that a test at p < .05 detects with a power of 80 %, at this standard error and dof."""
        if not (self.dof > 0 and self.standard_error > 0):
            return np.nan
        critical = stdtrit(self.dof, 1 - ALPHA / 2)
        return float(nctdtrinc(self.dof, 1 - POWER, critical) * self.standard_error)

    @property
    def method(self) -> str:
        """Label of the interval with its measured coverage; empty if there is no interval."""
        if not np.isfinite(self.low):
            return ""
        if self.is_paired:
            return str(PAIRED_LABEL)
        method = "Welch's t" if len(self.n) == 2 else "Student's t"
        return str(IntervalLabel(method))


def compare_seeds(x: SeedValues, y: SeedValues | None = None, scale: BinomialScale | None = None) -> MeanDifference:
    """Compare the means of two variants over seeds, or of one variant with 0.

    If every seed of one variant exists in the other, the comparison is paired: Student's t of the differences, and the
    sign-flip test. Otherwise it is unpaired: Welch's t, and the permutation test of the seeds. Negative seeds are not
    real seeds (they number the runs of an import without seeds) and are never paired.

    Args:
        x: Number of each seed of the first variant.
        y: Number of each seed of the second variant; None compares x with 0.
        scale: Binomial scale of the numbers; None if they are not fractions. With a scale, the variance is at least the
            binomial variance of the played episodes, and the interval is within [-maximum, maximum].

    Returns:
        The difference x - y. It has no interval if a variant has fewer than two seeds.
    """
    if y is None:
        values = np.array([x[seed] for seed in sorted(x)], np.float64)
        return _compare_with_zero(values, _compute_min_variance([values], scale), scale)
    common = sorted(x.keys() & y.keys())
    is_paired = bool(common) and common[0] >= 0 and len(common) == min(len(x), len(y))
    if is_paired:
        x_values, y_values = (np.array([numbers[seed] for seed in common], np.float64) for numbers in (x, y))
        unpaired = tuple(sorted(x.keys() ^ y.keys()))
        min_variance = _compute_min_variance([x_values, y_values], scale)
        return _compare_with_zero(x_values - y_values, min_variance, scale, is_paired=True, unpaired=unpaired)
    x_values, y_values = (np.array([numbers[seed] for seed in sorted(numbers)], np.float64) for numbers in (x, y))
    return _compare_unpaired(x_values, y_values, _compute_min_variance([x_values, y_values], scale), scale)


def pool_differences(differences: Sequence[MeanDifference], scale: BinomialScale | None = None) -> MeanDifference:
    """Average the differences of several tasks with equal weights.

    The variances add; the degrees of freedom are those of Welch and Satterthwaite.
    """
    variances = np.array([difference.standard_error**2 for difference in differences])
    dofs = np.array([difference.dof for difference in differences])
    with np.errstate(divide="ignore", invalid="ignore"):
        dof = float(variances.sum() ** 2 / (variances**2 / dofs).sum())
    sizes = [difference.n for difference in differences]
    have_same_form = len({len(n) for n in sizes}) == 1
    n: tuple[int, ...] = (sum(map(sum, sizes)),)  # some tasks are paired and others are not
    if have_same_form:
        n = tuple(map(sum, zip(*sizes, strict=True)))
    pooled = MeanDifference(
        float(np.mean([difference.estimate for difference in differences])),
        np.nan,
        np.nan,
        n,
        min(difference.min_n for difference in differences),
        all(difference.is_paired for difference in differences),
        is_equal=all(difference.is_equal for difference in differences),
    )
    return _add_t_interval(pooled, float(variances.sum()) / len(differences) ** 2, dof, scale)


def adjust_p_values(p_values: Sequence[float], families: Sequence[str]) -> list[float]:
    """Adjust p values by Holm's step-down method (1979), separately in each family of tests.

    Args:
        p_values: One per test. NaN means that there is no test; it remains NaN.
        families: Family of each test.
    """
    p = np.asarray(p_values, np.float64)
    adjusted = np.full(len(p), np.nan)
    for family in set(families):
        tests = [i for i, name in enumerate(families) if name == family and np.isfinite(p[i])]
        largest = 0.0
        for rank, i in enumerate(sorted(tests, key=lambda i: p[i])):
            largest = max(largest, min(1.0, (len(tests) - rank) * p[i]))
            adjusted[i] = largest
    return adjusted.tolist()


def decide(difference: MeanDifference, adjusted_p: float, *, sign: int = 1, is_rate: bool = False) -> Verdict:
    """Decide whether the seeds support the claim that the difference has this sign.

    Args:
        difference: The measured difference.
        adjusted_p: p value of the difference, adjusted within its family of tests.
        sign: The claimed sign, 1 or -1.
        is_rate: Whether it is a difference of win rates, which can be practically equal.
    """
    if difference.is_equal:
        return "equal"
    if difference.min_n < MIN_SEEDS or not np.isfinite(difference.low):
        return "too few seeds"
    if adjusted_p < ALPHA:
        return "supported" if sign * difference.estimate > 0 else "contradicted"
    if is_rate and max(abs(difference.low), abs(difference.high)) < NEGLIGIBLE:
        return "no relevant difference"
    return "cannot tell"


def probability_of_improvement(x: Scores, y: Scores) -> Interval:
    """Estimate the probability that a run of x has a higher score than a run of y on a random task; a tie counts half.

    The interval contains each probability theta with |theta - estimate| < t(dof) * SE(theta). The standard error is
    computed at theta, not at the estimate, so the interval has a width even if every run of x won.

    Args:
        x: Scores of one variant by task.
        y: Scores of the other variant, with the same tasks in the same order.

    `statsmodels` has another interval for this probability (Brunner and Munzel), which has no width if every run won.

    Source: Agarwal et al. (2021), the mean over tasks of the Mann-Whitney U statistic divided by the number of pairs;
    Hanley and McNeil (1982), the variance; Newcombe (2006), the interval, with the normal quantile.
    """
    sizes = [(len(ours), len(theirs)) for ours, theirs in zip(x, y, strict=True)]
    win_fractions = [
        ((ours[:, None] > theirs) + 0.5 * (ours[:, None] == theirs)).mean() for ours, theirs in zip(x, y, strict=True)
    ]
    value = float(np.mean(win_fractions))
    dof = sum(n + k - 2 for n, k in sizes)
    if not dof:
        return Interval(value, 0.0, 1.0)
    factor = float(stdtrit(dof, (1 + LEVEL) / 2)) ** 2 / len(sizes) ** 2

    def compute_excess(theta: float) -> float:
        """Return by how much theta is outside the interval: 0 at an end, negative inside."""
        return (theta - value) ** 2 - factor * sum(_win_variance(theta, *size) for size in sizes)

    low, high = 0.0, 1.0
    if value >= _EPSILON:
        low = root_scalar(compute_excess, bracket=(0.0, min(value, 1 - _EPSILON))).root
    if value <= 1 - _EPSILON:
        high = root_scalar(compute_excess, bracket=(max(value, _EPSILON), 1.0)).root
    return Interval(value, low, high)


def performance_profile(scores: Scores, thresholds: Values) -> tuple[Values, Values, Values]:
    """Compute the fraction of runs with a score above each threshold, with equal weights of the tasks.

    Args:
        scores: Scores of one variant by task.
        thresholds: [T] ascending.

    Returns:
        The fraction [T] and the edges [T] of its 95 % Wilson interval at each threshold.

    Source: Agarwal et al. (2021), run-score distributions.
    """
    fraction = np.mean([(task_scores[:, None] > thresholds).mean(axis=0) for task_scores in scores], axis=0)
    # number of runs whose fraction would have the variance of this mean over tasks
    effective_n = len(scores) ** 2 / sum(1 / len(task_scores) for task_scores in scores)
    return fraction, *compute_score_interval(fraction, effective_n)


def _compare_with_zero(
    values: Values,
    min_variance: float,
    scale: BinomialScale | None,
    *,
    is_paired: bool = False,
    unpaired: tuple[int, ...] = (),
) -> MeanDifference:
    """Test values against 0 by Student's t and the sign-flip test.

    `min_variance` is the lower limit of the variance of the mean.
    """
    n = len(values)
    base = MeanDifference(
        float(values.mean()),
        np.nan,
        np.nan,
        (n,),
        n,
        is_paired,
        unpaired,
        randomization_p=_compute_randomization_p((values,)) if n > 1 else np.nan,
        is_equal=is_paired and n > 1 and not values.any(),
    )
    if n < 2:
        return base
    variance = max(float(values.var(ddof=1)) / n, min_variance)
    return _add_t_interval(base, variance, n - 1, scale)


def _compare_unpaired(x: Values, y: Values, min_variance: float, scale: BinomialScale | None) -> MeanDifference:
    """Compare two independent groups of seeds by Welch's t and the permutation test of the means."""
    n = (len(x), len(y))
    estimate = float(x.mean() - y.mean())
    if min(n) < 2:
        return MeanDifference(estimate, np.nan, np.nan, n, min(n))
    base = MeanDifference(estimate, np.nan, np.nan, n, min(n), randomization_p=_compute_randomization_p((x, y)))
    parts = np.array([x.var(ddof=1) / n[0], y.var(ddof=1) / n[1]])
    dofs = np.array([n[0] - 1, n[1] - 1])
    dof = float(parts.sum() ** 2 / (parts**2 / dofs).sum()) if parts.sum() > 0 else float(dofs.min())
    return _add_t_interval(base, max(float(parts.sum()), min_variance), dof, scale)


def _add_t_interval(base: MeanDifference, variance: float, dof: float, scale: BinomialScale | None) -> MeanDifference:
    """Add the interval and the p value of Student's t for an estimate with this variance; no change if it is 0."""
    if not (variance > 0 and dof > 0):
        return base
    standard_error = float(np.sqrt(variance))
    half = float(stdtrit(dof, (1 + LEVEL) / 2)) * standard_error
    low, high = base.estimate - half, base.estimate + half
    if scale is not None:
        low, high = max(low, -scale.maximum), min(high, scale.maximum)
    p = float(2 * stdtr(dof, -abs(base.estimate) / standard_error))
    return replace(base, low=low, high=high, standard_error=standard_error, dof=dof, p=p)


def _compute_min_variance(samples: Sequence[Values], scale: BinomialScale | None) -> float:
    """Compute the sampling variance of a difference of means if each mean is a fraction of played episodes.

    Args:
        samples: The numbers of one or two variants, by seed.
        scale: Their binomial scale; without one, the variance is 0.
    """
    if scale is None or not np.isfinite(np.max(scale.episodes)):
        return 0.0
    episodes = float(np.min(scale.episodes))
    fractions = [np.clip(sample.mean() / scale.maximum, 0, 1) for sample in samples]
    variances = [
        compute_binomial_variance(fraction, len(sample) * episodes)
        for fraction, sample in zip(fractions, samples, strict=True)
    ]
    return scale.maximum**2 * float(np.sum(variances))


def _compute_randomization_p(samples: tuple[Values, ...]) -> float:
    """Compute the two-sided p value of the sign-flip test of one sample, or of the permutation test of two.

    The test is exact up to 20,000 permutations; above that it uses a random sample of 20,000. Means that agree
    to 9 decimals are equal: final win rates are rounded to 12, and different signs of them often give the same mean.
    """
    from scipy.stats import permutation_test  # the import takes half a second and no other figure needs it

    def statistic(*parts: Values, axis: int) -> Values:
        first, *others = (part.mean(axis=axis) for part in parts)
        return np.abs(first - others[0] if others else first).round(9)

    result = permutation_test(
        samples,
        statistic,
        permutation_type="samples" if len(samples) == 1 else "independent",
        alternative="greater",
        vectorized=True,
        n_resamples=_MAX_PERMUTATIONS,
        rng=np.random.default_rng(0),
    )
    return float(result.pvalue)


def _win_variance(theta: float, n: int, k: int) -> float:
    """Compute the variance of the fraction of won pairs if a pair is won with probability theta (Hanley and McNeil)."""
    weight = (n + k) / 2 - 1
    return theta * (1 - theta) * (1 + weight * ((1 - theta) / (2 - theta) + theta / (1 + theta))) / (n * k)
