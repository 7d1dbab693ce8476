"""What counts as a success is said where it is drawn: by the environment, or by a return of so much."""

import pytest

from app.analysis.quantities import SUCCESS_RATE, add_success_rule, find_quantity, get_success_threshold, name_outcome

RULED = {"memory": {"success": "return_threshold", "success_threshold": -18}}


def test_the_threshold_is_that_of_the_stored_settings_and_nothing_where_won_decides():
    assert get_success_threshold(RULED) == -18.0
    assert get_success_threshold({"memory": {"success": "flag", "success_threshold": 20.0}}) is None


@pytest.mark.parametrize(
    "stored",
    [{}, {"memory": {"success": "return_threshold"}},
     {"memory": {"success": "return_threshold", "success_threshold": "much"}},
     {"memory": {"success": "return_threshold", "success_threshold": float("nan")}}],
)  # fmt: skip
def test_a_row_that_holds_anything_else_has_no_threshold(stored):
    assert get_success_threshold(stored) is None


def test_an_outcome_keeps_the_environments_word():
    assert name_outcome({}, won=True, episode_return=1.0) == "won"
    assert name_outcome({}, won=False, episode_return=1.0) == "not won"
    assert name_outcome(RULED, won=False, episode_return=-18.0) == "success"
    assert name_outcome(RULED, won=False, episode_return=-18.1) == "no success"
    assert name_outcome(RULED, won=True, episode_return=-30.0) == "no success, won"


def test_the_axis_names_the_threshold_or_says_that_runs_have_their_own():
    rate = find_quantity(SUCCESS_RATE)
    settings = {"memory.success": "return_threshold", "memory.success_threshold": -18.0}
    other = settings | {"memory.success_threshold": -20.0}
    assert add_success_rule(rate, [settings, settings]).title == "success (return ≥ -18)"
    assert add_success_rule(rate, [settings, other]).title == "success (return ≥ each run's own threshold)"
    assert add_success_rule(find_quantity("win_rate"), [settings]).title == "win rate"
