"""One act on several runs, one after the other: what was done, and why it was not where it was not."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from app.jobs.resume import resume_run
from emtc_core.errors import EmtcError, RunNotFoundError
from storage.engine import Database
from storage.runs.changes import finish_run
from storage.runs.control import send_command
from storage.runs.lifecycle import State
from storage.runs.removal import remove_run
from storage.runs.rows import find_run


@dataclass(frozen=True)
class Outcome:
    """What became of an act on several runs."""

    done: tuple[str, ...]
    """Ids."""
    refused: tuple[str, ...]
    """A sentence for each run that it was not done to."""


def stop_runs(db: Database, run_ids: Sequence[str]) -> Outcome:
    """Ask trainers to stop, without waiting until they have heard; what nobody has leaves the queue."""
    return _each(run_ids, lambda run_id: _stop(db, run_id))


def resume_runs(db: Database, run_ids: Sequence[str]) -> Outcome:
    """Start a trainer for each run that can go on without losing anything."""
    return _each(run_ids, lambda run_id: resume_run(db, run_id))


def delete_runs(db: Database, run_ids: Sequence[str]) -> Outcome:
    """Delete runs with all that they recorded, and their folders; one that is gone already is done."""

    def delete(run_id: str) -> None:
        try:
            remove_run(db, run_id)
        except RunNotFoundError:
            return

    return _each(run_ids, delete)


def _stop(db: Database, run_id: str) -> None:
    if find_run(db, run_id).state == State.CREATED:
        finish_run(db, run_id, "stopped")
    else:
        send_command(db, run_id, "stop")


def _each(run_ids: Iterable[str], act: Callable[[str], None]) -> Outcome:
    done, refused = [], []
    for run_id in run_ids:
        try:
            act(run_id)
        except EmtcError as exc:
            refused.append(str(exc))
        else:
            done.append(run_id)
    return Outcome(tuple(done), tuple(refused))
