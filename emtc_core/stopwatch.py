"""Measurement of the time of work on a device."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Elapsed:
    """A measured time, by the host's clock or between two GPU events."""

    host_ms: float
    events: tuple[torch.cuda.Event, torch.cuda.Event] | None = None

    def read_ms(self) -> float:
        """Return the time [ms]. Waits until the GPU has reached the second event, if it has not yet."""
        if self.events is None:
            return self.host_ms
        start, end = self.events
        if not end.query():
            end.synchronize()
        return start.elapsed_time(end)


class Stopwatch:
    """Measures the time of work on a device, from the creation of the stopwatch.

    On a GPU, start and end are events of its stream. The host's clock would only measure the kernel launches, and it
    would add the wait for earlier work to the code that first reads a value.
    """

    def __init__(self, device: torch.device) -> None:
        self._started_s = time.perf_counter()
        self._event = _record_event() if device.type == "cuda" else None

    def stop(self) -> Elapsed:
        """Return the time until now, to be read later. The stopwatch continues."""
        events = (self._event, _record_event()) if self._event else None
        return Elapsed(1e3 * (time.perf_counter() - self._started_s), events)


def compute_mean_ms(times: Sequence[Elapsed]) -> float:
    """Return the mean of times [ms] that were measured one after the other on one stream.

    Only the newest may be a time that the GPU has not reached, so the others are read without a wait.
    """
    newest_first = [elapsed.read_ms() for elapsed in reversed(times)]
    return sum(newest_first) / len(newest_first)


def _record_event() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event
