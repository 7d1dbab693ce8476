"""Statistics over seeds: center, band, confidence interval and mu_w of arrays [seeds, T].

One row is one seed. The seed is the unit of replication: episodes are averaged per seed before they are passed in, so
more episodes alone do not narrow an interval.

The percentile bootstrap of 3 to 10 seeds covers much less than its nominal level (`emtc bench coverage`). Intervals
with a stated level therefore use Student's t: around a mean; around an interquartile mean as in Yuen (1974); around a
median with the variance of the median of a normal population.

Fractions lie in [0, 1], and their interval must have a width even if every seed won every episode. They get Wilson's
(1927) score interval with the quantile of Student's t. Its sample size is the effective number of episodes, computed
from the variance over seeds (the design effect of survey statistics). It is at most the number of played episodes and
at most `MAX_EPISODES_PER_SEED` per seed, because seeds that agree do not prove that no seed gets stuck.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri, stdtrit  # imports at once; `scipy.stats` takes half a second

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

All numbers are for 160 episodes per seed (`emtc bench coverage`). Without the limit, the interval of a mean of 3 to 5
seeds covers 84 % if the win probabilities of the seeds follow Beta(1.8, 0.2), and 47 to 66 % if one seed in five is
stuck at .4: in samples without a stuck seed all seeds agree, and the interval is as narrow as 800 episodes allow. With
the limit it covers 99 % in both cases, and 86 % with ten seeds of which one in five is stuck.

With five seeds of which one in five is stuck, limits of 16 and 4 cover 66 and 99 %. With five seeds from Beta(9, 1),
the interval has a width of .23 (limit 16), .28 (limit 8) and .38 (limit 4).
"""
_MEDIAN_VARIANCE_RATIO = np.pi / 2
"""Variance of the median divided by the variance of the mean, for large samples of a normal population."""


@dataclass(frozen=True)
class Rate:
    """Scale of binomial values: each value is `top` times the fraction of won episodes.

    `episodes` is the number of episodes per value; inf if it is unknown.
    """

    top: float = 1.0
    episodes: float | Values = np.inf


@dataclass(frozen=True)
class Claim:
    """Label of an interval: its method and its measured coverage [%] for 3 to 10 seeds."""

    method: str
    least: int = 95
    most: int = 95
    fails: str = ""
    """Population with the lowest coverage."""

    def __str__(self) -> str:
        coverage = "" if self.least == self.most else f"; covers {self.least} to {self.most} %"
        return f"95 % interval ({self.method}{coverage}{f', least {self.fails}' if self.fails else ''})"


CLAIMS: dict[tuple[Center, bool], Claim] = {
    ("mean", False): Claim("Student's t"),
    ("iqm", False): Claim("Yuen's t"),
    ("median", False): Claim("t of the median"),
    ("mean", True): Claim("Wilson's score with Student's t", 86, 100, "if one seed in five is stuck"),
    ("iqm", True): Claim("Wilson's score with Yuen's t", 51, 100, "if one seed in five is stuck"),
    ("median", True): Claim("t of the median", 93, 100),
}
"""Key: center, and whether the values are fractions. Measured by `emtc bench coverage`."""


def center_of(values: Values, center: Center, axis: int = 0) -> Values:
    """Compute the mean, median or interquartile mean over seeds along `axis`."""
    if center == "mean":
        return values.mean(axis=axis)
    if center == "median":
        return np.median(values, axis=axis)
    n = values.shape[axis]
    cut = int(TRIM_FRACTION * n)
    ordered = np.moveaxis(np.partition(values, (cut, n - cut - 1), axis=axis), axis, 0)
    return np.where(np.isnan(values).any(axis=axis), np.nan, ordered[cut : n - cut].mean(axis=0))


def interval_over_seeds(values: Values, center: Center, rate: Rate | None = None) -> tuple[Values, Values]:
    """Compute the 95 % confidence interval of the center of the population of seeds.

    Args:
        values: [seeds, ...], at least two seeds.
        center: Statistic that the interval is for.
        rate: Binomial scale of the values; None if they are not fractions.
    """
    estimate = center_of(values, center)
    variance, dof = _estimate_variance(values, center)
    quantile = float(stdtrit(dof, (1 + LEVEL) / 2))
    if rate is None:
        return estimate - quantile * np.sqrt(variance), estimate + quantile * np.sqrt(variance)
    fraction, variance = np.clip(estimate / rate.top, 0, 1), variance / rate.top**2
    if center == "median":
        floor = _MEDIAN_VARIANCE_RATIO * compute_binomial_variance(fraction, len(values) * rate.episodes)
        half = quantile * np.sqrt(np.maximum(variance, floor))
        return rate.top * np.clip(fraction - half, 0, 1), rate.top * np.clip(fraction + half, 0, 1)
    max_n = len(values) * np.minimum(rate.episodes, MAX_EPISODES_PER_SEED)
    with np.errstate(divide="ignore", invalid="ignore"):
        effective_n = np.where(variance > 0, fraction * (1 - fraction) / variance, max_n)
    low, high = score_interval(fraction, np.clip(effective_n, 1, max_n), quantile)
    return rate.top * low, rate.top * high


def score_interval(share: Values, n: float | Values, quantile: float = NORMAL_QUANTILE) -> tuple[Values, Values]:
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


def wilson_interval(wins: Values, n: Values) -> tuple[Values, Values]:
    """Compute the 95 % confidence interval of a win probability from `wins` in n episodes; NaN where n is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return score_interval(wins / n, n)


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
    if center != "iqm":
        factor = 1 / n if center == "mean" else _MEDIAN_VARIANCE_RATIO / (n + _MEDIAN_VARIANCE_RATIO - 1)
        return factor * values.var(axis=0, ddof=1), n - 1
    cut = int(TRIM_FRACTION * n)
    n_inner, ranked = n - 2 * cut, np.sort(values, axis=0)
    winsorized = np.clip(values, ranked[cut], ranked[n - 1 - cut])
    return winsorized.var(axis=0, ddof=1) * (n - 1) / (n_inner * (n_inner - 1)), n_inner - 1


# --- bootstrap

BOOTSTRAP_COVERS = "With 3 to 5 seeds, a 95 % percentile bootstrap interval covers only 74 to 83 %."
"""Measured by `emtc bench coverage`."""
_RESAMPLES = 2000
_BATCH = 128
"""Resamples that are in memory at the same time."""


def bootstrap_interval(values: Values, center: Center, *, level: float = LEVEL, seed: int = 0) -> tuple[Values, Values]:
    """Compute the percentile bootstrap interval of a center from 2000 resamples of whole seeds.

    `scipy.stats.bootstrap` gives the same numbers. For 500 points of five seeds it takes 115 to 360 ms, this function
    13 to 35 ms, because five seeds have only 126 distinct resamples. A page redraws twelve lines on every click.

    Args:
        values: [seeds, ...]. A resample takes all values of a seed together.
        center: Statistic of each resample.
        level: Fraction of the resamples inside the interval.
        seed: Random seed; equal values always have equal intervals.
    """
    resamples = np.sort(np.random.default_rng(seed).integers(len(values), size=(_RESAMPLES, len(values))), axis=1)
    distinct, counts = np.unique(resamples, axis=0, return_counts=True)
    batches = np.array_split(distinct, -(-len(distinct) // _BATCH))
    centers = np.concatenate([center_of(values[rows], center, axis=1) for rows in batches])
    order = np.argsort(centers, axis=0)
    sorted_centers, cum_counts = np.take_along_axis(centers, order, axis=0), np.cumsum(counts[order], axis=0)
    low, high = (_find_quantile(sorted_centers, cum_counts, q) for q in ((1 - level) / 2, (1 + level) / 2))
    return low, high


def _find_quantile(sorted_values: Values, cum_counts: NDArray[np.int64], q: float) -> Values:
    """Return the quantile q of sorted values whose cumulative numbers of resamples are `cum_counts`."""
    position = q * (_RESAMPLES - 1)
    below, above = (
        np.take_along_axis(sorted_values, (cum_counts <= k).sum(axis=0, keepdims=True), axis=0)[0]
        for k in (np.floor(position), np.ceil(position))
    )
    return below + (position % 1) * (above - below)


# --- aggregates

Band = Literal["std", "se", "ci", "bootstrap", "iqr", "minmax", "none"]
BANDS: tuple[Band, ...] = get_args(Band)
BAND_NAMES: dict[Band, str] = {
    "std": "standard deviation",
    "se": "standard error",
    "ci": "95 % interval",
    "bootstrap": "percentile bootstrap of 2000 draws",
    "iqr": "quartiles",
    "minmax": "minimum to maximum",
    "none": "no band",
}
USUAL_BAND: dict[Center, Band] = {"mean": "std", "median": "iqr", "iqm": "ci"}
"""The band that is usually printed with a center."""
MOST_POINTS = 500
"""Maximum number of points of the common grid of several seeds; a longer grid is thinned."""


class Curve(NamedTuple):
    """Curve of one seed: values [T] at env steps [T], ascending."""

    steps: Values
    values: Values


class Summary(NamedTuple):
    """Center over seeds and the edges of its band; the edges are None without a band."""

    center: Values
    low: Values | None
    high: Values | None


@dataclass(frozen=True)
class Reading:
    """How values of several seeds are aggregated: the center and the kind of band."""

    center: Center = "mean"
    band: Band = "std"

    def __str__(self) -> str:
        return self.say()

    def say(self, *, share: bool = False) -> str:
        """Describe the center and the band; `share` if the values are fractions."""
        if self.band == "none":
            return f"{CENTER_NAMES[self.center]} over seeds"
        sign = "±" if self.is_symmetric else "with"
        return f"{CENTER_NAMES[self.center]} {sign} {self.name_band(share=share)} over seeds"

    def name_band(self, *, share: bool = False) -> str:
        """Return the name of the band; for a confidence interval also its method and coverage."""
        return str(CLAIMS[self.center, share]) if self.band == "ci" else BAND_NAMES[self.band]

    @property
    def is_symmetric(self) -> bool:
        """Whether the band extends equally to both sides of the center."""
        return self.band in ("std", "se")

    def summarize(self, values: Values, rate: Rate | None = None) -> Summary:
        """Aggregate values [seeds, ...] over seeds; a single seed has no band.

        Args:
            values: [seeds, ...].
            rate: Binomial scale of the values; None if they are not fractions.
        """
        center = center_of(values, self.center)
        if self.band == "none" or len(values) < 2:
            return Summary(center, None, None)
        return Summary(center, *compute_band(values, self, rate))


def finite(values: Iterable[float]) -> Values:
    """Select the finite values."""
    numbers = np.asarray(list(values), np.float64)
    return numbers[np.isfinite(numbers)]


def align(curves: Sequence[Curve]) -> tuple[Values, Values]:
    """Interpolate the curves of several seeds linearly onto one grid of env steps.

    Returns:
        Env steps [T] and values [seeds, T]. The grid has every env step at which any seed was measured within the range
        that all seeds have, thinned to at most `MOST_POINTS`. T is 0 if the seeds have no common range.
    """
    if not curves or any(not len(curve.steps) for curve in curves):
        return np.empty(0), np.empty((len(curves), 0))
    steps = np.unique(np.concatenate([curve.steps for curve in curves]))
    first = max(curve.steps[0] for curve in curves)
    last = min(curve.steps[-1] for curve in curves)
    steps = steps[(steps >= first) & (steps <= last)]
    if len(steps) > MOST_POINTS:
        steps = steps[np.linspace(0, len(steps) - 1, MOST_POINTS).round().astype(int)]
    return steps, np.stack([np.interp(steps, *curve) for curve in curves])


def trailing_mean(x: Values, y: Values, window: float, n: Values | None = None) -> Values:
    """Compute the mean of y over the last `window` of x at each point. Later points do not change it.

    Args:
        x: [T] ascending.
        y: [T].
        window: Length of the window, in the unit of x.
        n: Weights [T], for y that are means over n; default: equal weights.
    """
    n = np.ones(len(y)) if n is None else n
    first = np.searchsorted(x, x - window, side="right")
    total, weight = (np.concatenate([[0.0], np.cumsum(part)]) for part in (y * n, n))
    last = np.arange(1, len(x) + 1)
    return (total[last] - total[first]) / (weight[last] - weight[first])


def compute_band(values: Values, reading: Reading, rate: Rate | None = None) -> tuple[Values, Values]:
    """Compute the edges of the band of values [seeds, ...]; needs at least two seeds."""
    if reading.is_symmetric:
        center, spread = center_of(values, reading.center), values.std(axis=0, ddof=1)
        spread = spread / np.sqrt(len(values)) if reading.band == "se" else spread
        return center - spread, center + spread
    if reading.band == "ci":
        return interval_over_seeds(values, reading.center, rate)
    if reading.band == "bootstrap":
        return bootstrap_interval(values, reading.center)
    if reading.band == "iqr":
        low, high = np.quantile(values, (0.25, 0.75), axis=0)
        return low, high
    return values.min(axis=0), values.max(axis=0)


def mu_w(curve: Curve, at: Values | None = None) -> Values:
    """Compute the time average of one seed's win rate from its first evaluation to t (normalized area under the curve).

    Args:
        curve: Win rate in [0, 1] over env steps.
        at: Env steps t; default: the env steps of the curve.

    Returns:
        mu_w at each t; NaN before the first evaluation and after the last.

    Source: (1/t) integral of the win rate by the trapezoid rule. Time counts from the first evaluation, which
    follows the first training round, so that a constant win rate c has mu_w = c at every t.
    """
    steps, values = curve
    t = steps if at is None else np.asarray(at, np.float64)
    if not len(steps):
        return np.full(len(t), np.nan)
    areas = np.concatenate([[0.0], np.cumsum(np.diff(steps) * (values[1:] + values[:-1]) / 2)])
    before = np.clip(np.searchsorted(steps, t, side="right") - 1, 0, len(steps) - 1)
    value_at_t = np.interp(t, steps, values)
    area = areas[before] + (t - steps[before]) * (values[before] + value_at_t) / 2
    elapsed = t - steps[0]
    mean = np.divide(area, elapsed, out=value_at_t.copy(), where=elapsed > 0)
    return np.where((t < steps[0]) | (t > steps[-1]), np.nan, mean)


def compute_mu_w_curve(curve: Curve) -> Curve:
    """Compute mu_w of one seed at each of its env steps."""
    return Curve(curve.steps, mu_w(curve))
