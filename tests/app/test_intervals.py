"""Intervals over few seeds: by hand, against scipy, and how often they hold the truth."""

import json
from importlib.resources import files

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import binomtest, t, ttest_1samp

from app.analysis.aggregates import Aggregation
from app.analysis.bootstrap import BOOTSTRAP_COVERAGE
from app.analysis.finals import make_curve_scale, make_scale
from app.analysis.intervals import INTERVAL_LABELS, BinomialScale, compute_interval, compute_score_interval
from app.analysis.quantities import MU_W, RETURN, WIN_RATE, find_quantity
from app.analysis.significance import PAIRED_LABEL
from app.figures.run_charts import compute_interval_of_wins
from tests.app.curve_cases import make_run, read_cases
from tests.reference.coverage import CENTERS, NORMAL, PILED, POPULATIONS, SIZES, TOLERANCE, measure_center, run

SHARES = arrays(np.float64, st.tuples(st.integers(2, 10), st.integers(1, 4)), elements=st.integers(0, 16)).map(
    lambda wins: wins / 16
)


def stored() -> dict[str, float]:
    """What the Method page shows."""
    text = (files("app") / "guide" / "measured" / "coverage.json").read_text()
    return {figure["name"]: figure["value"] for figure in json.loads(text)["figures"]}


def test_the_interval_of_a_mean_is_that_of_scipys_t_test() -> None:
    values = np.array([3.0, 4.0, 8.0, 1.5])
    found = ttest_1samp(values, 0).confidence_interval(0.95)
    np.testing.assert_allclose(compute_interval(values, "mean"), (found.low, found.high))


def test_yuens_interval_by_hand() -> None:
    """Of 0, 2, 4, 6, 50 one is cut at each end: mean 4, winsorised 2 2 4 6 6 with variance 4, h = 3, so 4 · 4 / 6."""
    half = t.ppf(0.975, 2) * (4 * 4 / (3 * 2)) ** 0.5
    np.testing.assert_allclose(compute_interval(np.array([0.0, 2, 4, 6, 50]), "iqm"), (4 - half, 4 + half), rtol=1e-12)


@pytest.mark.parametrize(("wins", "n"), [(0, 16), (7, 16), (16, 16), (31, 32)])
def test_one_evaluation_has_the_wilson_interval_of_scipy(wins, n) -> None:
    wanted = binomtest(wins, n).proportion_ci(0.95, "wilson")
    for found in (
        compute_score_interval(np.float64(wins / n), n),
        compute_interval_of_wins(np.float64(wins), np.float64(n)),
    ):
        np.testing.assert_allclose(found, (wanted.low, wanted.high), atol=1e-9)


@pytest.mark.parametrize(
    ("wins", "low", "high"), [(7, 0.23098652405492354, 0.6682144360118811), (16, 0.8063923194655633, 1.0)]
)
def test_the_wilson_interval_is_that_of_statsmodels(wins, low, high) -> None:
    """The numbers are those of `proportion_confint(wins, 16, method="wilson")`."""
    np.testing.assert_allclose(compute_score_interval(np.float64(wins / 16), 16), (low, high), atol=1e-12)


@given(SHARES, st.sampled_from(CENTERS), st.sampled_from([1.0, 100.0]))
def test_an_interval_of_shares_stays_among_them_and_is_never_without_width(shares, center, top) -> None:
    low, high = compute_interval(top * shares, center, BinomialScale(top, 16))
    middle = Aggregation(center, "none").summarize(top * shares).center
    assert (low >= 0).all()
    assert (high <= top).all()
    assert (low <= middle + 1e-9).all()
    assert (middle <= high + 1e-9).all()
    assert (high - low > 0.01 * top).all()


@given(SHARES, st.sampled_from(CENTERS))
def test_percent_have_the_interval_of_fractions(shares, center) -> None:
    fractions, percent = (compute_interval(top * shares, center, BinomialScale(top, 16)) for top in (1.0, 100.0))
    np.testing.assert_allclose(np.multiply(fractions, 100), percent, atol=1e-6)


def test_seeds_that_won_everything_count_as_at_most_eight_episodes_each() -> None:
    lows = [
        float(compute_interval(np.ones(n), "mean", BinomialScale(episodes=episodes))[0])
        for n, episodes in ((2, 8), (3, 4), (3, 8), (3, 160), (5, 160), (10, 160))
    ]
    assert lows == sorted(lows)
    assert lows[1] == pytest.approx(12 / (12 + t.ppf(0.975, 2) ** 2))
    assert lows[2] == lows[3] == pytest.approx(24 / (24 + t.ppf(0.975, 2) ** 2))


def test_win_rates_are_shares_of_their_episodes_and_mu_w_of_all_up_to_there() -> None:
    seeds = [make_run("a", [(0, 0.5), (100, 1), (200, 1)], "eval.episodes=8"), make_run("b", [(0, 0.5), (200, 1)])]
    curves = read_cases(seeds)
    steps = np.array([0.0, 100.0, 200.0])
    assert make_scale(curves, top=100) == BinomialScale(100, 8)
    assert make_curve_scale(WIN_RATE, curves, steps) == BinomialScale(1.0, 8)
    assert make_curve_scale(MU_W, curves, steps).episodes.tolist() == [8, 8, 16]
    assert make_curve_scale(RETURN, curves, steps) is None
    assert make_curve_scale(find_quantity("gate/closed_fraction"), curves, steps) == BinomialScale()


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("population", POPULATIONS, ids=lambda each: each.name)
@pytest.mark.parametrize("center", CENTERS)
def test_an_interval_covers_what_its_label_says(center, population, n) -> None:
    claim = INTERVAL_LABELS[center, population.rate is not None]
    covered = measure_center(center, population, n, tables=4000)["value"]
    assert claim.min_coverage - TOLERANCE <= covered <= claim.max_coverage + TOLERANCE
    assert (f"covers {claim.min_coverage} to {claim.max_coverage} %" in str(claim)) == (
        claim.min_coverage < claim.max_coverage
    )
    assert claim.worst_case in str(claim)


@pytest.mark.parametrize("n", SIZES)
def test_the_page_shows_what_the_command_measures(n) -> None:
    for center in CENTERS:
        for population in (NORMAL, PILED):
            figure = measure_center(center, population, n)
            assert stored()[figure["name"]] == figure["value"]


def test_every_figure_that_names_a_level_meets_its_label() -> None:
    text = (files("app") / "guide" / "measured" / "coverage.json").read_text()
    figures = json.loads(text)["figures"]
    assert {figure["met"] for figure in figures} == {True, None}
    assert all("bootstrap-" in figure["name"] for figure in figures if figure["met"] is None)
    for center in ("mean", "iqm"):
        for n in SIZES:
            assert abs(stored()[f"coverage.{center}.normal.{n}"] - 95) <= TOLERANCE
            assert stored()[f"coverage.{center}.piled.{n}"] >= 95 - TOLERANCE


def test_an_interval_that_fails_names_the_population_where_it_fails() -> None:
    for center in ("mean", "iqm"):
        covered = {name: value for name, value in stored().items() if name.startswith(f"coverage.{center}.")}
        assert ".stuck." in min(covered, key=lambda name: covered[name])
        assert "one seed in five is stuck" in INTERVAL_LABELS[center, True].worst_case
    assert min(stored()[f"coverage.difference.stuck.{n}"] for n in SIZES) == PAIRED_LABEL.min_coverage
    assert "stuck" in PAIRED_LABEL.worst_case


def test_the_percentile_bootstrap_says_what_it_covers() -> None:
    covered = [stored()[f"coverage.bootstrap-mean.normal.{n}"] for n in (3, 5)]
    assert f"{min(covered):.0f} to {max(covered):.0f} %" in BOOTSTRAP_COVERAGE


def test_a_band_says_its_method() -> None:
    assert str(Aggregation("mean", "ci")) == "mean with 95 % interval (Student's t) over seeds"
    assert (
        Aggregation("mean", "ci")
        .describe(is_fraction=True)
        .startswith("mean with 95 % interval (Wilson's score with Student's t; ")
    )
    assert (
        str(Aggregation("iqm", "bootstrap")) == "interquartile mean with percentile bootstrap of 2000 draws over seeds"
    )


@pytest.mark.slow
def test_the_whole_table_is_what_the_command_measures() -> None:
    assert {figure["name"]: figure["value"] for figure in run()} == stored()
