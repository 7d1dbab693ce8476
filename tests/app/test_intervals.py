"""Intervals over few seeds: by hand, against scipy, and how often they hold the truth."""

import json
from importlib.resources import files

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import binomtest, t, tstd

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


@pytest.mark.parametrize(
    ("center", "values", "middle", "error", "dof"),
    [
        ("mean", [3, 4, 8, 1.5], 4.125, tstd([3, 4, 8, 1.5]) / 2, 3),
        # one value is cut at each end: mean 4, winsorised 2 2 4 6 6 with variance 4, three values remain
        ("iqm", [0, 2, 4, 6, 50], 4, (4 * 4 / (3 * 2)) ** 0.5, 2),
        ("median", [3, 4, 8, 1.5], 3.5, tstd([3, 4, 8, 1.5]) * (np.pi / 2 / (3 + np.pi / 2)) ** 0.5, 3),
    ],
    ids=("mean", "Yuen", "median"),
)
def test_the_interval_of_a_center_is_that_of_students_t_by_hand(center, values, middle, error, dof) -> None:
    half = t.ppf(0.975, dof) * error
    found = compute_interval(np.array(values, float), center)
    np.testing.assert_allclose(found, (middle - half, middle + half), rtol=1e-12)


@pytest.mark.parametrize(("wins", "n"), [(0, 16), (7, 16), (16, 16), (31, 32)])
def test_one_evaluation_has_the_wilson_interval_of_scipy(wins, n) -> None:
    wanted = binomtest(wins, n).proportion_ci(0.95, "wilson")
    for found in (
        compute_score_interval(np.float64(wins / n), n),
        compute_interval_of_wins(np.float64(wins), np.float64(n)),
    ):
        np.testing.assert_allclose(found, (wanted.low, wanted.high), atol=1e-9)


@given(SHARES, st.sampled_from(CENTERS))
def test_an_interval_of_shares_stays_among_them_has_a_width_and_is_the_same_in_percent(shares, center) -> None:
    low, high = compute_interval(shares, center, BinomialScale(1.0, 16))
    middle = Aggregation(center, "none").summarize(shares).center
    assert (low >= 0).all()
    assert (high <= 1).all()
    assert (low <= middle + 1e-9).all()
    assert (middle <= high + 1e-9).all()
    assert (high - low > 0.01).all()
    percent = compute_interval(100 * shares, center, BinomialScale(100.0, 16))
    np.testing.assert_allclose(np.multiply((low, high), 100), percent, atol=1e-6)


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


@pytest.mark.parametrize("n", SIZES)
def test_the_page_shows_what_the_command_measures(n) -> None:
    for center in CENTERS:
        for population in (NORMAL, PILED):
            figure = measure_center(center, population, n)
            assert stored()[figure["name"]] == figure["value"]


def test_texts_state_the_measured_coverage() -> None:
    bootstrap = [stored()[f"coverage.bootstrap-mean.normal.{n}"] for n in (3, 5)]
    assert f"{min(bootstrap):.0f} to {max(bootstrap):.0f} %" in BOOTSTRAP_COVERAGE
    assert min(stored()[f"coverage.difference.stuck.{n}"] for n in SIZES) == PAIRED_LABEL.min_coverage


@pytest.mark.parametrize(
    ("aggregation", "is_fraction", "text"),
    [
        (Aggregation("mean", "std"), True, "mean ± standard deviation over seeds"),
        (Aggregation("median", "none"), True, "median over seeds"),
        (
            Aggregation("iqm", "bootstrap"),
            False,
            "interquartile mean with percentile bootstrap of 2000 draws over seeds",
        ),
        (Aggregation("mean", "ci"), False, "mean with 95 % interval (Student's t) over seeds"),
        (
            Aggregation("median", "ci"),
            True,
            "median with 95 % interval (t of the median; covers 93 to 100 %) over seeds",
        ),
        (
            Aggregation("iqm", "ci"),
            True,
            "interquartile mean with 95 % interval (Wilson's score with Yuen's t; covers 51 to 100 %, "
            "least if one seed in five is stuck) over seeds",
        ),
    ],
    ids=["std", "none", "bootstrap", "ci", "ci of fractions", "ci of fractions with its worst case"],
)
def test_a_band_says_its_method(aggregation, is_fraction, text) -> None:
    assert aggregation.describe(is_fraction=is_fraction) == text


@pytest.mark.slow
def test_the_whole_table_is_what_the_command_measures() -> None:
    assert {figure["name"]: figure["value"] for figure in run()} == stored()
