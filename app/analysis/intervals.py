"""Confidence intervals over seeds, of values [seeds, ...].

One row is one seed. The seed is the unit of replication: episodes are averaged per seed before they are passed in, so
more episodes alone do not narrow an interval.

The percentile bootstrap of 3 to 10 seeds covers much less than its nominal level (`tests/reference/coverage.py`).
Intervals with a stated level therefore use Student's t: around a mean; around an interquartile mean as in Yuen (1974);
around a median with the variance of the median of a normal population.

Fractions lie in [0, 1], and their interval must have a width even if every seed won every episode. They get Wilson's
(1927) score interval with the quantile of Student's t. Its sample size is the effective number of episodes, computed
from the variance over seeds (the design effect of survey statistics). It is at most the number of played episodes and
at most `MAX_EPISODES_PER_SEED` per seed, because seeds that agree do not prove that no seed gets stuck: that no seed
stays at a low win rate.

Wilson's interval is computed here and not by `statsmodels`: that package has 67 MB and adds 0.5 to 3 s to the start of
every command, and its `proportion_confint` takes neither a quantile of Student's t nor an effective sample size. Tests
compare the numbers with SciPy and with `statsmodels`.
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

All numbers are for 160 episodes per seed (`tests/reference/coverage.py`). Without the limit, the interval of a mean of
3 to 5 seeds covers 84 % if the win probabilities of the seeds follow Beta(1.8, 0.2), and 47 to 66 % if one seed in five
is stuck at .4: in samples without a stuck seed all seeds agree, and the interval is as narrow as 800 episodes allow.
With the limit it covers 99 % in both cases, and 86 % with ten seeds of which one in five is stuck.

With five seeds of which one in five is stuck, limits of 16 and 4 cover 66 and 99 %. With five seeds from Beta(9, 1),
the interval has a width of .23 (limit 16), .28 (limit 8) and .38 (limit 4).
"""
_MEDIAN_VARIANCE_RATIO = np.pi / 2
"""Variance of the median divided by the variance of the mean, for large samples of a normal population."""


@dataclass(frozen=True)
class BinomialScale:
    """Scale of binomial values: each value is `top` times the fraction of won episodes.

    `episodes` is the number of episodes per value; inf if it is unknown.
    """

    top: float = 1.0
    episodes: float | Values = np.inf


@dataclass(frozen=True)
class IntervalLabel:
    """Label of an interval: its method and its measured coverage [%] for 3 to 10 seeds."""

    method: str
    min_coverage: int = 95
    max_coverage: int = 95
    worst_case: str = ""
    """Population with the lowest coverage."""

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
"""Key: center, and whether the values are fractions. Measured by `tests/reference/coverage.py`."""


def compute_center(values: Values, center: Center, axis: int = 0) -> Values:
    """Compute the mean, median or interquartile mean over seeds along `axis`."""
    if center == "mean":
        return values.mean(axis=axis)
    if center == "median":
        return np.median(values, axis=axis)
    n = values.shape[axis]
    cut = int(TRIM_FRACTION * n)
    ordered = np.moveaxis(np.partition(values, (cut, n - cut - 1), axis=axis), axis, 0)
    return np.where(np.isnan(values).any(axis=axis), np.nan, ordered[cut : n - cut].mean(axis=0))


def compute_interval(values: Values, center: Center, scale: BinomialScale | None = None) -> tuple[Values, Values]:
    """Compute the 95 % confidence interval of the center of the population of seeds.

    Args:
        values: [seeds, ...], at least two seeds.
        center: Statistic that the interval is for.
        scale: Binomial scale of the values; None if they are not fractions.
    """
    estimate = compute_center(values, center)
    variance, dof = _estimate_variance(values, center)
    quantile = float(stdtrit(dof, (1 + LEVEL) / 2))
    if scale is None:
        return estimate - quantile * np.sqrt(variance), estimate + quantile * np.sqrt(variance)
    fraction = np.clip(estimate / scale.top, 0, 1)
    variance = variance / scale.top**2
    if center == "median":
        # the variance is at least that of the played episodes, so that equal seeds have an interval with a width
        floor = _MEDIAN_VARIANCE_RATIO * compute_binomial_variance(fraction, len(values) * scale.episodes)
        half = quantile * np.sqrt(np.maximum(variance, floor))
        return scale.top * np.clip(fraction - half, 0, 1), scale.top * np.clip(fraction + half, 0, 1)
    # effective number of episodes: p (1 − p) / n = variance, solved for n
    max_n = len(values) * np.minimum(scale.episodes, MAX_EPISODES_PER_SEED)
    with np.errstate(divide="ignore", invalid="ignore"):
        effective_n = np.where(variance > 0, fraction * (1 - fraction) / variance, max_n)
    low, high = compute_score_interval(fraction, np.clip(effective_n, 1, max_n), quantile)
    return scale.top * low, scale.top * high


def compute_score_interval(
    share: Values, n: float | Values, quantile: float = NORMAL_QUANTILE
) -> tuple[Values, Values]:
    """Compute the confidence interval of a probability (Wilson 1927); NaN where n is 0.

    Args:
        share: Observed fraction of successes.
        n: Number of trials.
        quantile: Quantile of the reference distribution; the default gives 95 % with the normal distribution.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        z2_over_n = quantile**2 / np.asarray(n, np.float64)
        middle = (share + z2_over_n / 2) / (1 + z2_over_n)
        half = np.sqrt(z2_over_n * share * (1 - share) + z2_over_n**2 / 4) / (1 + z2_over_n)
    return np.clip(middle - half, 0, 1), np.clip(middle + half, 0, 1)


def compute_wilson_interval(wins: Values, n: Values) -> tuple[Values, Values]:
    """Compute the 95 % confidence interval of a win probability from `wins` in n episodes; NaN where n is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return compute_score_interval(wins / n, n)


def compute_binomial_variance(share: float | Values, played: float | Values) -> Values:
    """Compute the sampling variance of a fraction of `played` episodes, after adding two wins and two losses.

    Source: Agresti and Coull (1998).
    """
    n = np.asarray(played, np.float64)
    middle = share + (0.5 - share) * 4 / (n + 4)
    return middle * (1 - middle) / n


def _estimate_variance(values: Values, center: Center) -> tuple[Values, int]:
    """Estimate the sampling variance of a center; return it with its degrees of freedom."""
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
