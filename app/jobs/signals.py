"""Treat SIGTERM, SIGINT and SIGUSR1 as a stop of the run, from the creation of its row to its end.

Until the trainer starts to poll for commands, a signal raises `StopRequested` at once. Nothing is lost, because no step
was trained. After that, a signal is a stop command, and the trainer writes a checkpoint. A second SIGTERM or SIGINT
ends the process without a checkpoint.

A worker is the process `emtc worker` or `emtc sweep`, which starts trainers for queued runs. It stops them with
LEAVE_SIGNAL, which never counts as a second signal: SLURM or systemd may send SIGTERM to the worker and to its
trainers at the same time. Under a worker, a signal (or the end of the worker) means that the machine is needed for
something else. The run then returns to the queue instead of being marked stopped.

A call of an environment can hang, and then the main thread runs no signal handler. So another thread reads the numbers
of the signals from a pipe (`signal.set_wakeup_fd`). If a call lasts longer than `ENV_LIMIT_S` after a signal, this
thread writes the rows that are not stored yet and ends the process.
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
"""The signal that a worker sends to its trainers. Windows has no SIGUSR1."""
STOP_SIGNALS = tuple({signal.SIGTERM, signal.SIGINT, LEAVE_SIGNAL})
_COUNTED_SIGNALS = (signal.SIGTERM, signal.SIGINT)
"""Signals of which the second one ends the process."""
ENV_LIMIT_S = 60.0
"""Maximum duration of a call of an environment after a stop signal. After it, the process ends."""
_SECOND_SIGNAL_LIMIT_S = 2.0
"""The maximum duration after a second signal. The main thread runs no handler while a call is in C code."""
_ENV_POLL_S = 0.1
_JOIN_TIMEOUT_S = 5.0
_PARENT_POLL_S = 1.0
_END_OF_SIGNALS = 0
"""Written to the pipe of the signal numbers at the end. No signal has this number."""
_STOPPING = "Stopping: the trainer writes a checkpoint. Press Ctrl-C again to end at once without one."


class StopSignals:
    """Handles stop signals and turns them into an exception or a stop command."""

    def __init__(self, *, worker_pid: int | None = None) -> None:
        """Treat a signal as a stop of the run or, under a worker, as a request to return the run to the queue."""
        self._worker_pid = worker_pid
        self._is_requested = False
        self._trainer_polls = False
        """Whether the trainer polls for commands, so that a signal can be a stop command."""
        self._n_counted = 0
        """Number of received SIGTERM and SIGINT."""
        self._get_blocked_reason: Callable[[], str | None] = lambda: None
        self.env_calls = EnvCalls()
        self.stuck_reason: str | None = None
        """Why the episode in progress was discarded: a call of the environment hung. None if no call hung."""
        self.on_stuck: Callable[[], None] = lambda: None
        """Called in another thread if an environment does not return from a call. It ends the process."""

    @property
    def must_requeue(self) -> bool:
        """Whether the run returns to the queue because of a signal."""
        return self._worker_pid is not None and self._is_requested

    @property
    def has_lost_worker(self) -> bool:
        """Whether the worker that started this process has ended."""
        return self._worker_pid is not None and os.getppid() != self._worker_pid

    @property
    def interrupted_start(self) -> bool:
        """Whether a signal interrupted the start. An error after it is caused by the interruption, not by the run."""
        return self._is_requested and not self._trainer_polls

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal.

        Raises:
            StopRequested: If the trainer does not poll yet.
            KeyboardInterrupt: On a second SIGTERM or SIGINT.
        """
        if number in _COUNTED_SIGNALS:
            self._n_counted += 1
        if self._is_requested:
            if self._n_counted > 1:
                raise KeyboardInterrupt
            return
        self._is_requested = True
        if not self._trainer_polls:
            raise StopRequested
        if number == signal.SIGINT:
            reason = self._get_blocked_reason()
            text = _STOPPING if reason is None else f"{_STOPPING} It is waiting to write records: {reason}"
            os.write(2, f"\n{text}\n".encode())  # unbuffered, because a handler may interrupt another write

    def watch_env_calls(self, read_fd: int) -> None:
        """End the process if a call of an environment does not return after a stop signal.

        Args:
            read_fd: File descriptor from which the numbers of the received signals are read.
        """
        is_stopping = False
        n_counted = 0
        call: EnvCall | None = None
        call_seen_at = 0.0
        while True:
            # Before the first stop signal there is no limit to check, so `select` waits without a timeout.
            readable, _, _ = select.select([read_fd], [], [], _ENV_POLL_S if is_stopping else None)
            if readable:
                number = os.read(read_fd, 1)[0]
                if number == _END_OF_SIGNALS:
                    os.close(read_fd)
                    return
                if number in STOP_SIGNALS:
                    is_stopping = True
                if number in _COUNTED_SIGNALS:
                    n_counted += 1
            if self.env_calls.running != call:
                call = self.env_calls.running
                call_seen_at = time.monotonic()
            limit_s = _SECOND_SIGNAL_LIMIT_S if n_counted > 1 else ENV_LIMIT_S
            if is_stopping and call is not None and time.monotonic() - call_seen_at > limit_s:
                self._is_requested = True  # the main thread may not have run `on_signal`
                self.stuck_reason = (
                    f"The environment did not return from {call.name} after the stop. "
                    "The episode in progress was discarded."
                )
                self.on_stuck()

    def as_control(self, inner: Control, *, get_blocked_reason: Callable[[], str | None] = lambda: None) -> Control:
        """Wrap a control (source of commands for the trainer), so that a signal is a stop command from now on.

        Args:
            inner: The control that is polled while no signal has arrived.
            get_blocked_reason: Returns why records cannot be written now, or None.

        Raises:
            StopRequested: If a signal has already arrived.
        """
        self._get_blocked_reason = get_blocked_reason
        self._trainer_polls = True
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
def handle_stop_signals(*, worker_pid: int | None = None) -> Generator[StopSignals]:
    """Handle stop signals; with a worker also the worker's end. Restore the previous handlers at the end.

    Args:
        worker_pid: Process id of the worker that started this process, if any.
    """
    signals = StopSignals(worker_pid=worker_pid)
    env_watch: threading.Thread | None = None
    try:
        can_wait_for_pipe = os.name == "posix"
        signal_pipe = _open_signal_pipe() if can_wait_for_pipe else nullcontext()  # without a pipe, read_fd is None
        with handle_signals(STOP_SIGNALS, signals.on_signal), signal_pipe as read_fd:
            if read_fd is not None:
                env_watch = threading.Thread(
                    target=signals.watch_env_calls, args=(read_fd,), daemon=True, name="env-watch"
                )
                env_watch.start()
            if worker_pid is not None:
                threading.Thread(target=_watch_worker, args=(worker_pid,), daemon=True, name="worker-watch").start()
            yield signals
    finally:
        if env_watch is not None:
            # `on_stuck` may still write to the database, which the caller closes afterwards.
            env_watch.join(_JOIN_TIMEOUT_S)


@contextmanager
def _open_signal_pipe() -> Generator[int]:
    """Yield a file descriptor from which the number of each received signal is read, and at the end _END_OF_SIGNALS."""
    read_fd, write_fd = os.pipe()
    os.set_blocking(write_fd, False)
    previous_fd = signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
    trainer_pid = os.getpid()

    def disable_pipe_in_child() -> None:
        # A signal to a child process of an environment must not reach this pipe. The hook cannot be removed, so it
        # checks that the child was forked by this trainer.
        if os.getppid() == trainer_pid:
            signal.set_wakeup_fd(-1)

    os.register_at_fork(after_in_child=disable_pipe_in_child)
    try:
        yield read_fd
    finally:
        signal.set_wakeup_fd(previous_fd)
        os.write(write_fd, bytes([_END_OF_SIGNALS]))
        os.close(write_fd)


def record_stop(db: Database, run_id: str, token: str | None, signals: StopSignals) -> None:
    """Mark a run as stopped, or return it to the queue if a worker's machine is needed for something else.

    Raises:
        RunStateError: If another process owns the run, or the run has ended.
    """
    if signals.must_requeue and token is not None:
        # A run that has not started is returned by its worker, and by this process only if the worker was killed.
        return_to_queue(db, run_id, token=token, is_launcher=signals.has_lost_worker)
    else:
        finish_run(db, run_id, "stopped", error=signals.stuck_reason, token=token)


def _watch_worker(worker_pid: int) -> None:
    """Send LEAVE_SIGNAL to this process when its worker has ended.

    A worker waits for its trainers, so it ends before them only if it was killed. The parent process id then changes.
    This trainer must end too, because a new worker does not count it towards its number of parallel runs.
    """
    time.sleep(_PARENT_POLL_S)  # until the caller of `handle_stop_signals` has entered its try block
    while os.getppid() == worker_pid:
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
