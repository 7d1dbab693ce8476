"""Is one variant better than another? Differences over seeds: estimate, interval, p values, verdict.

`compare_seeds` computes every such difference. Compare, Sweeps, the command line and the findings call it, so that they
show the same interval for the same question. A seed is the unit: episodes are averaged per seed first.

Runs of two variants with the same seed start from the same networks and the same random streams, so their results are
correlated. Where both variants have the same seeds the analysis is therefore paired by seed.

Probability of improvement and performance profiles are those of Agarwal et al., "Deep reinforcement learning at the
edge of the statistical precipice" (2021), with other intervals: a bootstrap of three to five seeds covers far less than
its level (`emtc bench coverage`). No storage and no drawing here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np
from scipy.optimize import root_scalar
from scipy.special import nctdtrinc, stdtr, stdtrit

from app.analysis.statistics import LEVEL, Claim, Rate, Values, least_variance, score_interval

Scores = Sequence[Values]
"""The last value of every seed, one array for each task."""
SeedValues = Mapping[int, float]
"""One number per run, by seed."""
Verdict = Literal[
    "too few seeds", "equal", "supported", "contradicted", "no relevant difference", "cannot tell"
]  # fmt: skip
ALPHA: Final = 1 - LEVEL
POWER: Final = 0.8
FEWEST_SEEDS: Final = 5
"""A verdict needs this many pairs of seeds, or seeds of each variant."""
NEGLIGIBLE: Final = 0.05
"""Win rates whose difference certainly lies within this distance of 0 are equal for practical purposes."""
PAIRED: Final = Claim("paired t", 46, 100, "if one seed in five of one variant gets stuck")
"""The interval of a paired comparison. Measured by `emtc bench coverage`, 3 to 10 pairs."""
_PERMUTATIONS = 20_000
_CLOSE = 1e-9  # to 0 and 1, where the variance of a probability of improvement vanishes


@dataclass(frozen=True)
class Interval:
    """An estimate with its 95 % interval; NaN where there is none."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Difference:
    """How far the mean of one variant lies above that of another, or above 0; NaN where a number is not defined."""

    estimate: float
    low: float
    high: float
    n: tuple[int, ...]
    """Pairs of seeds; or the seeds of one variant; or, without pairs, the seeds of both; of pooled tasks their sums."""
    fewest: int
    """Least number of seeds, or pairs, behind any of the means."""
    is_paired: bool = False
    unpaired: tuple[int, ...] = ()
    """Seeds that only one of the variants has; they are left out of a paired comparison."""
    standard_error: float = np.nan
    dof: float = np.nan
    p: float = np.nan
    """Two-sided p value of the t test."""
    randomization_p: float = np.nan
    """Two-sided p value of the exact sign-flip test; without pairs, of the exact permutation test of the means."""
    is_equal: bool = False
    """Whether two variants have the same number in every one of at least two pairs of seeds."""

    @property
    def detectable(self) -> float:
        """The difference that a test at p < .05 detects with a power of 80 %, with this standard error and dof."""
        if not (self.dof > 0 and self.standard_error > 0):
            return np.nan
        critical = stdtrit(self.dof, 1 - ALPHA / 2)
        return float(nctdtrinc(self.dof, 1 - POWER, critical) * self.standard_error)

    @property
    def method(self) -> str:
        """The name of the interval, with the coverage that was measured; empty where there is no interval."""
        if not np.isfinite(self.low):
            return ""
        return str(PAIRED if self.is_paired else Claim("Welch's t") if len(self.n) == 2 else Claim("Student's t"))


def compare_seeds(x: SeedValues, y: SeedValues | None = None, rate: Rate | None = None) -> Difference:
    """Compare the means of two variants over seeds, or of one variant with 0.

    The comparison is paired if every seed of one variant exists in the other: Student's t of the differences, and
    all sign flips of them. Else Welch's t, and all permutations of the seeds. Seeds below 0 number the runs of an
    import that names no seeds; they are never paired.

    Args:
        x: Number of each seed of the first variant.
        y: Number of each seed of the second variant; None compares x with 0.
        rate: What the numbers are shares of, where they are shares. The interval is then at least as wide as the
            number of episodes demands, and lies in [-top, top].

    Returns:
        The difference x - y. With fewer than two seeds on a side it has no interval.
    """
    if y is None:
        values = np.array([x[seed] for seed in sorted(x)], np.float64)
        return _one_sample(values, _episode_variance([values], rate), rate)
    common = sorted(x.keys() & y.keys())
    if common and common[0] >= 0 and len(common) == min(len(x), len(y)):
        ours, theirs = (np.array([side[seed] for seed in common], np.float64) for side in (x, y))
        unpaired = tuple(sorted(x.keys() ^ y.keys()))
        floor = _episode_variance([ours, theirs], rate)
        return _one_sample(ours - theirs, floor, rate, is_paired=True, unpaired=unpaired)
    ours, theirs = (np.array([side[seed] for seed in sorted(side)], np.float64) for side in (x, y))
    return _welch(ours, theirs, _episode_variance([ours, theirs], rate), rate)


def pool_differences(differences: Sequence[Difference], rate: Rate | None = None) -> Difference:
    """Average the differences of several tasks, each with the same weight.

    The standard errors add in squares; degrees of freedom by Welch and Satterthwaite.
    """
    variances = np.array([each.standard_error**2 for each in differences])
    dofs = np.array([each.dof for each in differences])
    with np.errstate(divide="ignore", invalid="ignore"):
        dof = float(variances.sum() ** 2 / (variances**2 / dofs).sum())
    sizes = [each.n for each in differences]
    same_form = len({len(n) for n in sizes}) == 1
    pooled = Difference(
        float(np.mean([each.estimate for each in differences])),
        np.nan,
        np.nan,
        tuple(map(sum, zip(*sizes, strict=True))) if same_form else (sum(map(sum, sizes)),),
        min(each.fewest for each in differences),
        all(each.is_paired for each in differences),
        is_equal=all(each.is_equal for each in differences),
    )
    return _with_t(pooled, float(variances.sum()) / len(differences) ** 2, dof, rate)


def adjust_p(p_values: Sequence[float], families: Sequence[str]) -> list[float]:
    """Adjust p values by Holm's step-down method (1979), each family of tests alone.

    Args:
        p_values: One for each test; NaN means that there is no test, and stays NaN.
        families: Name of the family of each test.
    """
    p = np.asarray(p_values, np.float64)
    adjusted = np.full(len(p), np.nan)
    for family in set(families):
        places = [place for place, name in enumerate(families) if name == family and np.isfinite(p[place])]
        largest = 0.0
        for rank, place in enumerate(sorted(places, key=lambda place: p[place])):
            largest = max(largest, min(1.0, (len(places) - rank) * p[place]))
            adjusted[place] = largest
    return adjusted.tolist()


def decide(difference: Difference, adjusted_p: float, *, sign: int = 1, is_rate: bool = False) -> Verdict:
    """Decide what the seeds show about the statement that the difference has this sign.

    Args:
        difference: What was measured.
        adjusted_p: Its p value, adjusted for the other tests of its family.
        sign: 1 or -1.
        is_rate: Whether it is a difference of win rates, which can be equal for practical purposes.
    """
    if difference.is_equal:
        return "equal"
    if difference.fewest < FEWEST_SEEDS or not np.isfinite(difference.low):
        return "too few seeds"
    if adjusted_p < ALPHA:
        return "supported" if sign * difference.estimate > 0 else "contradicted"
    if is_rate and max(abs(difference.low), abs(difference.high)) < NEGLIGIBLE:
        return "no relevant difference"
    return "cannot tell"


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


def _one_sample(
    values: Values, floor: float, rate: Rate | None, *, is_paired: bool = False, unpaired: tuple[int, ...] = ()
) -> Difference:
    """Student's t of values against 0, with the exact sign-flip test; `floor` is the least variance of the mean."""
    n = len(values)
    base = Difference(
        float(values.mean()),
        np.nan,
        np.nan,
        (n,),
        n,
        is_paired,
        unpaired,
        randomization_p=_randomize((values,)) if n > 1 else np.nan,
        is_equal=is_paired and n > 1 and not values.any(),
    )
    return base if n < 2 else _with_t(base, max(float(values.var(ddof=1)) / n, floor), n - 1, rate)


def _welch(x: Values, y: Values, floor: float, rate: Rate | None) -> Difference:
    """Welch's t of two independent groups of seeds, with the exact permutation test of the means."""
    n, estimate = (len(x), len(y)), float(x.mean() - y.mean())
    if min(n) < 2:
        return Difference(estimate, np.nan, np.nan, n, min(n))
    base = Difference(estimate, np.nan, np.nan, n, min(n), randomization_p=_randomize((x, y)))
    parts = np.array([x.var(ddof=1) / n[0], y.var(ddof=1) / n[1]])
    dofs = np.array([n[0] - 1, n[1] - 1])
    dof = float(parts.sum() ** 2 / (parts**2 / dofs).sum()) if parts.sum() > 0 else float(dofs.min())
    return _with_t(base, max(float(parts.sum()), floor), dof, rate)


def _with_t(base: Difference, variance: float, dof: float, rate: Rate | None) -> Difference:
    """Add interval and p value to a difference whose estimate has this variance; none where nothing varies."""
    if not (variance > 0 and dof > 0):
        return base
    error = float(np.sqrt(variance))
    reach = float(stdtrit(dof, (1 + LEVEL) / 2)) * error
    low, high = base.estimate - reach, base.estimate + reach
    if rate is not None:
        low, high = max(low, -rate.top), min(high, rate.top)
    p = float(2 * stdtr(dof, -abs(base.estimate) / error))
    return replace(base, low=low, high=high, standard_error=error, dof=dof, p=p)


def _episode_variance(sides: Sequence[Values], rate: Rate | None) -> float:
    """Compute the sampling variance that the played episodes alone leave in a difference of mean shares."""
    if rate is None or not np.isfinite(np.max(rate.episodes)):
        return 0.0
    episodes = float(np.min(rate.episodes))
    variances = [least_variance(np.clip(side.mean() / rate.top, 0, 1), len(side) * episodes) for side in sides]
    return rate.top**2 * float(np.sum(variances))


def _randomize(samples: tuple[Values, ...]) -> float:
    """Compute the share of all sign flips of one sample, or permutations of two, with a mean at least as far from 0.

    Above 20,000 of them a sample of so many is used.
    """
    from scipy.stats import permutation_test  # takes half a second to import, which no other figure needs

    def statistic(*parts: Values, axis: int) -> Values:
        first, *others = (part.mean(axis=axis) for part in parts)
        return np.abs(first - others[0] if others else first)

    result = permutation_test(
        samples,
        statistic,
        permutation_type="samples" if len(samples) == 1 else "independent",
        alternative="greater",
        vectorized=True,
        n_resamples=_PERMUTATIONS,
        rng=np.random.default_rng(0),
    )
    return float(result.pvalue)


def _beats(ours: Values, theirs: Values) -> float:
    """Compute the share of pairs that ours wins; a tie counts half."""
    return float(((ours[:, None] > theirs) + 0.5 * (ours[:, None] == theirs)).mean())


def _win_variance(theta: float, n: int, k: int) -> float:
    """Compute the variance of the share of pairs won if the probability of a win is theta (Hanley and McNeil)."""
    more = (n + k) / 2 - 1
    return theta * (1 - theta) * (1 + more * ((1 - theta) / (2 - theta) + theta / (1 + theta))) / (n * k)
