"""One run trained in this process, whatever signals come: what `emtc train` and every detached trainer execute."""

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from app.jobs.signals import StopSignals, leave_run, stop_signals
from emtc_core.control import StopRequested
from emtc_core.errors import RunStateError
from storage.engine import Database
from storage.retry import PATIENCE_S, open_patiently, retry_transient
from storage.runs.changes import finish_run

if TYPE_CHECKING:  # it loads torch
    from emtc_core.training.trainer import RunSummary

Announce = Callable[[str], None]


def train_detached(
    url: str,
    run_id: str,
    *,
    announce: Announce,
    token: str | None = None,
    resume: bool = False,
    worker: int | None = None,
) -> int:
    """Train a run that another process has created; return the exit code.

    Args:
        url: Database of the run.
        run_id: The run.
        announce: Told what a person should read.
        token: By which this process owns the run.
        resume: Go on from the newest usable checkpoint.
        worker: Process that holds the run's claim. A signal, or its end, is then the wish of a machine that is needed
            elsewhere: the run goes back to the queue.
    """
    with stop_signals(worker=worker) as signals:
        database = open_patiently(url, say=announce, patience_s=PATIENCE_S)
        try:
            train_heard(database, run_id, token, signals, resume=resume, announce=announce)
        except StopRequested:
            mark_stopped(database, run_id, token, signals, announce=announce)
        except Exception as exc:
            announce(str(exc))
            return 1
    return 0


def train_heard(
    database: Database,
    run_id: str,
    token: str | None,
    signals: StopSignals,
    *,
    resume: bool,
    announce: Announce,
    on_progress: Callable[[int], None] = lambda env_step: None,
) -> "RunSummary":
    """Load the learner's libraries and train; a signal meanwhile stops the run.

    Raises:
        StopRequested: If one came before the first step.
    """
    try:
        from app.jobs.training import train_run
    except StopRequested:
        raise
    except Exception as exc:
        finish_run(database, run_id, "failed", error=f"{type(exc).__name__}: {exc}", token=token)
        raise
    return train_run(
        database, run_id, resume=resume, token=token, signals=signals, on_progress=on_progress, announce=announce
    )


def mark_stopped(
    database: Database, run_id: str, token: str | None, signals: StopSignals, *, announce: Announce
) -> None:
    """Write that a signal came before the first step, wherever it was heard."""
    with suppress(RunStateError):  # it is written already
        retry_transient(database, lambda: leave_run(database, run_id, token, signals))
    announce(f"Run {run_id} was stopped before its first step.")
