"""Times on a GPU are those of its stream, read later: not of the launches, and without a wait for earlier work."""

import torch

from emtc_core import stopwatch
from emtc_core.stopwatch import Stopwatch
from tests.core.test_trainer import make_trainer, short_config

GPU = torch.device("cuda")


class Event:
    """An event of a stream in which each one is reached a millisecond after the one before."""

    clock_ms = 0.0

    def __init__(self, enable_timing: bool = False) -> None:
        assert enable_timing
        self.is_awaited = False

    def record(self) -> None:
        Event.clock_ms += 1.0
        self.at_ms = Event.clock_ms

    def query(self) -> bool:
        return self.is_awaited

    def synchronize(self) -> None:
        self.is_awaited = True

    def elapsed_time(self, end: "Event") -> float:
        assert end.is_awaited
        return end.at_ms - self.at_ms


def test_on_a_gpu_the_time_is_that_between_two_events_and_reading_waits_for_the_second(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", Event)
    watch = Stopwatch(GPU)
    first, second = watch.stop(), watch.stop()
    assert not second.events[1].is_awaited
    assert [first.read_ms(), second.read_ms()] == [1.0, 2.0]


def test_on_the_cpu_the_host_measures(monkeypatch) -> None:
    times = iter([5.0, 5.25])
    monkeypatch.setattr(stopwatch.time, "perf_counter", lambda: next(times))
    assert Stopwatch(torch.device("cpu")).stop().read_ms() == 250.0


def test_the_trainer_measures_each_stage_by_events(monkeypatch, tmp_path) -> None:
    trainer, _ = make_trainer(short_config(steps=1500), tmp_path)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    trainer._device = GPU  # only what is measured takes place there
    while not trainer._updates:
        trainer.step()
    measured = trainer._window.take()
    assert measured["memory/lookup_ms"] == 1.0
    assert measured["time/update_ms"] == 2.0
