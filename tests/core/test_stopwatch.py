"""Times on a GPU are those of its stream, read later: not of the launches, and without a wait for earlier work."""

import torch

from emtc_core import stopwatch
from emtc_core.stopwatch import Stopwatch
from tests.core.imitated_gpu import ACTIVITY, Event


def test_on_a_gpu_the_time_is_that_between_two_events_and_reading_waits_for_the_second(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", Event)
    ACTIVITY.clear()
    watch = Stopwatch(torch.device("cuda"))
    first, second = watch.stop(), watch.stop()
    assert not ACTIVITY.waits
    assert [second.read_ms(), first.read_ms()] == [2.0, 1.0]
    assert ACTIVITY.waits.total() == 1


def test_on_the_cpu_the_host_measures(monkeypatch) -> None:
    times = iter([5.0, 5.25])
    monkeypatch.setattr(stopwatch.time, "perf_counter", lambda: next(times))
    assert Stopwatch(torch.device("cpu")).stop().read_ms() == 250.0
