"""Statistics over seeds: arrays [seeds, T] in, a line, its band, the interval behind a level, and mu_w out.

A seed is one row and the only unit of replication: episodes are averaged per seed before they come here, so no
interval can be narrowed by stacking them. Knows no frames, no storage and draws nothing.

A percentile bootstrap of three to ten seeds covers far less than it says (`emtc bench coverage`), so a level is named
by Student's t here: around a mean, around an interquartile mean as Yuen (1974) does it, around a median with the
variance that it has in a normal population.

A share cannot leave [0, 1], and seeds that all won every episode are no proof that none would lose one. So shares have
Wilson's (1927) score interval, with the quantile of Student's t and as many episodes as their spread leaves: the design
effect of survey statistics. It never counts more episodes than were played, and never more than
`MOST_EPISODES_PER_SEED` for each seed: seeds that agree do not prove that no seed gets stuck.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri, stdtrit  # in no time, where `scipy.stats` takes half a second to import

Values = NDArray[np.float64]
Center = Literal["mean", "median", "iqm"]

LEVEL = 0.95
TRIMMED = 0.25
"""Share of the seeds that an interquartile mean leaves out at either end, rounded down to whole seeds."""
NORMAL_QUANTILE = float(ndtri((1 + LEVEL) / 2))
_MEDIAN = np.pi / 2
"""Variance of a normal sample's median over that of its mean, for many values."""

Band = Literal["std", "se", "ci", "bootstrap", "iqr", "minmax", "none"]
CENTERS: tuple[Center, ...] = get_args(Center)
BANDS: tuple[Band, ...] = get_args(Band)
CENTER_NAMES: dict[Center, str] = {"mean": "mean", "median": "median", "iqm": "interquartile mean"}
BAND_NAMES: dict[Band, str] = {
    "std": "standard deviation",
    "se": "standard error",
    "ci": "95 % interval",
    "bootstrap": "percentile bootstrap of 2000 draws",
    "iqr": "quartiles",
    "minmax": "least to greatest",
    "none": "no band",
}

USUAL_BAND: dict[Center, Band] = {"mean": "std", "median": "iqr", "iqm": "ci"}
"""The band that is usually printed beside a centre."""

BOOTSTRAP_COVERS = "Of 3 to 5 seeds a percentile bootstrap covers 74 to 83 %, where it means 95 %."
"""Measured by `emtc bench coverage`."""
MOST_POINTS = 500
"""A longer common grid is thinned to this; every seed is interpolated onto what is left."""
MOST_EPISODES_PER_SEED = 8
"""A seed counts as at most so many independent episodes in the interval of a mean or interquartile mean of shares.

With 160 episodes a seed and without this limit the interval of a mean of 3 to 5 seeds covers 84 % if the seeds' win
probabilities are Beta(1.8, 0.2), and 47 to 66 % if one seed in five is stuck at .4: where no such seed was drawn all
seeds agree, and the interval is as narrow as 800 episodes make it. With the limit it covers 99 % in both cases; of ten
seeds, one in five of which is stuck, 86 % (`emtc bench coverage`). Limits of 16 and 4 cover 66 and 99 % of the tables
of five seeds, one in five stuck; intervals of five seeds from Beta(9, 1) are .23, .28 (limit 8) and .38 wide.
"""
_DRAWS = 2000
_AT_ONCE = 128  # draws held in memory together


@dataclass(frozen=True)
class Rate:
    """Values that are shares of `top`, each counted over so many episodes; infinite where that is not known."""

    top: float = 1.0
    episodes: float | Values = np.inf


@dataclass(frozen=True)
class Claim:
    """The name of an interval, and which coverage [%] was measured of it with 3 to 10 seeds."""

    method: str
    least: int = 95
    most: int = 95
    fails: str = ""
    """Where the least coverage was measured."""

    def __str__(self) -> str:
        covers = "" if self.least == self.most else f"; covers {self.least} to {self.most} %"
        return f"95 % interval ({self.method}{covers}{f', least {self.fails}' if self.fails else ''})"


CLAIMS: dict[tuple[Center, bool], Claim] = {
    ("mean", False): Claim("Student's t"),
    ("iqm", False): Claim("Yuen's t"),
    ("median", False): Claim("t of the median"),
    ("mean", True): Claim("Wilson's score with Student's t", 86, 100, "if one seed in five is stuck"),
    ("iqm", True): Claim("Wilson's score with Yuen's t", 51, 100, "if one seed in five is stuck"),
    ("median", True): Claim("t of the median", 93, 100),
}
"""By centre, and whether the values are shares; measured by `emtc bench coverage`."""


def center_of(values: Values, center: Center, axis: int = 0) -> Values:
    """Take the mean, the median or the interquartile mean over seeds, the first axis unless told otherwise.

    The interquartile mean leaves out a quarter of the seeds, rounded down, at either end.
    """
    if center == "mean":
        return values.mean(axis=axis)
    if center == "median":
        return np.median(values, axis=axis)
    n = values.shape[axis]
    cut = int(TRIMMED * n)
    ordered = np.moveaxis(np.partition(values, (cut, n - cut - 1), axis=axis), axis, 0)
    return np.where(np.isnan(values).any(axis=axis), np.nan, ordered[cut : n - cut].mean(axis=0))


def interval_over_seeds(values: Values, center: Center, rate: Rate | None = None) -> tuple[Values, Values]:
    """Bound the centre of the population that the seeds are drawn from, with 95 % confidence.

    Args:
        values: [seeds, ...], two seeds at least.
        center: What is bounded.
        rate: What the shares are of, where the values are shares.
    """
    middle = center_of(values, center)
    variance, freedom = _variance(values, center)
    quantile = float(stdtrit(freedom, (1 + LEVEL) / 2))
    if rate is None:
        return middle - quantile * np.sqrt(variance), middle + quantile * np.sqrt(variance)
    share, variance = np.clip(middle / rate.top, 0, 1), variance / rate.top**2
    played = len(values) * rate.episodes
    if center == "median":
        half = quantile * np.sqrt(np.maximum(variance, _MEDIAN * least_variance(share, played)))
        return rate.top * np.clip(share - half, 0, 1), rate.top * np.clip(share + half, 0, 1)
    played = len(values) * np.minimum(rate.episodes, MOST_EPISODES_PER_SEED)
    low, high = score_interval(share, _count_effective(share, variance, played), quantile)
    return rate.top * low, rate.top * high


def score_interval(share: Values, n: float | Values, quantile: float = NORMAL_QUANTILE) -> tuple[Values, Values]:
    """Bound a probability by the share of n that came true (Wilson 1927); NaN where n is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        doubt = quantile**2 / np.asarray(n, np.float64)
        middle = (share + doubt / 2) / (1 + doubt)
        half = np.sqrt(doubt * share * (1 - share) + doubt**2 / 4) / (1 + doubt)
    return np.clip(middle - half, 0, 1), np.clip(middle + half, 0, 1)


def wilson_interval(wins: Values, n: Values) -> tuple[Values, Values]:
    """Bound a win probability with 95 % confidence from wins out of n (Wilson 1927); NaN where n is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return score_interval(wins / n, n)


def least_variance(share: float | Values, played: float | Values) -> Values:
    """Compute the sampling variance of a share of `played` episodes, with two of either outcome added.

    Source: Agresti and Coull (1998).
    """
    n = np.asarray(played, np.float64)
    middle = share + (0.5 - share) * 4 / (n + 4)
    return middle * (1 - middle) / n


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


class Curve(NamedTuple):
    """What one seed reached: values [T] at env steps [T], ascending."""

    steps: Values
    values: Values


class Summary(NamedTuple):
    """Centre over seeds and the edges of its band; the edges are None where there is no band."""

    center: Values
    low: Values | None
    high: Values | None


@dataclass(frozen=True)
class Reading:
    """How seeds become one number: the centre, and what the band around it means."""

    center: Center = "mean"
    band: Band = "std"

    def __str__(self) -> str:
        return self.say()

    def say(self, *, share: bool = False) -> str:
        """What a number over seeds and its band are; `share` if the values are shares."""
        if self.band == "none":
            return f"{CENTER_NAMES[self.center]} over seeds"
        sign = "±" if self.is_symmetric else "with"
        return f"{CENTER_NAMES[self.center]} {sign} {self.name_band(share=share)} over seeds"

    def name_band(self, *, share: bool = False) -> str:
        """The band's name, an interval's with its method."""
        return str(CLAIMS[self.center, share]) if self.band == "ci" else BAND_NAMES[self.band]

    @property
    def is_symmetric(self) -> bool:
        """Whether the band is a distance from the centre to both sides."""
        return self.band in ("std", "se")

    def summarize(self, values: Values, rate: Rate | None = None) -> Summary:
        """Summarise values [seeds, ...] over seeds; a single seed has no band. `rate` says of what they are shares."""
        middle = center_of(values, self.center)
        if self.band == "none" or len(values) < 2:
            return Summary(middle, None, None)
        return Summary(middle, *band_of(values, self, rate))


def finite(values: Iterable[float]) -> Values:
    """Keep the finite values."""
    numbers = np.asarray(list(values), np.float64)
    return numbers[np.isfinite(numbers)]


def align(curves: Sequence[Curve]) -> tuple[Values, Values]:
    """Bring seeds that were measured at different steps onto one grid by linear interpolation.

    Returns:
        Steps [T] at which any seed was measured and that all seeds reached, at most `MOST_POINTS` of them, and
        values [seeds, T]; T is 0 when the seeds share no stretch.
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
    """Mean over the last `window` of x up to each point, of values that are means over n: no later point changes it."""
    n = np.ones(len(y)) if n is None else n
    first = np.searchsorted(x, x - window, side="right")
    total, weight = (np.concatenate([[0.0], np.cumsum(part)]) for part in (y * n, n))
    places = np.arange(1, len(x) + 1)
    return (total[places] - total[first]) / (weight[places] - weight[first])


def band_of(values: Values, reading: Reading, rate: Rate | None = None) -> tuple[Values, Values]:
    """Bound the centre of values [seeds, ...]; needs two seeds at least."""
    if reading.is_symmetric:
        middle, spread = center_of(values, reading.center), values.std(axis=0, ddof=1)
        spread = spread / np.sqrt(len(values)) if reading.band == "se" else spread
        return middle - spread, middle + spread
    if reading.band == "ci":
        return interval_over_seeds(values, reading.center, rate)
    if reading.band == "bootstrap":
        return bootstrap_interval(values, reading.center)
    if reading.band == "iqr":
        low, high = np.quantile(values, (0.25, 0.75), axis=0)
        return low, high
    return values.min(axis=0), values.max(axis=0)


def bootstrap_interval(values: Values, center: Center, *, level: float = LEVEL, seed: int = 0) -> tuple[Values, Values]:
    """Percentile bootstrap of the centre: whole seeds are drawn with replacement, 2000 times.

    `scipy.stats.bootstrap` gives the same. For 500 points of five seeds it takes 115 to 360 ms, this 13 to 35: of five
    seeds there are only 126 draws, and a page of twelve lines is drawn anew at every press.

    Args:
        values: [seeds, ...]; a drawn seed brings its whole curve along.
        center: What is computed of each draw.
        level: Share of the draws inside the interval.
        seed: Of the draws: the same values always have the same interval.
    """
    drawn = np.sort(np.random.default_rng(seed).integers(len(values), size=(_DRAWS, len(values))), axis=1)
    distinct, counts = np.unique(drawn, axis=0, return_counts=True)
    parts = np.array_split(distinct, -(-len(distinct) // _AT_ONCE))
    centers = np.concatenate([center_of(values[rows], center, axis=1) for rows in parts])
    order = np.argsort(centers, axis=0)
    ranked, reached = np.take_along_axis(centers, order, axis=0), np.cumsum(counts[order], axis=0)
    low, high = (_rank(ranked, reached, share) for share in ((1 - level) / 2, (1 + level) / 2))
    return low, high


def _rank(ranked: Values, reached: NDArray[np.int64], share: float) -> Values:
    """Take a quantile of draws of which equal ones stand together: `reached` counts them up to each place."""
    place = share * (_DRAWS - 1)
    below, above = (
        np.take_along_axis(ranked, (reached <= k).sum(axis=0, keepdims=True), axis=0)[0]
        for k in (np.floor(place), np.ceil(place))
    )
    return below + (place % 1) * (above - below)


def mu_w(curve: Curve, at: Values | None = None) -> Values:
    """Normalise the area under one seed's win rate: its time average from the first evaluation to t.

    Args:
        curve: Win rate in [0, 1] over env steps.
        at: Where to evaluate; None takes the steps of the curve.

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
    reached = np.interp(t, steps, values)
    area = areas[before] + (t - steps[before]) * (values[before] + reached) / 2
    elapsed = t - steps[0]
    mean = np.divide(area, elapsed, out=reached.copy(), where=elapsed > 0)
    return np.where((t < steps[0]) | (t > steps[-1]), np.nan, mean)


def mu_w_curve(curve: Curve) -> Curve:
    """Follow mu_w of one seed over env steps."""
    return Curve(curve.steps, mu_w(curve))
