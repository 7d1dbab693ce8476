"""What a resume could go on from, said before anybody presses: a resume never removes rows in silence.

A run goes on from its newest usable checkpoint. Where there is none, its rows stay, and the offer is a new run that
starts again from step 0 and names it as its parent. Nothing here loads torch.
"""

import socket
from dataclasses import dataclass
from pathlib import Path

from app.analysis.provenance import library_versions
from app.jobs.launch import start_trainer
from emtc_core.checkpoint_file import Examined, examine, examine_open
from emtc_core.errors import RunStateError, StorageError
from storage.engine import Database
from storage.files.places import Place, explain_missing, run_folder, run_place
from storage.files.remote import RemoteFile, RunFiles
from storage.files.trainer_files import check_lease, is_ours
from storage.runs import lifecycle
from storage.runs.changes import claim_start, start_again
from storage.runs.lifecycle import Event, Owner, this_process
from storage.runs.removal import why_not_resume_at
from storage.runs.rows import RunRow, find_run, state_now

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
    """Examine a run's checkpoints, each once as long as its file stays as it is; at a URL, without fetching one."""
    elsewhere = row.host if row.host not in (None, socket.gethostname()) else None
    try:
        place = run_place(db, row.id)
        check_lease(db, place, row.id)
        here, there = _examine(place, row.id, run_folder(db, row.id))
        found = (*here, *there)
    except StorageError as exc:
        return CheckpointStatus(row.env_steps, (), row.files or "", elsewhere, str(exc))
    if lifecycle.allows(row.state, Event.CLAIM):  # else the rows still grow
        found = tuple(_fitting(db, row.id, each) for each in found)
    missing = explain_missing(db, row.id) if not (found or place.recorded or elsewhere) else ""
    late = len(here) if place.remote else 0
    return CheckpointStatus(row.env_steps, found, place.show(row.id), elsewhere, missing=missing, not_carried=late)


def _examine(place: Place, run_id: str, folder: Path) -> tuple[list[Examined], list[Examined]]:
    """Examine what a resume would find, newest first: in this machine's folder, and at a URL what it has of that."""
    files = place.files_of(run_id)
    if files is None:
        return examine(folder, run_id), []
    there = [_look_into(files, found) for found in reversed(files.list_checkpoints())]
    newest = there[0].name if there else ""
    here = examine(folder, run_id) if is_ours(files, folder) else []
    return [each for each in here if each.name > newest], there


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
    lifecycle.check(row.id, state_now(row), Event.CLAIM)
    standing = look(db, row)
    if standing.refused:
        raise RunStateError(f"Run {row.id} cannot go on here. {standing.refused}")
    if not standing.can_resume:
        raise RunStateError(
            f"Run {row.id} has recorded {row.env_steps:,} steps and no usable checkpoint here. {standing.why_not} "
            f"Its rows stay. Start again from step 0, as a new run, with: emtc resume {row.id} --start-again"
        )
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


def launch_again(db: Database, run_id: str) -> str:
    """Start a new run of the same configuration from step 0; the old one keeps its rows.

    Raises:
        RunStateError: If the run is at work.
    """
    owner = this_process()
    child = start_again(db, run_id, versions=library_versions(), owner=owner)
    start_trainer(db, child, token=owner.token)
    return child


def _fitting(db: Database, run_id: str, found: Examined) -> Examined:
    if found.fault is None and (reason := why_not_resume_at(db, run_id, found.env_step)):
        return Examined(found.name, found.env_step, f"{found.name} does not fit what was recorded: {reason}")
    return found
