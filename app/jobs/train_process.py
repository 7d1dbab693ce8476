"""Train one run in this process and handle signals from the start. Used by `emtc train` and by detached trainers."""

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from app.jobs.signals import StopSignals, handle_stop_signals, record_stop
from emtc_core.control import StopRequested
from emtc_core.errors import RunStateError
from storage.engine import Database
from storage.retry import PATIENCE_S, open_with_retry, retry_transient
from storage.runs.changes import finish_run

if TYPE_CHECKING:  # its import loads torch
    from emtc_core.training.trainer import RunSummary

Announce = Callable[[str], None]


def train_detached(
    url: str,
    run_id: str,
    *,
    announce: Announce,
    token: str | None = None,
    resume: bool = False,
    worker_pid: int | None = None,
    gpu_share: float = 1.0,
) -> int:
    """Train a run that another process has created; return the exit code.

    Args:
        url: Database of the run.
        run_id: The run.
        announce: Called with lines for the user.
        token: Token by which this process owns the run.
        resume: Continue from the newest usable checkpoint.
        worker_pid: Process id of the worker that has claimed the run. With a worker, a signal or the end of the worker
            returns the run to the queue.
        gpu_share: Fraction of the GPU's memory that the run may use, if `train.gpu_share` is auto.
    """
    with handle_stop_signals(worker_pid=worker_pid) as signals:
        try:
            database = open_with_retry(url, report=announce, patience_s=PATIENCE_S)
        except StopRequested:  # a signal while the database was being opened: open it to record the stop
            database = open_with_retry(url, report=announce, patience_s=PATIENCE_S)
            mark_stopped(database, run_id, token, signals, announce=announce)
            return 0
        try:
            train_with_signals(database, run_id, token, signals, resume=resume, announce=announce, gpu_share=gpu_share)
        except StopRequested:
            mark_stopped(database, run_id, token, signals, announce=announce)
        except Exception as exc:
            announce(str(exc))
            return 1
    return 0


def train_with_signals(
    database: Database,
    run_id: str,
    token: str | None,
    signals: StopSignals,
    *,
    resume: bool,
    announce: Announce,
    on_progress: Callable[[int], None] = lambda env_step: None,
    gpu_share: float = 1.0,
) -> "RunSummary":
    """Import torch and train. A signal during the import also stops the run.

    Raises:
        StopRequested: If a signal arrived before the first step.
    """
    try:
        from app.jobs.training import train_run
    except StopRequested:
        raise
    except Exception as exc:
        finish_run(database, run_id, "failed", error=f"{type(exc).__name__}: {exc}", token=token)
        raise
    return train_run(
        database,
        run_id,
        resume=resume,
        token=token,
        signals=signals,
        on_progress=on_progress,
        announce=announce,
        gpu_share=gpu_share,
    )


def mark_stopped(
    database: Database, run_id: str, token: str | None, signals: StopSignals, *, announce: Announce
) -> None:
    """Record that a signal stopped the run before its first step."""
    with suppress(RunStateError):  # the stop is already recorded
        retry_transient(database, lambda: record_stop(database, run_id, token, signals))
    announce(f"Run {run_id} was stopped before its first step.")
