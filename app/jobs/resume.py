"""What a resume could go on from, said before anybody presses: a resume never removes rows in silence.

A run goes on from its newest usable checkpoint. Where there is none, its rows stay, and the offer is a new run that
starts again from step 0 and names it as its parent. One act on several runs, a resume too, goes from one to the
other: what was done, and why it was not where it was not. Nothing here loads torch.
"""

import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from app.analysis.provenance import library_versions
from app.jobs.launch import check_startable, start_trainer
from emtc_core.checkpoint_file import Examined, examine, examine_best, examine_open
from emtc_core.config.resolve import config_from_stored
from emtc_core.errors import (
    ConfigError,
    EmtcError,
    EnvUnavailableError,
    RunNotFoundError,
    RunStateError,
    StorageError,
    describe_error,
)
from storage.engine import Database
from storage.files.places import Place, explain_missing, run_folder, run_place
from storage.files.remote import RemoteFile, RunFiles
from storage.files.trainer_files import check_lease, is_ours
from storage.retry import is_transient
from storage.runs import lifecycle
from storage.runs.changes import claim_start, finish_run, start_again
from storage.runs.claims import begin_watch, watch_elsewhere
from storage.runs.control import send_command
from storage.runs.lifecycle import Event, Owner, State, this_process
from storage.runs.removal import remove_run, why_not_resume_at
from storage.runs.rows import RunRow, find_run, refuse_imported, state_now

GOOD_ENOUGH = 2
_MOST_SEEN = 1000


@dataclass(frozen=True)
class CheckpointStatus:
    """The checkpoints that a run has here, newest first, and which of them a resume would use."""

    env_steps: int
    checkpoints: tuple[Examined, ...]
    folder: str
    elsewhere: str | None
    """The machine that trained the run, when it is not this one."""
    refused: str | None = None
    """Why this machine may not or cannot look for checkpoints where the run says that they lie."""
    missing: str = ""
    """Where else they may be, where there is none."""
    not_carried: int = 0
    """How many of the newest checkpoints have not reached the place at a URL."""
    best: tuple[Examined, ...] = ()
    """The policies of best evaluations, newest first: no resume goes on from one."""

    @property
    def usable(self) -> Examined | None:
        """The checkpoint that a resume goes on from."""
        return next((each for each in self.checkpoints if each.fault is None), None)

    @property
    def faults(self) -> list[str]:
        """Why checkpoints cannot be used, newest first."""
        return [each.fault for each in self.checkpoints if each.fault]

    @property
    def can_resume(self) -> bool:
        """Whether a resume loses nothing unsaid: there is a checkpoint, or no row that it could cost."""
        return self.refused is None and (self.usable is not None or self.env_steps == 0)

    @property
    def superseded_steps(self) -> int:
        """How many recorded steps a resume would supersede."""
        return self.env_steps - (self.usable.env_step if self.usable else 0)

    @property
    def why_not(self) -> str:
        """Why nothing can be resumed."""
        if self.refused:
            return self.refused
        if self.faults:
            return " ".join(self.faults)
        where = f" It was trained on {self.elsewhere}; resume it there." if self.elsewhere else ""
        return f"There is no checkpoint in {self.folder}.{where}{self.missing}"


def look(db: Database, row: RunRow) -> CheckpointStatus:
    """Examine a run's checkpoints, each once as long as its file stays as it is; at a URL, without fetching one.

    Raises:
        StorageError: If the database does not answer now, which says nothing of the checkpoints.
    """
    elsewhere = row.host if row.host not in (None, socket.gethostname()) else None
    try:
        place = run_place(db, row.id)
        check_lease(db, place, row.id)
        here, there = _examine(place, row.id, run_folder(db, row.id))
        found, best = (*here, *there), _examine_best(place, row.id, run_folder(db, row.id))
    except StorageError as exc:
        if is_transient(db, exc):
            raise
        return CheckpointStatus(row.env_steps, (), row.files or "", elsewhere, str(exc))
    if lifecycle.allows(row.state, Event.CLAIM):  # else the rows still grow
        found = tuple(_fitting(db, row.id, each) for each in found)
    missing = explain_missing(db, row.id) if not (found or place.recorded or elsewhere) else ""
    late = len(here) if place.remote else 0
    return CheckpointStatus(
        row.env_steps, found, place.show(row.id), elsewhere, missing=missing, not_carried=late, best=best
    )


def _examine(place: Place, run_id: str, folder: Path) -> tuple[list[Examined], list[Examined]]:
    """Examine what a resume would find, newest first: in this machine's folder, and at a URL what it has of that."""
    files = place.files_of(run_id)
    if files is None:
        return examine(folder, run_id), []
    there = [_look_into(files, found) for found in reversed(files.list_checkpoints())]
    newest = there[0].name if there else ""
    here = examine(folder, run_id) if is_ours(files, folder) else []
    return [each for each in here if each.name > newest], there


def _examine_best(place: Place, run_id: str, folder: Path) -> tuple[Examined, ...]:
    files = place.files_of(run_id)
    if files is None:
        return tuple(examine_best(folder, run_id))
    there = [_look_into(files, found) for found in reversed(files.list_best())]
    here = examine_best(folder, run_id) if is_ours(files, folder) else []
    return (*(each for each in here if each.name not in {other.name for other in there}), *there)


def _look_into(files: RunFiles, found: RemoteFile) -> Examined:
    """Look at a checkpoint at a URL, once as long as it stays as it is."""
    key = (files, found)
    if key not in _SEEN:
        if len(_SEEN) >= _MOST_SEEN:
            _SEEN.clear()
        _SEEN[key] = files.look_into(found, lambda file: examine_open(found.name, file, found.size, files.run_id))
    return _SEEN[key]


_SEEN: dict[tuple[RunFiles, RemoteFile], Examined] = {}


def take_to_resume(db: Database, run_id: str) -> Owner:
    """Take a run that a trainer in this process is about to go on with, if that costs nothing in silence.

    Raises:
        RunStateError: If the run is at work, or has rows and no usable checkpoint.
    """
    row = find_run(db, run_id)
    refuse_imported(row, "go on")
    lifecycle.check(row.id, state_now(row), Event.CLAIM)
    status = look(db, row)
    if status.refused:
        raise RunStateError(f"Run {row.id} cannot go on here. {status.refused}", reason="refused", subject=row.id)
    if not status.can_resume:
        raise RunStateError(
            f"Run {row.id} has recorded {row.env_steps:,} steps and no usable checkpoint here. {status.why_not} "
            f"Its rows stay. Start again from step 0, as a new run, with: emtc resume {row.id} --start-again",
            reason="no_checkpoint",
            subject=row.id,
        )
    watch_elsewhere(db, row.id)
    owner = this_process()
    claim_start(db, row.id, owner)
    return owner


def resume_run(db: Database, run_id: str) -> None:
    """Start a trainer that goes on from the run's newest usable checkpoint.

    Raises:
        RunStateError: If the run is at work, or has rows and no usable checkpoint.
    """
    row = find_run(db, run_id)
    owner = take_to_resume(db, row.id)
    start_trainer(db, row.id, token=owner.token, resume=True)


def refuse_unknown(row: RunRow) -> None:
    """Refuse to start a run again that this version or machine could not train, before anything is created.

    Raises:
        ConfigError: In one sentence.
    """
    try:
        check_startable(config_from_stored(row.config))
    except (ConfigError, EnvUnavailableError) as exc:
        raise ConfigError(
            "cannot start again here", key=f"run {row.id} ({row.algo} on {row.map})", hint=describe_error(exc)[0]
        ) from exc


def launch_again(db: Database, run_id: str) -> str:
    """Start a new run of the same configuration from step 0; the old one keeps its rows.

    Raises:
        RunStateError: If the run is at work.
        ConfigError: If this version or machine cannot train it; nothing is created then.
    """
    refuse_unknown(find_run(db, run_id))
    owner = this_process()
    child = start_again(db, run_id, versions=library_versions(), owner=owner)
    start_trainer(db, child, token=owner.token)
    return child


def _fitting(db: Database, run_id: str, found: Examined) -> Examined:
    if found.fault is None and (reason := why_not_resume_at(db, run_id, found.env_step)):
        return Examined(found.name, found.env_step, f"{found.name} does not fit what was recorded: {reason}")
    return found


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
    begin_watch(db, run_ids)
    return _each(run_ids, lambda run_id: resume_run(db, run_id))


def delete_runs(db: Database, run_ids: Sequence[str]) -> Outcome:
    """Delete runs with all that they recorded, and their folders; one that is gone already is done."""

    def delete(run_id: str) -> None:
        try:
            remove_run(db, run_id)
        except RunNotFoundError:
            return

    begin_watch(db, run_ids)
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
