"""The local scheduler: a few trainers at once, each a process of its own, until no run of the sweep is left to do.

It holds nothing that the database does not: kill it at any moment and start another. Trainers outlive it.
"""

import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress

from app.runs.launch import find_trainer, start_trainer
from app.runs.resume import look
from app.runs.versions import library_versions
from app.sweeps.control import this_process
from emtc_core.errors import StorageError
from storage.engine import Database
from storage.queries.runs import get_run
from storage.queries.sweeps import Sweep, get_sweep
from storage.runs import finish_run, start_again
from storage.sweeps import Claim, Worker, attach_scheduler, claim_run, detach_scheduler

POLL_S = 0.5
MOST_STARTS = 3


def run_sweep(
    db: Database,
    sweep_id: str,
    *,
    jobs: int,
    on_progress: Callable[[Sweep], None] = lambda sweep: None,
    poll_s: float = POLL_S,
) -> Sweep:
    """Start queued and lost runs of a sweep, `jobs` at once, until all have ended or the sweep is stopped.

    Returns:
        The sweep at its end.

    Raises:
        StorageError: If there is no such sweep.
    """
    with _attached(db, sweep_id, jobs) as me:
        starts: Counter[str] = Counter()
        while True:
            with suppress(StorageError):  # a locked database is asked again at the next tick
                _fill(db, sweep_id, me, jobs, starts)
            sweep = get_sweep(db, sweep_id)
            on_progress(sweep)
            if sweep.is_over or (sweep.status == "stopped" and not _is_worked_on(sweep)):
                return sweep
            time.sleep(poll_s)


@contextmanager
def _attached(db: Database, sweep_id: str, jobs: int) -> Generator[Worker]:
    me = this_process()
    attach_scheduler(db, sweep_id, me, jobs=jobs)
    try:
        yield me
    finally:
        with suppress(StorageError):
            detach_scheduler(db, sweep_id, me)


def _fill(db: Database, sweep_id: str, me: Worker, jobs: int, starts: Counter[str]) -> None:
    while claim := claim_run(db, sweep_id, me, jobs=jobs, has_trainer=find_trainer):
        starts[claim.run_id] += 1
        if starts[claim.run_id] > MOST_STARTS:
            sentence = f"Its trainer ended {MOST_STARTS} times without a word. The log says more."
            finish_run(db, claim.run_id, "failed", error=sentence, token=claim.token)
            continue
        if claim.resume and (why_not := _why_no_resume(db, claim)):
            starts[_replace(db, claim, why_not)] = starts[claim.run_id]
            continue
        with suppress(StorageError):  # the run is marked already
            start_trainer(db, claim.run_id, token=claim.token, resume=claim.resume)


def _why_no_resume(db: Database, claim: Claim) -> str | None:
    standing = look(db, get_run(db, claim.run_id))
    return None if standing.can_resume else standing.why_not


def _replace(db: Database, claim: Claim, why_not: str) -> str:
    """Give a run's place in the sweep to a new one that starts from step 0; what the old one recorded stays."""
    sentence = f"Its trainer ended and no checkpoint can be used: {why_not} A new run has its place in the sweep."
    finish_run(db, claim.run_id, "failed", error=sentence, token=claim.token)
    return start_again(db, claim.run_id, versions=library_versions())


def _is_worked_on(sweep: Sweep) -> bool:
    """Whether a run of a stopped sweep has still to obey; one that was lost meanwhile will not."""
    return bool({"running", "paused", "queued"} & {run.status for run in sweep.runs})
