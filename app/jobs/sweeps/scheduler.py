"""The local scheduler: trains several runs of one sweep at the same time, until no run is left.

Each trainer is its own process and continues when the scheduler ends. All state is in the database, so a scheduler can
be killed at any moment and replaced by another.
"""

import os
import subprocess
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress

from app.jobs.sweeps.worker import LeaveRequest, TrainerStarter
from emtc_core.errors import RunNotFoundError, RunStateError, StorageError
from storage.engine import Database
from storage.retry import retry_transient
from storage.runs.claims import ClaimedRun, RunClaimer, return_to_queue
from storage.runs.sweeps import ENDED, Sweep, attach_scheduler, detach_scheduler, get_sweep

POLL_S = 0.5


def run_sweep(
    db: Database, sweep_id: str, *, jobs: int, on_progress: Callable[[Sweep], None] = lambda sweep: None
) -> Sweep:
    """Start queued and lost runs of a sweep, at most `jobs` at once, until all have ended or the sweep is stopped.

    Args:
        db: An open database.
        sweep_id: The sweep.
        jobs: Number of runs at once.
        on_progress: Called with the sweep after each poll.

    Returns:
        The sweep at its end.

    Raises:
        StorageError: If there is no such sweep.
    """
    starter = SweepStarter(db, sweep_id, jobs=jobs)
    with attach_this_process(db, sweep_id, jobs):
        return poll_sweep(db, sweep_id, starter.fill, on_progress=on_progress)


def poll_sweep(
    db: Database,
    sweep_id: str,
    fill: Callable[[], None],
    *,
    on_progress: Callable[[Sweep], None],
    leave: LeaveRequest | None = None,
) -> Sweep:
    """Call `fill` at each poll, until all runs of a sweep have ended, or it is stopped and its trainers have ended.

    Args:
        db: An open database.
        sweep_id: The sweep.
        fill: Starts runs while there are free slots.
        on_progress: Called with the sweep after each poll.
        leave: Ends the loop when it is set.

    Returns:
        The sweep at its end.

    Raises:
        StorageError: If the database does not answer for a long time.
        KeyboardInterrupt: If `leave` is set.
    """
    while leave is None or not leave.is_requested:
        with suppress(StorageError):  # a locked database: try again at the next poll
            fill()
        sweep = retry_transient(db, lambda: get_sweep(db, sweep_id))
        on_progress(sweep)
        # a sweep is stopped when every trainer has read its stop command; lost runs do not count
        is_active = any(run.status not in ENDED and run.status != "lost" for run in sweep.runs)
        if sweep.is_over or (sweep.status == "stopped" and not is_active):
            return sweep
        time.sleep(POLL_S)
    raise KeyboardInterrupt


@contextmanager
def attach_this_process(db: Database, sweep_id: str, jobs: int) -> Generator[None]:
    """Record this process as the scheduler of a sweep, and remove the record at the end.

    Raises:
        StorageError: If there is no such sweep.
    """
    attach_scheduler(db, sweep_id, os.getpid(), jobs=jobs)
    try:
        yield
    finally:
        with suppress(StorageError):
            detach_scheduler(db, sweep_id, os.getpid())


class SweepStarter:
    """Claims the runs of one sweep and starts their trainers while the sweep has free slots."""

    def __init__(
        self,
        db: Database,
        sweep_id: str,
        *,
        jobs: int,
        start: Callable[[ClaimedRun], subprocess.Popen[bytes] | None] | None = None,
    ) -> None:
        """Prepare the starts.

        Args:
            db: An open database.
            sweep_id: The sweep.
            jobs: Number of runs at once.
            start: Starts the trainer of a claimed run; None: `TrainerStarter.start`.
        """
        self._db, self._sweep_id, self._jobs = db, sweep_id, jobs
        self._claimer, self._start = RunClaimer(db), start or TrainerStarter(db).start
        self._trainers: dict[ClaimedRun, subprocess.Popen[bytes]] = {}

    def fill(self) -> None:
        """Return runs to the queue whose trainer has ended without recording its end, and start queued and lost runs.

        Raises:
            StorageError: If the database does not answer at the moment.
        """
        for claim in [claim for claim, process in self._trainers.items() if process.poll() is not None]:
            with suppress(RunStateError, RunNotFoundError):  # it has recorded its end, or its run is deleted
                return_to_queue(self._db, claim.run_id, token=claim.token, is_launcher=True)
            del self._trainers[claim]
        while claim := self._claimer.claim_in_sweep(self._sweep_id, jobs=self._jobs):
            with suppress(StorageError):  # the run is already marked as failed
                if (process := self._start(claim)) is not None:
                    self._trainers[claim] = process
