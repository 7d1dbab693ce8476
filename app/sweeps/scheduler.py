"""The local scheduler: a few trainers at once, each a process of its own, until no run of the sweep is left to do.

It holds nothing that the database does not: kill it at any moment and start another. Trainers outlive it.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from app.runs.launch import find_trainer, start_trainer
from app.sweeps.control import this_process
from emtc_core.errors import RunStateError, StorageError
from storage.engine import Database
from storage.queries.sweeps import Sweep, get_sweep
from storage.runs import finish_run
from storage.sweeps import Worker, attach_scheduler, claim_run, detach_scheduler

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
def _attached(db: Database, sweep_id: str, jobs: int) -> Iterator[Worker]:
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
            finish_run(db, claim.run_id, "failed", error=sentence)
            continue
        try:
            start_trainer(db, claim.run_id, resume=claim.resume)
        except StorageError as exc:
            with suppress(RunStateError):  # it has marked the run already
                finish_run(db, claim.run_id, "failed", error=str(exc))


def _is_worked_on(sweep: Sweep) -> bool:
    """Whether a run of a stopped sweep has still to obey; one that was lost meanwhile will not."""
    return bool({"running", "paused", "queued"} & {run.status for run in sweep.runs})
