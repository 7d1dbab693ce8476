"""Times on a GPU are those of its stream, read later: not of the launches, and without a wait for earlier work."""

import torch

from emtc_core import stopwatch
from emtc_core.stopwatch import Stopwatch, compute_mean_ms
from tests.core.imitated_gpu import ACTIVITY, Event


def test_on_a_gpu_times_are_those_between_events_and_their_mean_waits_once(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", Event)
    ACTIVITY.clear()
    watch = Stopwatch(torch.device("cuda"))
    first, second = watch.stop(), watch.stop()
    assert not ACTIVITY.waits
    assert compute_mean_ms([first, second]) == 1.5
    assert ACTIVITY.waits.total() == 1, "the second event is reached after the first"
    assert [first.read_ms(), second.read_ms()] == [1.0, 2.0]


def test_on_the_cpu_the_host_measures(monkeypatch) -> None:
    times = iter([5.0, 5.25])
    monkeypatch.setattr(stopwatch.time, "perf_counter", lambda: next(times))
    assert Stopwatch(torch.device("cpu")).stop().read_ms() == 250.0
