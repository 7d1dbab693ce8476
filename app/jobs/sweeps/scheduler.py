"""The local scheduler: a few trainers at once, each a process of its own, until no run of the sweep is left to do.

It holds nothing that the database does not: kill it at any moment and start another. Trainers outlive it.
"""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress

from app.jobs.launch import find_trainer
from app.jobs.sweeps.control import this_process
from app.jobs.sweeps.worker import Leave, Starter
from emtc_core.errors import StorageError
from storage.engine import Database
from storage.retry import retry_transient
from storage.runs.claims import Worker, claim_run
from storage.runs.sweeps import Sweep, attach_scheduler, detach_scheduler, get_sweep

POLL_S = 0.5


def run_sweep(
    db: Database, sweep_id: str, *, jobs: int, on_progress: Callable[[Sweep], None] = lambda sweep: None
) -> Sweep:
    """Start queued and lost runs of a sweep, `jobs` at once, until all have ended or the sweep is stopped.

    Returns:
        The sweep at its end.

    Raises:
        StorageError: If there is no such sweep.
    """
    starter = Starter(db)
    with attached(db, sweep_id, jobs) as me:
        return tend(db, sweep_id, lambda: start_all(db, sweep_id, me, jobs, starter), on_progress=on_progress)


def tend(
    db: Database,
    sweep_id: str,
    fill: Callable[[], None],
    *,
    on_progress: Callable[[Sweep], None],
    leave: Leave | None = None,
) -> Sweep:
    """Call `fill` every now and then until all runs of a sweep have ended, or it is stopped and nobody works on it.

    Returns:
        The sweep at its end.

    Raises:
        StorageError: If the database does not answer for long.
        KeyboardInterrupt: If told to leave.
    """
    while leave is None or not leave.asked:
        with suppress(StorageError):  # a locked database is asked again at the next tick
            fill()
        sweep = retry_transient(db, lambda: get_sweep(db, sweep_id))
        on_progress(sweep)
        if sweep.is_over or (sweep.status == "stopped" and not _is_worked_on(sweep)):
            return sweep
        time.sleep(POLL_S)
    raise KeyboardInterrupt


@contextmanager
def attached(db: Database, sweep_id: str, jobs: int) -> Generator[Worker]:
    """Be noted as the process that starts the runs of a sweep.

    Raises:
        StorageError: If there is no such sweep.
    """
    me = this_process()
    attach_scheduler(db, sweep_id, me, jobs=jobs)
    try:
        yield me
    finally:
        with suppress(StorageError):
            detach_scheduler(db, sweep_id, me)


def start_all(db: Database, sweep_id: str, me: Worker, jobs: int, starter: Starter) -> None:
    """Start trainers of queued and lost runs of a sweep in its free places."""
    while claim := claim_run(db, sweep_id, me, jobs=jobs, has_trainer=find_trainer):
        with suppress(StorageError):  # the run is marked already
            starter.start(claim)


def _is_worked_on(sweep: Sweep) -> bool:
    """Whether a run of a stopped sweep has still to obey; one that was lost meanwhile will not."""
    return bool({"running", "paused", "queued"} & {run.status for run in sweep.runs})
