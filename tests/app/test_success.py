"""What counts as a success is said where it is drawn: by the environment, or by a return of so much."""

import pytest

from app.analysis.quantities import SUCCESS_RATE, add_success_rule, find_quantity, get_success_threshold, name_outcome

RULED = {"memory": {"success": "return_threshold", "success_threshold": -18}}


@pytest.mark.parametrize(
    ("settings", "threshold"),
    [
        ({"success": "return_threshold", "success_threshold": -18}, -18.0),
        ({"success": "flag", "success_threshold": 20.0}, None),
        ({"success": "return_threshold"}, None),
        ({"success": "return_threshold", "success_threshold": float("nan")}, None),
        ({}, None),
    ],
    ids=["return", "flag", "missing", "not a number", "no rule"],
)
def test_the_threshold_is_that_of_the_stored_settings_and_missing_where_won_decides(settings, threshold):
    assert get_success_threshold({"memory": settings}) == threshold


@pytest.mark.parametrize(
    ("settings", "won", "episode_return", "outcome"),
    [
        ({}, True, 1.0, "won"),
        ({}, False, 1.0, "not won"),
        (RULED, False, -18.0, "success"),
        (RULED, False, -18.1, "no success"),
        (RULED, True, -30.0, "no success, won"),
    ],
)
def test_an_outcome_keeps_the_word_of_the_environment(settings, won, episode_return, outcome):
    assert name_outcome(settings, won=won, episode_return=episode_return) == outcome


def test_the_axis_names_the_threshold_or_says_that_runs_have_their_own():
    rate = find_quantity(SUCCESS_RATE)
    settings = {"memory.success": "return_threshold", "memory.success_threshold": -18.0}
    other = settings | {"memory.success_threshold": -20.0}
    assert add_success_rule(rate, [settings, settings]).title == "success (return ≥ -18)"
    assert add_success_rule(rate, [settings, other]).title == "success (return ≥ each run's own threshold)"
    assert add_success_rule(find_quantity("win_rate"), [settings]).title == "win rate"
