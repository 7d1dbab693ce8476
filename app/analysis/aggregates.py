"""Aggregation of curves and values over seeds: the center, the band around it, and the common grid of env steps.

Two functions work on the curve of one seed: `trailing_mean` smooths it, and `compute_mu_w` computes the time average of
a win rate (mu_w).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np

from app.analysis.bootstrap import bootstrap_interval
from app.analysis.intervals import (
    CENTER_NAMES,
    INTERVAL_LABELS,
    BinomialScale,
    Center,
    Values,
    compute_center,
    compute_interval,
)

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
DEFAULT_BANDS: dict[Center, Band] = {"mean": "std", "median": "iqr", "iqm": "ci"}
"""Center → the band that papers usually show with it."""
MIN_IQM_SEEDS = 5
"""Smallest number of seeds whose interquartile mean is neither their mean nor their median."""
MAX_POINTS = 500
"""Maximum number of points of the common grid of several seeds; a longer grid is thinned."""


class Summary(NamedTuple):
    """Center over seeds [...] and the edges of its band [...]; the edges are None without a band."""

    center: Values
    low: Values | None
    high: Values | None


@dataclass(frozen=True)
class Aggregation:
    """How values of several seeds are aggregated: the center and the kind of band."""

    center: Center = "mean"
    band: Band = "std"

    def __str__(self) -> str:
        return self.describe()

    def describe(self, *, is_fraction: bool = False) -> str:
        """Describe the center and the band; `is_fraction` if the values are fractions."""
        if self.band == "none":
            return f"{CENTER_NAMES[self.center]} over seeds"
        sign = "±" if self.is_symmetric else "with"
        return f"{CENTER_NAMES[self.center]} {sign} {self.name_band(is_fraction=is_fraction)} over seeds"

    def name_band(self, *, is_fraction: bool = False) -> str:
        """Return the name of the band; for a confidence interval also its method and coverage."""
        return str(INTERVAL_LABELS[self.center, is_fraction]) if self.band == "ci" else BAND_NAMES[self.band]

    @property
    def is_symmetric(self) -> bool:
        """Whether the band extends equally to both sides of the center."""
        return self.band in ("std", "se")

    def summarize(self, values: Values, scale: BinomialScale | None = None) -> Summary:
        """Aggregate values [seeds, ...] over seeds; a single seed has no band.

        Args:
            values: [seeds, ...].
            scale: Scale and number of episodes of the values, for a binomial interval; None if they are not fractions.
        """
        center = compute_center(values, self.center)
        if self.band == "none" or len(values) < 2:
            return Summary(center, None, None)
        return Summary(center, *compute_band(values, self, scale))


def join_summaries(summaries: Sequence[Summary]) -> Summary:
    """Concatenate the summaries of several points to the summary of a line. It has a band if each point has one."""

    def join(parts: Iterable[Values | None]) -> Values | None:
        arrays = [part for part in parts if part is not None]
        return np.concatenate(arrays) if len(arrays) == len(summaries) else None

    centers, lows, highs = zip(*summaries, strict=True)
    return Summary(np.concatenate(centers), join(lows), join(highs))


def select_finite(values: Iterable[float]) -> Values:
    """Select the finite values."""
    numbers = np.asarray(list(values), np.float64)
    return numbers[np.isfinite(numbers)]


def explain_small_samples(aggregation: Aggregation | None, counts: Iterable[int]) -> str:
    """Return a note if an interquartile mean is computed from fewer than five seeds; else an empty text.

    Args:
        aggregation: Aggregation over seeds; None if there are no interquartile means.
        counts: Numbers of seeds that are aggregated.
    """
    if aggregation is None or aggregation.center != "iqm" or min(counts, default=MIN_IQM_SEEDS) >= MIN_IQM_SEEDS:
        return ""
    return "The interquartile mean of 2 or 3 seeds is their mean; of 4 seeds it is their median."


def interpolate_to_common_grid(curves: Sequence[tuple[Values, Values]]) -> tuple[Values, Values]:
    """Interpolate the curves of several seeds linearly onto one grid of x.

    Args:
        curves: x and values of each seed, with ascending x.

    Returns:
        x [T] and values [seeds, T]. The grid has every x at which any seed was measured within the range that all seeds
        have, thinned to at most `MAX_POINTS`. T is 0 if the seeds have no common range.
    """
    if not curves or any(not len(x) for x, _ in curves):
        return np.empty(0), np.empty((len(curves), 0))
    grid = np.unique(np.concatenate([x for x, _ in curves]))
    first = max(x[0] for x, _ in curves)
    last = min(x[-1] for x, _ in curves)
    grid = grid[(grid >= first) & (grid <= last)]
    if len(grid) > MAX_POINTS:
        grid = grid[np.linspace(0, len(grid) - 1, MAX_POINTS).round().astype(int)]
    return grid, np.stack([np.interp(grid, x, values) for x, values in curves])


def trailing_mean(x: Values, y: Values, window: float, n: Values | None = None) -> Values:
    """Compute the mean of y over the last `window` of x at each point. Later points do not change it.

    Args:
        x: [T] ascending.
        y: [T].
        window: Length of the window, in the unit of x.
        n: Weights [T], for instance the number of samples behind each y; default: equal weights.
    """
    n = np.ones(len(y)) if n is None else n
    # the window of point i has the points first[i] to end[i] - 1
    first = np.searchsorted(x, x - window, side="right")
    end = np.arange(1, len(x) + 1)
    cumulative_sum = np.concatenate([[0.0], np.cumsum(y * n)])
    cumulative_weight = np.concatenate([[0.0], np.cumsum(n)])
    return (cumulative_sum[end] - cumulative_sum[first]) / (cumulative_weight[end] - cumulative_weight[first])


def compute_band(values: Values, aggregation: Aggregation, scale: BinomialScale | None = None) -> tuple[Values, Values]:
    """Compute the edges of the band of values [seeds, ...]; needs at least two seeds."""
    if aggregation.is_symmetric:
        center = compute_center(values, aggregation.center)
        spread = values.std(axis=0, ddof=1)
        if aggregation.band == "se":
            spread = spread / np.sqrt(len(values))
        return center - spread, center + spread
    if aggregation.band == "ci":
        return compute_interval(values, aggregation.center, scale)
    if aggregation.band == "bootstrap":
        return bootstrap_interval(values, aggregation.center)
    if aggregation.band == "iqr":
        low, high = np.quantile(values, (0.25, 0.75), axis=0)
        return low, high
    return values.min(axis=0), values.max(axis=0)


def compute_mu_w(steps: Values, values: Values, at: Values | None = None) -> Values:
    """Compute the time average of one seed's win rate from its first evaluation to t (normalized area under the curve).

    Args:
        steps: Env steps of the evaluations [T], ascending.
        values: Win rate in [0, 1] at these env steps [T].
        at: Env steps t; default: `steps`.

    Returns:
        mu_w at each t; NaN before the first evaluation and after the last.

    Source: (1/t) integral of the win rate by the trapezoid rule. Time counts from the first evaluation, which
    follows the first training round, so that a constant win rate c has mu_w = c at every t.
    """
    t = steps if at is None else np.asarray(at, np.float64)
    if not len(steps):
        return np.full(len(t), np.nan)
    areas = np.concatenate([[0.0], np.cumsum(np.diff(steps) * (values[1:] + values[:-1]) / 2)])
    last_index = np.clip(np.searchsorted(steps, t, side="right") - 1, 0, len(steps) - 1)
    value_at_t = np.interp(t, steps, values)
    area = areas[last_index] + (t - steps[last_index]) * (values[last_index] + value_at_t) / 2
    elapsed = t - steps[0]
    mean = np.divide(area, elapsed, out=value_at_t.copy(), where=elapsed > 0)
    return np.where((t < steps[0]) | (t > steps[-1]), np.nan, mean)
