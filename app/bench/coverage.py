"""How often does an interval that names a level hold the truth? Simulated tables of 3, 5 and 10 seeds.

Every table draws its seeds anew from a population whose mean, median and interquartile mean are known; counted is the
share of tables whose interval holds it. The populations: `normal`, the standard normal distribution; `piled`, win rates
of 16 episodes where each seed wins with a probability of its own, drawn from Beta(9, 1): 36 % of the seeds win every
episode; `half`, min(1, N(1, 0.1)): half of the seeds stand at 1 exactly. An interval is met if it covers what its label
says, give or take two points. Everything is drawn from fixed seeds, so `--json` is the same on every machine.
It is what `app/bench/measured/coverage.json` keeps and the Method page shows.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import get_args
from zlib import crc32

import numpy as np
from scipy.stats import betabinom, binom, norm

from app.analysis.bootstrap import bootstrap_interval
from app.analysis.collapse import compute_percentile_interval, resample_sums
from app.analysis.intervals import (
    INTERVAL_LABELS,
    BinomialScale,
    Center,
    IntervalLabel,
    Values,
    compute_interval,
    compute_score_interval,
)
from app.analysis.significance import PAIRED_LABEL, compare_seeds, performance_profile, probability_of_improvement
from app.bench import Figure, make_figure

SIZES = (3, 5, 10)
TABLES = 10_000
FEWER = 2_000
"""Tables of what takes longer: the bootstrap, and what compares two variants one table at a time."""
EPISODES, FINAL_EPISODES, BATTLES = 16, 160, (16, 32)
STUCK_SHARE, STUCK_RATE = 0.2, 0.4
TOLERANCE = 2.0  # percentage points
_GRID = (np.arange(100_000) + 0.5) / 100_000


@dataclass(frozen=True)
class Population:
    """What seeds are drawn from, by its quantiles; `rate` where its values are shares."""

    name: str
    quantile: Callable[[Values], Values]
    rate: BinomialScale | None = None

    def draw(self, rng: np.random.Generator, seeds: int, tables: int) -> Values:
        """Draw values [seeds, tables]."""
        return self.quantile(rng.random((seeds, tables)))

    def truth(self, center: Center) -> float:
        """Compute the centre of the population."""
        if center == "median":
            return float(self.quantile(np.array([0.5]))[0])
        part = _GRID if center == "mean" else 0.25 + _GRID / 2
        return float(self.quantile(part).mean())


def _won_share(episodes: int, a: float, b: float) -> Callable[[Values], Values]:
    """Quantiles of the share won of so many episodes, if a seed's win probability is Beta(a, b)."""

    @cache
    def distribution() -> Values:
        return betabinom(episodes, a, b).cdf(np.arange(episodes))

    return lambda u: np.searchsorted(distribution(), u) / episodes


def _stuck(u: Values) -> Values:
    """Quantiles of the share won of 160 episodes: a stuck seed's is binomial, every other seed wins all."""
    stuck = binom(FINAL_EPISODES, STUCK_RATE).ppf(np.minimum(u / STUCK_SHARE, 1 - 1e-12)) / FINAL_EPISODES
    return np.where(u < STUCK_SHARE, stuck, 1.0)


NORMAL = Population("normal", norm.ppf)
PILED = Population("piled", _won_share(EPISODES, 9, 1), BinomialScale(episodes=EPISODES))
HALF = Population("half", lambda u: np.clip(norm.ppf(u, 1.0, 0.1), 0, 1), BinomialScale(episodes=EPISODES))
SKEWED = Population("skewed", _won_share(FINAL_EPISODES, 1.8, 0.2), BinomialScale(episodes=FINAL_EPISODES))
STUCK = Population("stuck", _stuck, BinomialScale(episodes=FINAL_EPISODES))
POPULATIONS = (NORMAL, PILED, HALF, SKEWED, STUCK)
CENTERS: tuple[Center, ...] = get_args(Center)
_AT_LEAST = IntervalLabel("", 95, 100)
_PERCENTILE = "percentile bootstrap of 2000 draws, named without a level"


def run() -> list[Figure]:
    """Measure `coverage.<interval>.<data>.<n>`, the share of tables [%] whose interval holds the truth."""
    return [*measure_centers(), *_bootstraps(), *_two_variants(), *_profiles(), *_evaluations(), _collapse()]


def measure_centers() -> list[Figure]:
    """Measure the intervals of mean, interquartile mean and median."""
    return [measure_center(center, population, n) for center in CENTERS for population in POPULATIONS for n in SIZES]


def measure_center(center: Center, population: Population, n: int, tables: int = TABLES) -> Figure:
    """Measure the interval of one centre on one population."""
    name = f"{center}.{population.name}.{n}"
    values = population.draw(_generator(name), n, tables)
    low, high = compute_interval(values, center, population.rate)
    return _figure(
        name, _holds(low, high, population.truth(center)), INTERVAL_LABELS[center, population.rate is not None]
    )


def _bootstraps() -> Iterator[Figure]:
    for center in CENTERS:
        for population in POPULATIONS:
            for n in SIZES:
                name = f"bootstrap-{center}.{population.name}.{n}"
                low, high = bootstrap_interval(population.draw(_generator(name), n, FEWER), center)
                yield _figure(name, _holds(low, high, population.truth(center)), None, _PERCENTILE)


def _two_variants() -> Iterator[Figure]:
    """Compare two variants by the differences of equal seeds: alike, shifted, and one of which gets stuck.

    Normal: means of .7 and .5 with a standard deviation of .1. `sound` wins every episode.
    """
    shifted = Population("normal", lambda u: norm.ppf(u, 0.7, 0.1), BinomialScale(episodes=EPISODES))
    middling = Population("normal", lambda u: norm.ppf(u, 0.5, 0.1), BinomialScale(episodes=EPISODES))
    sound = Population("sound", np.ones_like, BinomialScale(episodes=FINAL_EPISODES))
    better = float(norm.cdf(0.2 / (0.1 * np.sqrt(2))))
    for name, x, y, gap, chance in (
        ("normal", shifted, middling, 0.2, better),
        ("piled", PILED, PILED, 0.0, 0.5),
        ("skewed", SKEWED, SKEWED, 0.0, 0.5),
        ("stuck", sound, STUCK, 1 - STUCK.truth("mean"), (1 + STUCK_SHARE) / 2),
    ):
        for n in SIZES:
            rng = _generator(f"two.{name}.{n}")
            ours, theirs = x.draw(rng, n, FEWER).T, y.draw(rng, n, FEWER).T
            gaps = [
                compare_seeds(dict(enumerate(a)), dict(enumerate(b)), x.rate) for a, b in zip(ours, theirs, strict=True)
            ]
            low, high = np.array([(each.low, each.high) for each in gaps]).T
            yield _figure(f"difference.{name}.{n}", _holds(low, high, gap), PAIRED_LABEL)
            wins = [probability_of_improvement([a], [b]) for a, b in zip(ours, theirs, strict=True)]
            low, high = np.array([(each.low, each.high) for each in wins]).T
            yield _figure(f"improvement.{name}.{n}", _holds(low, high, chance), _AT_LEAST)


def _profiles() -> Iterator[Figure]:
    """Measure Wilson's interval of a share of runs, on average over thresholds from one tail to the other."""
    quantiles = np.linspace(0.05, 0.95, 19)
    for n in SIZES:
        name = f"profile.normal.{n}"
        tables = NORMAL.draw(_generator(name), n, FEWER).T
        edges = np.array([performance_profile([each], norm.ppf(quantiles))[1:] for each in tables])
        yield _figure(name, _holds(edges[:, 0], edges[:, 1], 1 - quantiles), IntervalLabel("Wilson's score"))


def _evaluations() -> Iterator[Figure]:
    """Measure Wilson's interval of one evaluation, on average over probabilities that are piled up at 1, Beta(9, 1)."""
    for n in BATTLES:
        name = f"wilson.piled.{n}"
        rng = _generator(name)
        p = rng.beta(9, 1, TABLES)
        low, high = compute_score_interval(rng.binomial(n, p) / n, n)
        yield _figure(
            name, _holds(low, high, p), IntervalLabel("Wilson's score"), "n counts the episodes of one evaluation"
        )


def _collapse(episodes: int = 60, nodes: int = 5, tables: int = 500) -> Figure:
    """Measure the bootstrap over whole episodes that the numbers of an embedding have."""
    name = f"episodes.normal.{episodes}"
    rng, member, held = _generator(name), np.repeat(np.arange(episodes), nodes), []
    for table in range(tables):
        value = rng.normal(size=episodes)[member] + rng.normal(size=len(member))
        sums = resample_sums(np.stack([value, np.ones(len(value))], axis=1), member, seed=table)
        low, high = compute_percentile_interval(sums[:, 0] / sums[:, 1])
        held.append(low <= 0 <= high)
    share = 100 * float(np.mean(held))
    return _figure(name, share, IntervalLabel("percentile bootstrap"), "n counts the episodes of a memory's nodes")


def _generator(name: str) -> np.random.Generator:
    return np.random.default_rng(crc32(name.encode()))


def _holds(low: Values, high: Values, truth: float | Values) -> float:
    """Compute the share [%] of intervals that hold the truth, but for rounding."""
    return 100 * float(((low <= truth + 1e-9) & (truth <= high + 1e-9)).mean())


def _figure(name: str, covered: float, claim: IntervalLabel | None, reference: str = "") -> Figure:
    met = None if claim is None else claim.min_coverage - TOLERANCE <= covered <= claim.max_coverage + TOLERANCE
    known = reference or (str(claim) if claim and claim.method else "at least 95 %")
    least = None if claim is None else claim.min_coverage
    return make_figure(f"coverage.{name}", covered, "% of tables", least, known, met=met, digits=1)
