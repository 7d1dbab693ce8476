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


def test_seeds_are_aligned_over_the_steps_that_all_of_them_reached() -> None:
    steps, values = interpolate_to_common_grid([curve([0, 10, 20], [0, 0.5, 1]), curve([0, 5, 15], [0, 0, 1])])
    assert steps.tolist() == [0, 5, 10, 15]
    np.testing.assert_allclose(values, [[0, 0.25, 0.5, 0.75], [0, 0, 0.5, 1.0]])


def test_seeds_that_share_no_stretch_give_no_point() -> None:
    steps, values = interpolate_to_common_grid([curve([0, 10], [0, 1]), curve([20, 30], [0, 1])])
    assert steps.size == 0
    assert values.shape == (2, 0)


def test_a_long_grid_is_thinned_and_keeps_its_ends() -> None:
    steps, values = interpolate_to_common_grid(
        [curve(np.arange(5000), np.arange(5000)), curve(np.arange(5000) + 0.5, np.arange(5000))]
    )
    assert len(steps) == MAX_POINTS
    assert (steps[0], steps[-1]) == (0.5, 4999)
    np.testing.assert_allclose(values[0], steps)


def test_the_three_centers_by_hand() -> None:
    values = np.array([[0.0], [0.2], [0.4], [0.6], [1.0]])
    assert compute_center(values, "mean")[0] == pytest.approx(0.44)
    assert compute_center(values, "median")[0] == pytest.approx(0.4)
    assert compute_center(values, "iqm")[0] == pytest.approx((0.2 + 0.4 + 0.6) / 3)  # one of five seeds off each end


@pytest.mark.parametrize(
    ("band", "low", "high"),
    [("std", 0.5 - (0.32 / 3) ** 0.5, 0.5 + (0.32 / 3) ** 0.5), ("minmax", 0.1, 0.9), ("iqr", 0.4, 0.6)],
)
def test_bands_by_hand(band, low, high) -> None:
    values = np.array([[0.1], [0.5], [0.5], [0.9]])
    summary = Aggregation("mean", band).summarize(values)
    assert summary.low is not None
    assert summary.high is not None
    assert (summary.low[0], summary.high[0]) == (pytest.approx(low), pytest.approx(high))


def test_the_standard_error_divides_by_the_root_of_the_number_of_seeds() -> None:
    values = np.random.default_rng(0).random((9, 4))
    spread = Aggregation("mean", "std").summarize(values)
    error = Aggregation("mean", "se").summarize(values)
    np.testing.assert_allclose(spread.center - spread.low, 3 * (error.center - error.low))


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


@given(SEEDS, st.randoms(use_true_random=False))
def test_the_order_of_the_seeds_does_not_matter(values, random) -> None:
    order = list(range(len(values)))
    random.shuffle(order)
    for center in CENTERS:
        np.testing.assert_allclose(compute_center(values, center), compute_center(values[order], center), atol=1e-12)


def test_the_bootstrap_draws_seeds_and_never_episodes() -> None:
    """Five seeds, 16 episodes each: the interval must be as wide as five seeds make it, not 80 samples."""
    rng = np.random.default_rng(7)
    rates = np.array([0.1, 0.3, 0.5, 0.7, 0.9])
    episodes = rng.random((5, 16)) < rates[:, None]
    per_seed = episodes.mean(axis=1, keepdims=True)
    low, high = bootstrap_interval(per_seed, "mean")
    stacked_low, stacked_high = bootstrap_interval(episodes.reshape(-1, 1).astype(float), "mean")
    expected = 2 * 1.96 * per_seed.std() / 5**0.5
    assert high[0] - low[0] == pytest.approx(expected, rel=0.12)
    assert high[0] - low[0] > 1.5 * (stacked_high[0] - stacked_low[0])


def test_a_drawn_seed_brings_its_whole_curve_along() -> None:
    values = np.array([[0.0, 1.0], [1.0, 0.0]])  # the two seeds mirror each other, so every draw's mean sums to 1
    low, high = bootstrap_interval(values, "mean")
    np.testing.assert_allclose(low + high, [1.0, 1.0])


@pytest.mark.parametrize("center", CENTERS)
def test_the_bootstrap_equals_its_slow_twin(center) -> None:
    values = np.random.default_rng(1).random((5, 3))
    rng = np.random.default_rng(0)
    drawn = rng.integers(5, size=(2000, 5))
    slow = {"mean": np.mean, "median": np.median, "iqm": lambda v, axis: trim_mean(v, 0.25, axis=axis)}[center]
    centers = np.stack([slow(values[rows], axis=0) for rows in drawn])
    np.testing.assert_allclose(
        bootstrap_interval(values, center), np.quantile(centers, (0.025, 0.975), axis=0), atol=1e-12
    )


@pytest.mark.parametrize("share", [0.5, 0.95, 0.999])
def test_the_edges_of_the_interval_lie_between_two_draws(share) -> None:
    """Twenty different seeds: neighboring draws differ, so an edge that is not interpolated is a different number."""
    values = np.random.default_rng(4).random((20, 1))
    centers = np.sort(values[np.random.default_rng(0).integers(20, size=(2000, 20)), 0].mean(axis=1))
    for edge, part in zip(bootstrap_interval(values, "mean", level=share), (1 - share, 1 + share), strict=True):
        place = part / 2 * 1999
        below, above = centers[int(place)], centers[int(place) + 1]
        assert below < above
        assert edge[0] == pytest.approx(below + (place - int(place)) * (above - below), abs=1e-12)


def test_equal_seeds_leave_no_doubt() -> None:
    low, high = bootstrap_interval(np.full((5, 2), 0.25), "iqm")
    assert low.tolist() == high.tolist() == [0.25, 0.25]


@given(curves(), UNIT)
def test_mu_w_of_a_constant_is_the_constant(given, value) -> None:
    steps, _ = given
    np.testing.assert_allclose(compute_mu_w(steps, np.full(len(steps), value)), value, atol=1e-9)


def test_mu_w_of_a_ramp_is_one_half() -> None:
    ramp = curve([0, 500, 700, 1000], [0, 0.5, 0.7, 1])
    assert compute_mu_w(*ramp)[-1] == pytest.approx(0.5, abs=1e-9)
    assert compute_mu_w(*ramp, np.array([600.0]))[0] == pytest.approx(0.3, abs=1e-9)  # between two evaluations


def test_mu_w_by_hand() -> None:
    uneven = curve([100, 300, 400, 900], [0.0, 0.5, 0.25, 1.0])
    # areas: 200 · 0.25 = 50, 100 · 0.375 = 37.5, 500 · 0.625 = 312.5
    np.testing.assert_allclose(compute_mu_w(*uneven), [0.0, 50 / 200, 87.5 / 300, 400 / 800], atol=1e-9)
    at_650 = (87.5 + 250 * (0.25 + 0.625) / 2) / 550
    assert compute_mu_w(*uneven, np.array([650.0]))[0] == pytest.approx(at_650, abs=1e-9)


def test_mu_w_is_unknown_before_the_first_evaluation_and_after_the_last() -> None:
    known = compute_mu_w(*curve([100, 200], [1, 1]), np.array([99.0, 100.0, 200.0, 201.0]))
    np.testing.assert_array_equal(np.isnan(known), [True, False, False, True])
    assert np.isnan(compute_mu_w(*curve([], []), np.array([1.0]))).all()


@given(curves())
def test_mu_w_stays_in_the_unit_interval_and_equals_the_trapezoid_rule(given) -> None:
    steps, values = given
    reached = compute_mu_w(steps, values)
    assert ((reached >= -1e-12) & (reached <= 1 + 1e-12)).all()
    areas = np.diff(steps) * (values[1:] + values[:-1]) / 2
    assert reached[-1] == pytest.approx(areas.sum() / (steps[-1] - steps[0]), abs=1e-9)
