"""Active time leaves out pauses and the time in which the process did not run."""

import pytest

from emtc_core.active_clock import ActiveClock


class Time:
    """A monotonic clock that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time() -> Time:
    return Time()


def test_a_pause_is_left_out(time: Time) -> None:
    clock = ActiveClock(time)
    start = clock.read()
    time.now += 3
    with clock.paused():
        assert clock.is_paused
        time.now += 1000
        assert clock.read() - start == 3
    time.now += 2
    assert clock.read() - start == 5


def test_a_pause_ends_with_an_exception(time: Time) -> None:
    clock = ActiveClock(time)
    with pytest.raises(RuntimeError), clock.paused():
        raise RuntimeError
    start = clock.read()
    time.now += 7
    assert clock.read() - start == 7


def test_a_long_gap_is_left_out_only_while_a_thread_reads_the_clock(time: Time) -> None:
    clock = ActiveClock(time)
    start = clock.read()
    time.now += 60  # no thread reads the clock: a long computation
    with clock.watch():
        time.now += 3600
        assert clock.read() - start == 60
