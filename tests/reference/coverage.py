"""How often does an interval contain the true value? Simulated tables of 3, 5 and 10 seeds.

The seeds of each table are drawn from a population with known mean, median and interquartile mean. The result is the
percentage of tables whose interval contains this value. The populations:

    normal   the standard normal distribution
    piled    win rates of 16 episodes; the win probability of each seed is drawn from Beta(9, 1), and 36 % of the
             seeds win every episode
    half     min(1, N(1, 0.1)): half of the seeds are exactly 1
    skewed   win rates of 160 episodes; the win probability of each seed is drawn from Beta(1.8, 0.2)
    stuck    win rates of 160 episodes; one seed in five wins 40 % of them, the others win all

An interval meets its budget if its coverage is within two percentage points of the range in its label. The random
seeds are fixed, so the output of `--json` is the same on every machine. `app/guide/measured/coverage.json` is this
output, and the Method page shows it.

    python -m tests.reference.coverage --json
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import get_args
from zlib import crc32

import numpy as np
from scipy.stats import betabinom, binom, norm

from app.analysis.bootstrap import bootstrap_interval, compute_percentile_interval, resample_sums
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
from tests.report import BenchResult, add_json_option, make_result, run_and_report

SIZES = (3, 5, 10)
TABLES = 10_000
FEWER_TABLES = 2_000
"""Number of tables for slow intervals: the bootstrap, and comparisons of two variants."""
EPISODES, FINAL_EPISODES, BATTLES = 16, 160, (16, 32)
STUCK_SHARE, STUCK_RATE = 0.2, 0.4
TOLERANCE = 2.0  # percentage points
_GRID = (np.arange(100_000) + 0.5) / 100_000


@dataclass(frozen=True)
class Population:
    """A distribution of seeds, given by its quantile function. `rate` is set if the values are fractions."""

    name: str
    quantile: Callable[[Values], Values]
    rate: BinomialScale | None = None

    def draw(self, rng: np.random.Generator, seeds: int, tables: int) -> Values:
        """Draw values [seeds, tables]."""
        return self.quantile(rng.random((seeds, tables)))

    def truth(self, center: Center) -> float:
        """Compute the center of the population."""
        if center == "median":
            return float(self.quantile(np.array([0.5]))[0])
        levels = _GRID if center == "mean" else 0.25 + _GRID / 2
        return float(self.quantile(levels).mean())


def _beta_binomial_quantile(episodes: int, a: float, b: float) -> Callable[[Values], Values]:
    """Return the quantile function of win rates of `episodes` episodes with win probabilities from Beta(a, b)."""

    @cache
    def distribution() -> Values:
        return betabinom(episodes, a, b).cdf(np.arange(episodes))

    return lambda u: np.searchsorted(distribution(), u) / episodes


def _stuck_quantile(u: Values) -> Values:
    """Compute quantiles of the win rate of 160 episodes: binomial for stuck seeds, 1 for all others."""
    stuck = binom(FINAL_EPISODES, STUCK_RATE).ppf(np.minimum(u / STUCK_SHARE, 1 - 1e-12)) / FINAL_EPISODES
    return np.where(u < STUCK_SHARE, stuck, 1.0)


NORMAL = Population("normal", norm.ppf)
PILED = Population("piled", _beta_binomial_quantile(EPISODES, 9, 1), BinomialScale(episodes=EPISODES))
HALF = Population("half", lambda u: np.clip(norm.ppf(u, 1.0, 0.1), 0, 1), BinomialScale(episodes=EPISODES))
SKEWED = Population("skewed", _beta_binomial_quantile(FINAL_EPISODES, 1.8, 0.2), BinomialScale(episodes=FINAL_EPISODES))
STUCK = Population("stuck", _stuck_quantile, BinomialScale(episodes=FINAL_EPISODES))
POPULATIONS = (NORMAL, PILED, HALF, SKEWED, STUCK)
CENTERS: tuple[Center, ...] = get_args(Center)
_AT_LEAST = IntervalLabel("", 95, 100)
_PERCENTILE = "percentile bootstrap of 2000 draws, labelled without a level"


def run() -> list[BenchResult]:
    """Measure `coverage.<interval>.<population>.<n>`: the tables [%] whose interval contains the true value."""
    return [
        *measure_centers(),
        *_measure_bootstraps(),
        *_measure_comparisons(),
        *_measure_profiles(),
        *_measure_evaluations(),
        _measure_collapse(),
    ]


def measure_centers() -> list[BenchResult]:
    """Measure the intervals of mean, interquartile mean and median."""
    return [measure_center(center, population, n) for center in CENTERS for population in POPULATIONS for n in SIZES]


def measure_center(center: Center, population: Population, n: int, tables: int = TABLES) -> BenchResult:
    """Measure the interval of one center on one population."""
    name = f"{center}.{population.name}.{n}"
    values = population.draw(_make_generator(name), n, tables)
    low, high = compute_interval(values, center, population.rate)
    coverage = _compute_coverage(low, high, population.truth(center))
    return _make_result(name, coverage, INTERVAL_LABELS[center, population.rate is not None])


def _measure_bootstraps() -> Iterator[BenchResult]:
    for center in CENTERS:
        for population in POPULATIONS:
            for n in SIZES:
                name = f"bootstrap-{center}.{population.name}.{n}"
                low, high = bootstrap_interval(population.draw(_make_generator(name), n, FEWER_TABLES), center)
                yield _make_result(name, _compute_coverage(low, high, population.truth(center)), None, _PERCENTILE)


def _measure_comparisons() -> Iterator[BenchResult]:
    """Compare two variants by the differences of equal seeds: equal populations, shifted ones, and a stuck one.

    Normal: means of 0.7 and 0.5 with a standard deviation of 0.1. `sound` wins every episode.
    """
    shifted = Population("normal", lambda u: norm.ppf(u, 0.7, 0.1), BinomialScale(episodes=EPISODES))
    middling = Population("normal", lambda u: norm.ppf(u, 0.5, 0.1), BinomialScale(episodes=EPISODES))
    sound = Population("sound", np.ones_like, BinomialScale(episodes=FINAL_EPISODES))
    p_shifted_wins = float(norm.cdf(0.2 / (0.1 * np.sqrt(2))))
    for name, x, y, difference, probability in (
        ("normal", shifted, middling, 0.2, p_shifted_wins),
        ("piled", PILED, PILED, 0.0, 0.5),
        ("skewed", SKEWED, SKEWED, 0.0, 0.5),
        ("stuck", sound, STUCK, 1 - STUCK.truth("mean"), (1 + STUCK_SHARE) / 2),
    ):
        for n in SIZES:
            rng = _make_generator(f"two.{name}.{n}")
            x_tables, y_tables = x.draw(rng, n, FEWER_TABLES).T, y.draw(rng, n, FEWER_TABLES).T
            differences = [
                compare_seeds(dict(enumerate(a)), dict(enumerate(b)), x.rate)
                for a, b in zip(x_tables, y_tables, strict=True)
            ]
            low, high = np.array([(interval.low, interval.high) for interval in differences]).T
            yield _make_result(f"difference.{name}.{n}", _compute_coverage(low, high, difference), PAIRED_LABEL)
            improvements = [probability_of_improvement([a], [b]) for a, b in zip(x_tables, y_tables, strict=True)]
            low, high = np.array([(interval.low, interval.high) for interval in improvements]).T
            yield _make_result(f"improvement.{name}.{n}", _compute_coverage(low, high, probability), _AT_LEAST)


def _measure_profiles() -> Iterator[BenchResult]:
    """Measure Wilson's interval of the fraction of runs above a threshold, averaged over 19 thresholds."""
    quantiles = np.linspace(0.05, 0.95, 19)
    for n in SIZES:
        name = f"profile.normal.{n}"
        tables = NORMAL.draw(_make_generator(name), n, FEWER_TABLES).T
        edges = np.array([performance_profile([table], norm.ppf(quantiles))[1:] for table in tables])
        coverage = _compute_coverage(edges[:, 0], edges[:, 1], 1 - quantiles)
        yield _make_result(name, coverage, IntervalLabel("Wilson's score"))


def _measure_evaluations() -> Iterator[BenchResult]:
    """Measure Wilson's interval of one evaluation, averaged over win probabilities from Beta(9, 1)."""
    for n in BATTLES:
        name = f"wilson.piled.{n}"
        rng = _make_generator(name)
        p = rng.beta(9, 1, TABLES)
        low, high = compute_score_interval(rng.binomial(n, p) / n, n)
        coverage = _compute_coverage(low, high, p)
        yield _make_result(name, coverage, IntervalLabel("Wilson's score"), "n: episodes of one evaluation")


def _measure_collapse(episodes: int = 60, nodes: int = 5, tables: int = 500) -> BenchResult:
    """Measure the bootstrap over whole episodes, which is used for the statistics of an embedding."""
    name = f"episodes.normal.{episodes}"
    rng, episode_of_node, is_covered = _make_generator(name), np.repeat(np.arange(episodes), nodes), []
    for table in range(tables):
        value = rng.normal(size=episodes)[episode_of_node] + rng.normal(size=len(episode_of_node))
        sums = resample_sums(np.stack([value, np.ones(len(value))], axis=1), episode_of_node, seed=table)
        low, high = compute_percentile_interval(sums[:, 0] / sums[:, 1])
        is_covered.append(low <= 0 <= high)
    coverage = 100 * float(np.mean(is_covered))
    return _make_result(name, coverage, IntervalLabel("percentile bootstrap"), "n: episodes of a memory's nodes")


def _make_generator(name: str) -> np.random.Generator:
    return np.random.default_rng(crc32(name.encode()))


def _compute_coverage(low: Values, high: Values, truth: float | Values) -> float:
    """Compute the percentage of intervals that contain the true value. Rounding errors are tolerated."""
    return 100 * float(((low <= truth + 1e-9) & (truth <= high + 1e-9)).mean())


def _make_result(name: str, coverage: float, label: IntervalLabel | None, reference: str = "") -> BenchResult:
    met = None if label is None else label.min_coverage - TOLERANCE <= coverage <= label.max_coverage + TOLERANCE
    described = reference or (str(label) if label and label.method else "at least 95 %")
    budget = None if label is None else label.min_coverage
    return make_result(f"coverage.{name}", coverage, "% of tables", budget, described, met=met, digits=1)


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line, measure and print the results."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.reference.coverage", description=__doc__.partition("\n\n")[0]
    )
    add_json_option(parser)
    return run_and_report("coverage", run, json=parser.parse_args(arguments).json)


if __name__ == "__main__":
    sys.exit(main())
