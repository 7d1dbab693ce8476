"""SIGTERM and SIGINT as a stop, from a run's first row to its last: heard while libraries load, too.

Until a trainer polls, a signal ends what goes on at once, since nothing has been learned that could be lost. From
then on it is a stop command, which leaves a checkpoint; a second SIGINT ends even that. The trainer of a worker takes
a signal, or the worker's death, as the machine's wish, not a person's: its run goes back to the queue.

How a trainer that was told to stop leaves its run: stopped, or given back to the queue.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from types import FrameType
from typing import Any

from emtc_core.control import Command, Control, Question, StopRequested
from storage.engine import Database
from storage.runs.changes import finish_run
from storage.runs.claims import give_back

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_LOOK_S = 1.0
_SAID = "Stopping: the trainer leaves a checkpoint. Press Ctrl-C again to end at once without one."


class StopSignals:
    """Remembers that somebody sent a signal, and hands it on in the way that fits the moment."""

    def __init__(self, *, give_back: bool = False) -> None:
        """Hear signals as a person's stop, or with `give_back` as the wish of a machine that is needed elsewhere."""
        self._gives_back = give_back
        self._asked = self._polled = False
        self._blocked: Callable[[], str | None] = lambda: None

    @property
    def gives_back(self) -> bool:
        """Whether a signal has come after which the run goes back to the queue."""
        return self._gives_back and self._asked

    @property
    def broke_in(self) -> bool:
        """Whether a signal ended what went on: whatever failed then was interrupted, and no failure of the run."""
        return self._asked and not self._polled

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """Take a signal.

        Raises:
            StopRequested: If no trainer polls yet.
            KeyboardInterrupt: At a second SIGINT.
        """
        if self._asked:
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            return
        self._asked = True
        if not self._polled:
            raise StopRequested
        if number == signal.SIGINT:
            reason = self._blocked()
            _say(_SAID if reason is None else f"{_SAID} It waits to write what was learned: {reason}")

    def as_control(self, inner: Control, *, blocked: Callable[[], str | None] = lambda: None) -> Control:
        """Wrap a control, so that a signal is a stop command from now on.

        Raises:
            StopRequested: If a signal came already.
        """
        self._blocked, self._polled = blocked, True
        if self._asked:
            raise StopRequested
        return _Signalled(inner, lambda: self._asked)


@contextmanager
def listening(numbers: Iterable[signal.Signals], handler: Callable[[int, FrameType | None], None]) -> Generator[None]:
    """Hear these signals; afterwards they mean what they meant before."""
    previous = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, before)


@contextmanager
def stop_signals(*, worker: int | None = None) -> Generator[StopSignals]:
    """Listen to signals, under a worker to SIGUSR1 and to its end too; afterwards they mean what they meant before."""
    signals = StopSignals(give_back=worker is not None)
    numbers = _SIGNALS if worker is None else (*_SIGNALS, signal.SIGUSR1)
    with listening(numbers, signals.on_signal):
        if worker is not None:
            threading.Thread(target=_leave_with, args=(worker,), daemon=True, name="worker-watch").start()
        yield signals


def _leave_with(worker: int) -> None:
    """Ask this process to leave once its worker has ended: nobody would count it among those that train here.

    Only a worker that was killed dies before its trainers, and the system then gives them another parent.
    """
    while os.getppid() == worker:
        time.sleep(_LOOK_S)
    os.kill(os.getpid(), signal.SIGTERM)


class _Signalled:
    def __init__(self, inner: Control, asked: Callable[[], bool]) -> None:
        self._inner, self._asked = inner, asked

    def poll(self) -> Command | Question | None:
        return "stop" if self._asked() else self._inner.poll()

    def set_status(self, status: Any) -> None:
        self._inner.set_status(status)


def _say(text: str) -> None:
    """Write without buffers: a handler may interrupt another write."""
    os.write(2, f"\n{text}\n".encode())


def leave_run(db: Database, run_id: str, token: str | None, signals: StopSignals) -> None:
    """Write that a run stopped, or give it back if the machine wanted its trainer to go.

    Raises:
        RunStateError: If the run belongs to somebody else by now, or has ended.
    """
    if signals.gives_back and token is not None:
        give_back(db, run_id, token=token)
    else:
        finish_run(db, run_id, "stopped", token=token)
