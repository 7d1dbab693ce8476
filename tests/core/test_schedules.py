import pytest

from emtc_core.schedules import linear_decay
from emtc_core.training.intervals import Interval


@pytest.mark.parametrize(("env_step", "tau"), [(0, 1.2), (500, 0.9), (1000, 0.6), (5000, 0.6)])
def test_tau_falls_linearly_and_stays(env_step: int, tau: float) -> None:
    assert linear_decay(env_step, start=1.2, end=0.6, steps=1000) == pytest.approx(tau)


def test_a_task_is_due_when_its_interval_has_passed_since_it_was_last_due() -> None:
    interval = Interval(10)
    due = [interval.start_if_due(step) for step in (9, 10, 19, 21, 30, 31)]
    assert due == [False, True, False, True, False, True]
