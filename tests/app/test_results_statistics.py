"""Statistics over seeds, by hand and by property."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import trim_mean

from app.analysis.aggregates import BANDS, MAX_POINTS, Aggregation, compute_mu_w, interpolate_to_common_grid
from app.analysis.bootstrap import bootstrap_interval
from app.analysis.intervals import CENTERS, compute_center

Curve = tuple[np.ndarray, np.ndarray]
UNIT = st.floats(0, 1, allow_nan=False)
SEEDS = arrays(np.float64, st.tuples(st.integers(2, 7), st.integers(1, 5)), elements=UNIT)


def curve(steps, values) -> Curve:
    return (np.asarray(steps, float), np.asarray(values, float))


@st.composite
def curves(draw) -> Curve:
    gaps = draw(st.lists(st.integers(1, 10_000), min_size=1, max_size=12))
    steps = draw(st.integers(0, 500)) + np.cumsum([0, *gaps])
    return curve(steps, draw(arrays(np.float64, len(steps), elements=UNIT)))


@pytest.mark.parametrize(
    ("second", "steps", "values"),
    [
        (curve([0, 5, 15], [0, 0, 1]), [0, 5, 10, 15], [[0, 0.25, 0.5, 0.75], [0, 0, 0.5, 1.0]]),
        (curve([10, 15, 30], [0, 1, 1]), [10, 15, 20], [[0.5, 0.75, 1], [0, 1, 1]]),
        (curve([30, 40], [0, 1]), [], [[], []]),
        (curve([], []), [], [[], []]),
    ],
    ids=["same start", "later start", "no common range", "no point"],
)
def test_seeds_are_aligned_over_the_steps_that_all_of_them_reached(second, steps, values) -> None:
    grid, aligned = interpolate_to_common_grid([curve([0, 10, 20], [0, 0.5, 1]), second])
    assert grid.tolist() == steps
    np.testing.assert_allclose(aligned, values)


def test_a_long_grid_is_thinned_and_keeps_its_ends() -> None:
    steps, values = interpolate_to_common_grid(
        [curve(np.arange(5000), np.arange(5000)), curve(np.arange(5000) + 0.5, np.arange(5000))]
    )
    assert len(steps) == MAX_POINTS
    assert (steps[0], steps[-1]) == (0.5, 4999)
    np.testing.assert_allclose(values[0], steps)


@pytest.mark.parametrize(
    ("center", "expected"), [("mean", 0.44), ("median", 0.4), ("iqm", (0.2 + 0.4 + 0.6) / 3)], ids=CENTERS
)
def test_centers_by_hand_do_not_depend_on_the_order_of_the_seeds(center, expected) -> None:
    """The interquartile mean leaves out one of five seeds at each end, and is unknown if a seed has no value."""
    values = np.array([[0.6, 0.6], [0.0, 0.0], [1.0, np.nan], [0.4, 0.4], [0.2, 0.2]])
    np.testing.assert_allclose(compute_center(values, center), [expected, np.nan])


@pytest.mark.parametrize(
    ("band", "low", "high"),
    [
        ("std", 0.5 - (0.32 / 3) ** 0.5, 0.5 + (0.32 / 3) ** 0.5),
        ("se", 0.5 - (0.32 / 3) ** 0.5 / 2, 0.5 + (0.32 / 3) ** 0.5 / 2),
        ("minmax", 0.1, 0.9),
        ("iqr", 0.4, 0.6),
    ],
)
def test_bands_by_hand(band, low, high) -> None:
    summary = Aggregation("mean", band).summarize(np.array([[0.1], [0.5], [0.5], [0.9]]))
    np.testing.assert_allclose([summary.low, summary.high], [[low], [high]])


@pytest.mark.parametrize("band", BANDS)
def test_a_single_seed_has_no_band(band) -> None:
    summary = Aggregation("mean", band).summarize(np.array([[0.3, 0.4]]))
    assert summary.center.tolist() == [0.3, 0.4]
    assert summary.low is summary.high is None


@given(SEEDS, st.sampled_from(CENTERS), st.sampled_from(BANDS))
def test_centers_and_distribution_bands_stay_among_the_seeds(values, center, band) -> None:
    summary = Aggregation(center, band).summarize(values)
    least, greatest = values.min(axis=0) - 1e-12, values.max(axis=0) + 1e-12
    assert ((least <= summary.center) & (summary.center <= greatest)).all()
    if band in ("bootstrap", "iqr", "minmax"):
        assert (least <= summary.low).all()
        assert (summary.low <= summary.high).all()
        assert (summary.high <= greatest).all()


@pytest.mark.parametrize(
    ("center", "n", "level"),
    [("mean", 5, 0.95), ("median", 5, 0.95), ("iqm", 5, 0.95), ("mean", 20, 0.5), ("mean", 20, 0.999)],
)
def test_the_bootstrap_equals_its_slow_twin(center, n, level) -> None:
    """Neighboring draws of 20 different seeds differ, so an edge that is not interpolated is a different number."""
    values = np.random.default_rng(1).random((n, 3))
    drawn = np.random.default_rng(0).integers(n, size=(2000, n))
    slow = {"mean": np.mean, "median": np.median, "iqm": lambda v, axis: trim_mean(v, 0.25, axis=axis)}[center]
    centers = np.stack([slow(values[rows], axis=0) for rows in drawn])
    np.testing.assert_allclose(
        bootstrap_interval(values, center, level=level),
        np.quantile(centers, ((1 - level) / 2, (1 + level) / 2), axis=0),
        atol=1e-12,
    )


@given(curves(), UNIT)
def test_mu_w_equals_the_trapezoid_rule_at_every_step_and_between_evaluations(given, part) -> None:
    steps, values = given
    between = steps[0] + part * (steps[-1] - steps[0])
    for t in (*steps, between):
        x = np.unique([*steps[steps < t], t])
        y = np.interp(x, steps, values)
        areas = np.diff(x) * (y[1:] + y[:-1]) / 2
        expected = areas.sum() / (t - steps[0]) if t > steps[0] else values[0]
        assert compute_mu_w(steps, values, np.array([t]))[0] == pytest.approx(expected, abs=1e-9)
    np.testing.assert_array_equal(compute_mu_w(steps, values), compute_mu_w(steps, values, steps))


def test_mu_w_is_unknown_before_the_first_evaluation_and_after_the_last() -> None:
    known = compute_mu_w(*curve([100, 200], [1, 1]), np.array([99.0, 100.0, 200.0, 201.0]))
    np.testing.assert_array_equal(np.isnan(known), [True, False, False, True])
    assert np.isnan(compute_mu_w(*curve([], []), np.array([1.0]))).all()
