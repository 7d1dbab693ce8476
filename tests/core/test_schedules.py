from emtc_core.training.intervals import Interval


def test_a_task_is_due_when_its_interval_has_passed_since_it_was_last_due() -> None:
    interval = Interval(10)
    due = [interval.start_if_due(step) for step in (9, 10, 19, 21, 30, 31)]
    assert due == [False, True, False, True, False, True]
