"""Treat SIGTERM, SIGINT and SIGUSR1 as a stop of the run, from the creation of its row to its end.

Before the trainer polls its control, a signal raises `StopRequested` at once: nothing is lost, because no step was
trained. After that, a signal is a stop command, and the trainer writes a checkpoint. A second SIGTERM or SIGINT ends
the process without a checkpoint. A worker sends LEAVE_SIGNAL, which is not counted: SLURM or systemd may send SIGTERM
to the worker and to its trainers at the same time.

An environment may not return from a call. `ENV_LIMIT_S` after a signal, a thread writes the records and ends the
process. The C library passes it the number of each signal, because the main thread may never run a handler again.

Under a worker, a signal (or the end of the worker) means that the machine is needed for something else. The run then
returns to the queue instead of being marked stopped.
"""

import os
import select
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, nullcontext
from types import FrameType
from typing import Any

from app.jobs.env_calls import EnvCall, EnvCalls
from emtc_core.control import Command, Control, Question, StopRequested
from storage.engine import Database
from storage.runs.changes import finish_run
from storage.runs.claims import return_to_queue

LEAVE_SIGNAL = getattr(signal, "SIGUSR1", signal.SIGTERM)
"""What a worker sends to its trainers. Windows has no SIGUSR1."""
STOP_SIGNALS = tuple({signal.SIGTERM, signal.SIGINT, LEAVE_SIGNAL})
_PARENT_POLL_S = 1.0
ENV_LIMIT_S = 60.0
"""Maximum duration of a call of an environment after a stop signal. The process ends then."""
_SECOND_SIGNAL_LIMIT_S = 2.0
"""The same after a second signal, which the main thread cannot handle in a call that does not run Python code."""
_WATCH_POLL_S = 0.1
_JOIN_TIMEOUT_S = 5.0
_COUNTED = (signal.SIGTERM, signal.SIGINT)
"""Signals of which the second one ends the process."""
_END_OF_SIGNALS = 0
_STOPPING = "Stopping: the trainer writes a checkpoint. Press Ctrl-C again to end at once without one."


class StopSignals:
    """Handles stop signals and turns them into an exception or a stop command."""

    def __init__(self, *, worker: int | None = None) -> None:
        """Treat a signal as a stop of the run or, under a worker, as a request to return the run to the queue."""
        self._worker = worker
        self._is_requested = self._is_polled = False
        self._n_stops = 0
        """Number of SIGTERM and SIGINT."""
        self._blocked: Callable[[], str | None] = lambda: None
        self.env_calls = EnvCalls()
        self.stuck_reason: str | None = None
        """Why the episode in progress was discarded: the environment did not return. None if it did."""
        self.on_stuck: Callable[[], None] = lambda: None
        """Called in another thread if an environment does not return from a call. It ends the process."""

    @property
    def must_requeue(self) -> bool:
        """Whether the run returns to the queue because of a signal."""
        return self._worker is not None and self._is_requested

    @property
    def has_lost_worker(self) -> bool:
        """Whether the worker that started this process has ended."""
        return self._worker is not None and os.getppid() != self._worker

    @property
    def interrupted_start(self) -> bool:
        """Whether a signal interrupted the start. An error after it is caused by the interruption, not by the run."""
        return self._is_requested and not self._is_polled

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal.

        Raises:
            StopRequested: If the trainer does not poll yet.
            KeyboardInterrupt: On a second SIGTERM or SIGINT.
        """
        self._n_stops += number in _COUNTED
        if self._is_requested:
            if self._n_stops > 1:
                raise KeyboardInterrupt
            return
        self._is_requested = True
        if not self._is_polled:
            raise StopRequested
        if number == signal.SIGINT:
            reason = self._blocked()
            text = _STOPPING if reason is None else f"{_STOPPING} It is waiting to write records: {reason}"
            os.write(2, f"\n{text}\n".encode())  # unbuffered, because a handler may interrupt another write

    def watch_env_calls(self, received: int) -> None:
        """End the process if a call of an environment does not return after a stop signal.

        Args:
            received: File descriptor from which the numbers of the received signals are read.
        """
        n_signals = n_stops = 0
        call: EnvCall | None = None
        call_began_at = 0.0
        while True:
            readable, _, _ = select.select([received], [], [], _WATCH_POLL_S if n_signals else None)
            if readable:
                number = os.read(received, 1)[0]
                if number == _END_OF_SIGNALS:
                    os.close(received)
                    return
                n_signals += number in STOP_SIGNALS
                n_stops += number in _COUNTED
            if self.env_calls.running != call:
                call, call_began_at = self.env_calls.running, time.monotonic()
            limit_s = _SECOND_SIGNAL_LIMIT_S if n_stops > 1 else ENV_LIMIT_S
            if n_signals and call is not None and time.monotonic() - call_began_at > limit_s:
                self._is_requested = True  # the main thread may not have run `on_signal`
                self.stuck_reason = (
                    f"The environment did not return from {call.name} after the stop. "
                    "The episode in progress was discarded."
                )
                self.on_stuck()

    def as_control(self, inner: Control, *, blocked: Callable[[], str | None] = lambda: None) -> Control:
        """Wrap a control, so that a signal is a stop command from now on.

        Args:
            inner: The control that is polled while no signal has arrived.
            blocked: Returns why records cannot be written now, or None.

        Raises:
            StopRequested: If a signal has already arrived.
        """
        self._blocked, self._is_polled = blocked, True
        if self._is_requested:
            raise StopRequested
        return _SignalControl(inner, lambda: self._is_requested)


@contextmanager
def handle_signals(
    numbers: Iterable[signal.Signals], handler: Callable[[int, FrameType | None], None]
) -> Generator[None]:
    """Install a handler for these signals, and restore the previous handlers at the end."""
    previous = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, before)


@contextmanager
def stop_signals(*, worker: int | None = None) -> Generator[StopSignals]:
    """Handle stop signals; with a worker also the worker's end. Restore the previous handlers at the end.

    Args:
        worker: Process id of the worker that started this process, if any.
    """
    signals = StopSignals(worker=worker)
    can_watch = os.name == "posix"  # Windows cannot wait for a pipe
    watcher: threading.Thread | None = None
    try:
        received_numbers = _signal_numbers() if can_watch else nullcontext()
        with handle_signals(STOP_SIGNALS, signals.on_signal), received_numbers as received:
            if received is not None:
                watcher = threading.Thread(
                    target=signals.watch_env_calls, args=(received,), daemon=True, name="env-watch"
                )
                watcher.start()
            if worker is not None:
                threading.Thread(target=_watch_worker, args=(worker,), daemon=True, name="worker-watch").start()
            yield signals
    finally:
        if watcher is not None:
            watcher.join(_JOIN_TIMEOUT_S)  # `on_stuck` keeps the database open


@contextmanager
def _signal_numbers() -> Generator[int]:
    """Return a file descriptor from which the number of each received signal is read, and then _END_OF_SIGNALS."""
    received, sent = os.pipe()
    os.set_blocking(sent, False)
    previous = signal.set_wakeup_fd(sent, warn_on_full_buffer=False)
    process = os.getpid()

    def ignore_signals_in_child() -> None:
        if os.getppid() == process:  # a signal to a worker of an environment is not for this trainer
            signal.set_wakeup_fd(-1)

    os.register_at_fork(after_in_child=ignore_signals_in_child)
    try:
        yield received
    finally:
        signal.set_wakeup_fd(previous)
        os.write(sent, bytes([_END_OF_SIGNALS]))
        os.close(sent)


def record_stop(db: Database, run_id: str, token: str | None, signals: StopSignals) -> None:
    """Mark a run as stopped, or return it to the queue if a worker's machine is needed for something else.

    Raises:
        RunStateError: If another process owns the run, or the run has ended.
    """
    if signals.must_requeue and token is not None:
        # a worker returns a run that has not started, unless it was killed
        return_to_queue(db, run_id, token=token, is_launcher=signals.has_lost_worker)
    else:
        finish_run(db, run_id, "stopped", error=signals.stuck_reason, token=token)


def _watch_worker(worker: int) -> None:
    """Send LEAVE_SIGNAL to this process when its worker has ended, because no worker counts this trainer then.

    A worker waits for its trainers, so it ends before them only if it was killed. The parent process id then changes.
    """
    time.sleep(_PARENT_POLL_S)  # the caller of `stop_signals` can handle the signal then
    while os.getppid() == worker:
        time.sleep(_PARENT_POLL_S)
    os.kill(os.getpid(), LEAVE_SIGNAL)


class _SignalControl:
    """Returns a stop command after a signal, and otherwise what the inner control returns."""

    def __init__(self, inner: Control, is_requested: Callable[[], bool]) -> None:
        self._inner, self._is_requested = inner, is_requested

    def poll(self) -> Command | Question | None:
        return "stop" if self._is_requested() else self._inner.poll()

    def set_status(self, status: Any) -> None:
        self._inner.set_status(status)
