"""Confidence intervals over seeds, of values [seeds, ...].

One row is one seed. The seed is the unit of replication: episodes are averaged per seed before they are passed in, so
more episodes alone do not narrow an interval.

The percentile bootstrap of 3 to 10 seeds covers much less than its nominal level (`tests/reference/coverage.py`).
Intervals with a stated level therefore use quantiles of Student's t and one of these variances:

* of the mean;
* of the interquartile mean (Yuen 1974);
* of the median, for a normal population.

Fractions are between 0 and 1. Their interval must have a width even if every seed won every episode. They get Wilson's
(1927) score interval with the quantile of Student's t. The sample size of this interval is the effective number of
episodes. It is computed from the variance over seeds (the design effect of survey statistics).

The effective number is limited to the number of played episodes, and to `MAX_EPISODES_PER_SEED` per seed. Without the
second limit, equal seeds would give a very narrow interval, but a further seed could still be stuck. A seed is stuck if
its win rate stays low.

Wilson's interval is computed here and not by `statsmodels`: that package has 67 MB and adds 0.5 to 3 s to the start of
every command, and its `proportion_confint` takes neither a quantile of Student's t nor an effective sample size. Tests
compare the numbers with SciPy.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri, stdtrit  # imports fast; `scipy.stats` takes half a second

Values = NDArray[np.float64]
Center = Literal["mean", "median", "iqm"]

LEVEL = 0.95
NORMAL_QUANTILE = float(ndtri((1 + LEVEL) / 2))
TRIM_FRACTION = 0.25
"""Fraction of the seeds that an interquartile mean leaves out at each end, rounded down to whole seeds."""
CENTERS: tuple[Center, ...] = get_args(Center)
CENTER_NAMES: dict[Center, str] = {"mean": "mean", "median": "median", "iqm": "interquartile mean"}
MAX_EPISODES_PER_SEED = 8
"""Upper limit of independent episodes per seed in the interval of a mean or interquartile mean of fractions.

Coverage of the interval of a mean, measured with 160 episodes per seed (`tests/reference/coverage.py`). In the last two
rows, one seed in five of the population is stuck at a win rate of .4:

* 3 to 5 seeds, win probabilities from Beta(1.8, 0.2): 84 % without a limit, 99 % with 8.
* 3 to 5 seeds, some stuck: 47 to 66 % without a limit, 99 % with 8. With five seeds, 66 % with 16 and 99 % with 4.
* 10 seeds, some stuck: 86 % with 8.

Without a limit, a sample that by chance contains no stuck seed has a very narrow interval: five seeds that all win
count as 800 independent episodes.

Width of the interval with five seeds from Beta(9, 1): .23 (limit 16), .28 (limit 8) and .38 (limit 4).
"""
_MEDIAN_VARIANCE_RATIO = np.pi / 2
"""Variance of the median divided by the variance of the mean, for large samples of a normal population."""


@dataclass(frozen=True)
class BinomialScale:
    """Scale of binomial values. A value is `maximum` times the fraction of won episodes."""

    maximum: float = 1.0
    """The value if all episodes are won: 1 for fractions, 100 for percentages."""
    episodes: float | Values = np.inf
    """Number of episodes from which one value is computed; inf if it is unknown."""


@dataclass(frozen=True)
class IntervalLabel:
    """Label of an interval: its method and its measured coverage [%] for 3 to 10 seeds."""

    method: str
    min_coverage: int = 95
    max_coverage: int = 95
    worst_case: str = ""
    """Condition under which the coverage is `min_coverage`, such as "if one seed in five is stuck"."""

    def __str__(self) -> str:
        text = self.method
        if self.min_coverage != self.max_coverage:
            text += f"; covers {self.min_coverage} to {self.max_coverage} %"
        if self.worst_case:
            text += f", least {self.worst_case}"
        return f"95 % interval ({text})"


INTERVAL_LABELS: dict[tuple[Center, bool], IntervalLabel] = {
    ("mean", False): IntervalLabel("Student's t"),
    ("iqm", False): IntervalLabel("Yuen's t"),
    ("median", False): IntervalLabel("t of the median"),
    ("mean", True): IntervalLabel("Wilson's score with Student's t", 86, 100, "if one seed in five is stuck"),
    ("iqm", True): IntervalLabel("Wilson's score with Yuen's t", 51, 100, "if one seed in five is stuck"),
    ("median", True): IntervalLabel("t of the median", 93, 100),
}
"""Key: the center, and whether the values are fractions. `tests/reference/coverage.py` measured the coverages."""


def compute_center(values: Values, center: Center, axis: int = 0) -> Values:
    """Compute the mean, median or interquartile mean over seeds along `axis`."""
    if center == "mean":
        return values.mean(axis=axis)
    if center == "median":
        return np.median(values, axis=axis)
    n = values.shape[axis]
    # Interquartile mean: the mean of the sorted values without the first `cut` and the last `cut` ones. `np.partition`
    # only separates these values from the others, which is faster than a sort.
    cut = int(TRIM_FRACTION * n)
    partitioned = np.partition(values, (cut, n - cut - 1), axis=axis)
    seeds_first = np.moveaxis(partitioned, axis, 0)
    trimmed_mean = seeds_first[cut : n - cut].mean(axis=0)
    # NaN is sorted to the end and could be trimmed. The result must be NaN if a seed has no value.
    return np.where(np.isnan(values).any(axis=axis), np.nan, trimmed_mean)


def compute_interval(values: Values, center: Center, scale: BinomialScale | None = None) -> tuple[Values, Values]:
    """Compute the 95 % confidence interval of the center of the population of seeds.

    Args:
        values: [seeds, ...], at least two seeds.
        center: The statistic: mean, median or interquartile mean.
        scale: Binomial scale of the values; None if they are not fractions.
    """
    estimate = compute_center(values, center)
    variance, dof = _estimate_variance(values, center)
    quantile = float(stdtrit(dof, (1 + LEVEL) / 2))
    if scale is None:
        return estimate - quantile * np.sqrt(variance), estimate + quantile * np.sqrt(variance)
    fraction = np.clip(estimate / scale.maximum, 0, 1)
    variance = variance / scale.maximum**2
    if center == "median":
        # Equal seeds have a variance of 0. The binomial variance of the played episodes is therefore the lower limit.
        floor = _MEDIAN_VARIANCE_RATIO * compute_binomial_variance(fraction, len(values) * scale.episodes)
        half = quantile * np.sqrt(np.maximum(variance, floor))
        return scale.maximum * np.clip(fraction - half, 0, 1), scale.maximum * np.clip(fraction + half, 0, 1)
    # effective number of episodes: p (1 − p) / n = variance, solved for n
    max_n = len(values) * np.minimum(scale.episodes, MAX_EPISODES_PER_SEED)
    with np.errstate(divide="ignore", invalid="ignore"):
        effective_n = np.where(variance > 0, fraction * (1 - fraction) / variance, max_n)
    low, high = compute_score_interval(fraction, np.clip(effective_n, 1, max_n), quantile)
    return scale.maximum * low, scale.maximum * high


def compute_score_interval(
    fraction: Values, n: float | Values, quantile: float = NORMAL_QUANTILE
) -> tuple[Values, Values]:
    """Compute the confidence interval of a probability (Wilson 1927); NaN where n is 0.

    Args:
        fraction: Observed fraction of successes.
        n: Number of trials.
        quantile: Quantile of the reference distribution; the default gives 95 % with the normal distribution.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        z2_over_n = quantile**2 / np.asarray(n, np.float64)
        middle = (fraction + z2_over_n / 2) / (1 + z2_over_n)
        half = np.sqrt(z2_over_n * fraction * (1 - fraction) + z2_over_n**2 / 4) / (1 + z2_over_n)
    return np.clip(middle - half, 0, 1), np.clip(middle + half, 0, 1)


def compute_interval_of_wins(wins: Values, n: Values) -> tuple[Values, Values]:
    """Compute the 95 % confidence interval of a win probability from `wins` in n episodes; NaN where n is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return compute_score_interval(wins / n, n)


def compute_binomial_variance(fraction: float | Values, n_episodes: float | Values) -> Values:
    """Compute the sampling variance of a fraction of won episodes, after adding two wins and two losses to it.

    Source: Agresti and Coull (1998).
    """
    n = np.asarray(n_episodes, np.float64)
    adjusted_fraction = fraction + (0.5 - fraction) * 4 / (n + 4)  # equals (wins + 2) / (n + 4), also if n is infinite
    return adjusted_fraction * (1 - adjusted_fraction) / n


def _estimate_variance(values: Values, center: Center) -> tuple[Values, int]:
    """Estimate the sampling variance of a center. Return the variance and its degrees of freedom."""
    n = len(values)
    if center == "mean":
        return 1 / n * values.var(axis=0, ddof=1), n - 1
    if center == "median":
        # approximates the variance of the median of n normal values: exact for n = 1 and for large n
        factor = _MEDIAN_VARIANCE_RATIO / (n + _MEDIAN_VARIANCE_RATIO - 1)
        return factor * values.var(axis=0, ddof=1), n - 1
    # Yuen (1974): the trimmed values are replaced by the nearest remaining ones (winsorized)
    cut = int(TRIM_FRACTION * n)
    n_inner = n - 2 * cut
    ranked = np.sort(values, axis=0)
    winsorized = np.clip(values, ranked[cut], ranked[n - 1 - cut])
    return winsorized.var(axis=0, ddof=1) * (n - 1) / (n_inner * (n_inner - 1)), n_inner - 1
