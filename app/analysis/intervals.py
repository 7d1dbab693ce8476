"""Intervals that hold their 95 % with three to ten seeds, and what each of them covers.

Values [seeds, ...] in, edges [...] out. A percentile bootstrap of so few seeds covers far less than it says
(`emtc bench coverage`), so a level is named by Student's t here: around a mean, around an interquartile mean as Yuen
(1974) does it, around a median with the variance that it has in a normal population.

A share cannot leave [0, 1], and seeds that all won every episode are no proof that none would lose one. So shares have
Wilson's (1927) score interval, with the quantile of Student's t and as many episodes as their spread leaves: the design
effect of survey statistics. It never counts more episodes than were played. Knows no frames and draws nothing.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm, t, trim_mean

Values = NDArray[np.float64]
Center = Literal["mean", "median", "iqm"]

LEVEL = 0.95
TRIMMED = 0.25
"""Share of the seeds that an interquartile mean leaves out at either end, rounded down to whole seeds."""
NORMAL_QUANTILE = float(norm.ppf((1 + LEVEL) / 2))
_MEDIAN = np.pi / 2
"""Variance of a normal sample's median over that of its mean, for many values."""


@dataclass(frozen=True)
class Rate:
    """Values that are shares of `top`, each counted over so many episodes; infinite where that is not known."""

    top: float = 1.0
    episodes: float | Values = np.inf


@dataclass(frozen=True)
class Claim:
    """What an interval is called, and which coverage [%] was measured of it with 3 to 10 seeds."""

    method: str
    least: int = 95
    most: int = 95

    def __str__(self) -> str:
        covers = "" if self.least == self.most else f"; covers {self.least} to {self.most} %"
        return f"95 % interval ({self.method}{covers})"


CLAIMS: dict[tuple[Center, bool], Claim] = {
    ("mean", False): Claim("Student's t"),
    ("iqm", False): Claim("Yuen's t"),
    ("median", False): Claim("t of the median"),
    ("mean", True): Claim("Wilson's score with Student's t", 93, 100),
    ("iqm", True): Claim("Wilson's score with Yuen's t", 92, 100),
    ("median", True): Claim("t of the median", 83, 100),
}
"""By centre, and whether the values are shares; widest with three seeds, least sure of a median of equal seeds."""


def center_of(values: Values, center: Center, axis: int = 0) -> Values:
    """Take the mean, the median or the interquartile mean over seeds, the first axis unless told otherwise.

    The interquartile mean leaves out a quarter of the seeds, rounded down, at either end.
    """
    if center == "mean":
        return values.mean(axis=axis)
    return np.median(values, axis=axis) if center == "median" else np.asarray(trim_mean(values, TRIMMED, axis=axis))


def interval_over_seeds(values: Values, center: Center, rate: Rate | None = None) -> tuple[Values, Values]:
    """Bound the centre of the population that the seeds are drawn from, with 95 % confidence.

    Args:
        values: [seeds, ...], two seeds at least.
        center: What is bounded.
        rate: What the shares are of, where the values are shares.
    """
    middle = center_of(values, center)
    variance, freedom = _variance(values, center)
    quantile = float(t.ppf((1 + LEVEL) / 2, freedom))
    if rate is None:
        return middle - quantile * np.sqrt(variance), middle + quantile * np.sqrt(variance)
    share, variance = np.clip(middle / rate.top, 0, 1), variance / rate.top**2
    played = len(values) * rate.episodes
    if center == "median":
        half = quantile * np.sqrt(np.maximum(variance, _MEDIAN * _least_variance(share, played)))
        return rate.top * np.clip(share - half, 0, 1), rate.top * np.clip(share + half, 0, 1)
    low, high = score_interval(share, _count_effective(share, variance, played), quantile)
    return rate.top * low, rate.top * high


def score_interval(share: Values, n: float | Values, quantile: float = NORMAL_QUANTILE) -> tuple[Values, Values]:
    """Bound a probability by the share of n that came true (Wilson 1927); NaN where n is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        doubt = quantile**2 / np.asarray(n, np.float64)
        middle = (share + doubt / 2) / (1 + doubt)
        half = np.sqrt(doubt * share * (1 - share) + doubt**2 / 4) / (1 + doubt)
    return np.clip(middle - half, 0, 1), np.clip(middle + half, 0, 1)


def _variance(values: Values, center: Center) -> tuple[Values, int]:
    """Estimate the variance of a centre, and tell its degrees of freedom."""
    n = len(values)
    if center != "iqm":
        factor = 1 / n if center == "mean" else _MEDIAN / (n + _MEDIAN - 1)
        return factor * values.var(axis=0, ddof=1), n - 1
    cut = int(TRIMMED * n)
    kept, ranked = n - 2 * cut, np.sort(values, axis=0)
    winsorised = np.clip(values, ranked[cut], ranked[n - 1 - cut])
    return winsorised.var(axis=0, ddof=1) * (n - 1) / (kept * (kept - 1)), kept - 1


def _count_effective(share: Values, variance: Values, played: float | Values) -> Values:
    """Count the independent episodes whose share would vary as much; never more than were played."""
    with np.errstate(divide="ignore", invalid="ignore"):
        worth = np.where(variance > 0, share * (1 - share) / variance, played)
    return np.clip(worth, 1, played)


def _least_variance(share: Values, played: float | Values) -> Values:
    """Compute what the episodes alone leave open, with two of either outcome added (Agresti and Coull 1998)."""
    n = np.asarray(played, np.float64)
    middle = share + (0.5 - share) * 4 / (n + 4)
    return middle * (1 - middle) / n
