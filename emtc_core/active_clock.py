"""The active time of this process, from which speeds and remaining times are computed.

Active time leaves out pauses of the training, and the time in which the process was stopped (SIGSTOP) or the machine
slept. A thread reads the clock every second: a longer gap means that the process did not run.
"""

import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

_TICK_S = 1.0
_LONGEST_GAP_S = 5.0
"""A longer time between two ticks means that the process did not run."""


class ActiveClock:
    """Counts active time [s] from any start. Threads can share it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Start without a thread: until `watch` is called, only pauses are left out.

        Args:
            clock: Monotonic clock [s].
        """
        self._clock, self._lock = clock, threading.Lock()
        self._last, self._inactive_s = clock(), 0.0
        self._is_watched = False
        self.is_paused = False

    def read(self) -> float:
        """Return the active time [s]. Only differences of two values have a meaning."""
        with self._lock:
            now = self._clock()
            gap_s, self._last = now - self._last, now
            if self.is_paused or (self._is_watched and gap_s > _LONGEST_GAP_S):
                self._inactive_s += gap_s
            return now - self._inactive_s

    @contextmanager
    def paused(self) -> Generator[None]:
        """Leave out the time of the block."""
        self.read()
        self.is_paused = True
        try:
            yield
        finally:
            self.read()
            self.is_paused = False

    @contextmanager
    def watch(self) -> Generator[None]:
        """Leave out, during the block, the time in which the process does not run."""
        ended = threading.Event()

        def tick() -> None:
            while not ended.wait(_TICK_S):
                self.read()

        self.read()
        self._is_watched = True
        threading.Thread(target=tick, name="active-clock", daemon=True).start()
        try:
            yield
        finally:
            self.read()
            self._is_watched = False
            ended.set()


ACTIVE_CLOCK = ActiveClock()
"""The clock of this process."""
