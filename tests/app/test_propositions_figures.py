"""The two figures of the Method page: what they contain, that both propositions hold, and that they can be exported."""

import numpy as np
import pytest

from app.figures.kinds.chart import Chart
from app.figures.named.propositions import (
    GradientComparisons,
    compute_proposition_1,
    compute_proposition_2,
    draw_proposition_1,
    draw_proposition_2,
)
from app.figures.options import Options
from emtc_core.gate.propositions import Proposition1, Proposition2


def make_first() -> Chart:
    result = Proposition1(
        delta_opt=np.array([2.0, 0.0, 1.0]),
        delta_mem=np.array([2.5, 0.4, 0.5]),
        eps_rep=0.2,
        eps_store=0.1,
        alpha=0.6,
        lipschitz_bound=0.3,
    )
    return draw_proposition_1(result)


def make_curve(*errors: float) -> Proposition2:
    return Proposition2(
        mix=np.array([0.0, 1.0, 0.5]),
        distance=np.array([8.0, 0.0, 4.0]),
        gradient_error=np.array(errors),
        beta_mean=np.array([0.5, 1.0, 0.75]),
        share_overestimated=0.5,
    )


def make_second() -> Chart:
    return draw_proposition_2(GradientComparisons(make_curve(3, 0, 1), make_curve(3, 0.4, 1), make_curve(3, 0.1, 1)))


def test_each_transition_is_a_point_inside_a_band_around_the_diagonal():
    chart = make_first()
    band, points = chart.panels[0].lines
    assert points.x.tolist() == [0.0, 1.0, 2.0]
    assert points.y.tolist() == [0.4, 0.5, 2.5]
    assert (points.markers, points.width) == (True, 0.0)
    assert band.low is not None
    assert band.high is not None
    np.testing.assert_array_equal(band.x, band.y)
    np.testing.assert_allclose(band.high - band.y, 0.6)
    assert band.low.min() == 0
    assert "100.0 % of the points" in chart.caption


def test_gradient_curves_start_at_v_star():
    chart = make_second()
    free, clamped, any_action = chart.panels[0].lines
    assert free.x.tolist() == [0.0, 4.0, 8.0]
    assert [line.y[0] for line in (free, clamped, any_action)] == [0, 0.4, 0.1]
    assert len({line.dash for line in (free, clamped, any_action)}) == 3


def test_proposition_1_holds_in_its_figure():
    result = compute_proposition_1(None, [], Options())
    assert result.share_inside == result.share_below == 1
    assert 0 < result.largest_difference <= result.alpha


def test_proposition_2_holds_in_its_figure():
    unclamped, clamped, random_actions = compute_proposition_2(None, [], Options())
    assert unclamped.distance[-1] == 0
    assert unclamped.gradient_error[-1] < 1e-8 < 1e-3 < clamped.gradient_error[-1]
    assert unclamped.beta_mean[-1] == pytest.approx(1)
    assert random_actions.beta_mean[-1] < 1
