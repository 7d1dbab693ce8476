"""Find the checkpoint from which a run can resume, and resume, restart, stop or delete runs.

A run resumes from its newest usable checkpoint. A run with recorded rows but no usable checkpoint keeps its rows. The
user can then restart it: a new run trains from step 0, and the old run is its parent. An action on several runs
continues after a run for which it is not possible, and returns the error messages. This module does not load torch.
"""

import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from app.analysis.provenance import library_versions
from app.jobs.launch import check_startable, start_trainer
from emtc_core.checkpoint_file import CheckpointCheck, check_best, check_checkpoints
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
from storage.files import explain_missing_files, run_folder
from storage.runs.changes import start_again
from storage.runs.claims import ClaimedRun, claim_to_train, make_token
from storage.runs.control import stop_run
from storage.runs.removal import find_resume_error, remove_run
from storage.runs.rows import RunRow, check_not_imported, find_run
from storage.runs.status import allows, check_allowed

ENOUGH_CHECKPOINTS = 2
"""With this number of usable checkpoints, a run can still resume if one of the files becomes damaged."""


@dataclass(frozen=True)
class CheckpointStatus:
    """The checkpoints of a run on this machine, and whether the run can resume from one."""

    env_steps: int
    """Number of recorded env steps of the run."""
    checkpoints: tuple[CheckpointCheck, ...]
    """Newest first."""
    folder: str
    other_host: str | None
    """The machine that trained the run, if it is not this machine."""
    refusal: str | None = None
    """Why this machine cannot read the folder of the checkpoints."""
    missing_note: str = ""
    """If there is no checkpoint here: a sentence why the checkpoints may be in another folder. Otherwise empty."""
    best: tuple[CheckpointCheck, ...] = ()
    """Policies of the best evaluations, newest first. A run cannot resume from them."""

    @property
    def usable(self) -> CheckpointCheck | None:
        """The newest usable checkpoint, from which a run resumes."""
        return next((checkpoint for checkpoint in self.checkpoints if checkpoint.fault is None), None)

    @property
    def faults(self) -> list[str]:
        """Why checkpoints cannot be used, newest first."""
        return [checkpoint.fault for checkpoint in self.checkpoints if checkpoint.fault]

    @property
    def can_resume(self) -> bool:
        """Whether the run has a usable checkpoint, or no recorded steps, so that it can start from step 0."""
        return self.refusal is None and (self.usable is not None or self.env_steps == 0)

    @property
    def superseded_steps(self) -> int:
        """Number of recorded env steps after the checkpoint. A resume replaces their rows."""
        return self.env_steps - (self.usable.env_step if self.usable else 0)

    @property
    def reason(self) -> str:
        """Why the run cannot resume."""
        if self.refusal:
            return self.refusal
        if self.faults:
            return " ".join(self.faults)
        host_note = f" It was trained on {self.other_host}; resume it there." if self.other_host else ""
        return f"There is no checkpoint in {self.folder}.{host_note}{self.missing_note}"


def examine_checkpoints(db: Database, row: RunRow) -> CheckpointStatus:
    """Examine the checkpoints of a run. Results are cached while the files do not change.

    Raises:
        StorageError: If the database does not answer at the moment.
    """
    is_from_other_host = row.host not in (None, socket.gethostname())
    other_host = row.host if is_from_other_host else None
    try:
        folder = run_folder(db, row.id)
    except StorageError as exc:  # EMTC_FILES cannot be used
        return CheckpointStatus(row.env_steps, (), "", other_host, str(exc))
    checkpoints = check_checkpoints(folder, row.id)
    best = check_best(folder, row.id)
    if allows(row.live_status, "resume"):  # not while a trainer is adding rows
        checkpoints = [_compare_with_rows(db, row.id, checkpoint) for checkpoint in checkpoints]
    return CheckpointStatus(
        row.env_steps,
        tuple(checkpoints),
        str(folder),
        other_host,
        missing_note="" if checkpoints else explain_missing_files(db),
        best=tuple(best),
    )


def claim_to_resume(db: Database, run_id: str) -> str:
    """Claim a run that this process will resume, and return the token by which it owns the run.

    A run whose trainer is lost (no heartbeats) is claimed at once.

    Raises:
        RunStateError: If the run is being trained, or has recorded rows and no usable checkpoint.
    """
    row = find_run(db, run_id)
    check_not_imported(row, "resume")
    check_allowed(row.id, row.live_status, "start" if row.live_status == "queued" else "resume")
    status = examine_checkpoints(db, row)
    if status.refusal:
        raise RunStateError(f"Run {row.id} cannot resume here. {status.refusal}")
    if not status.can_resume:
        raise RunStateError(
            f"Run {row.id} has recorded {row.env_steps:,} steps and no usable checkpoint here. {status.reason} "
            f"Its rows are kept. Start again from step 0, as a new run, with: emtc resume {row.id} --start-again"
        )
    token = make_token()
    claim_to_train(db, row.id, token)
    return token


def resume_run(db: Database, run_id: str) -> None:
    """Start a trainer that resumes a run from its newest usable checkpoint.

    Raises:
        RunStateError: If the run is being trained, or has recorded rows and no usable checkpoint.
    """
    row = find_run(db, run_id)
    token = claim_to_resume(db, row.id)
    start_trainer(db, ClaimedRun(row.id, resume=True, token=token))


def check_can_restart(row: RunRow) -> None:
    """Check that this version and this machine can train a run again from step 0, before anything is created.

    Raises:
        ConfigError: If they cannot.
    """
    try:
        check_startable(config_from_stored(row.config))
    except (ConfigError, EnvUnavailableError) as exc:
        raise ConfigError(
            "cannot start again here", key=f"run {row.id} ({row.algo} on {row.map})", hint=describe_error(exc)[0]
        ) from exc


def restart_run(db: Database, run_id: str) -> str:
    """Start a new run with the same configuration from step 0. The old run keeps its rows.

    Raises:
        RunStateError: If the run is being trained.
        ConfigError: If this version or machine cannot train it. Nothing is created then.
    """
    check_can_restart(find_run(db, run_id))
    token = make_token()
    new_run_id = start_again(db, run_id, versions=library_versions(), token=token)
    start_trainer(db, ClaimedRun(new_run_id, resume=False, token=token))
    return new_run_id


@dataclass(frozen=True)
class BulkResult:
    """Result of an action on several runs."""

    changed_ids: tuple[str, ...]
    """Ids of the runs for which the action was possible."""
    errors: tuple[str, ...]
    """Error messages, one for each of the other runs."""


def stop_runs(db: Database, run_ids: Sequence[str]) -> BulkResult:
    """Send a stop command to the trainers of runs without waiting for them. Queued runs are stopped at once."""
    return _apply_to_each(run_ids, lambda run_id: stop_run(db, run_id))


def resume_runs(db: Database, run_ids: Sequence[str]) -> BulkResult:
    """Start a trainer for each run that can resume."""
    return _apply_to_each(run_ids, lambda run_id: resume_run(db, run_id))


def delete_runs(db: Database, run_ids: Sequence[str]) -> BulkResult:
    """Delete runs with their rows and folders. A run that is already deleted counts as done."""

    def delete(run_id: str) -> None:
        try:
            remove_run(db, run_id)
        except RunNotFoundError:
            return

    return _apply_to_each(run_ids, delete)


def _compare_with_rows(db: Database, run_id: str, checkpoint: CheckpointCheck) -> CheckpointCheck:
    """Add a fault to a checkpoint that does not match the recorded rows."""
    if checkpoint.fault is not None:
        return checkpoint
    reason = find_resume_error(db, run_id, checkpoint.env_step)
    if reason is None:
        return checkpoint
    fault = f"{checkpoint.name} does not match the recorded rows: {reason}"
    return CheckpointCheck(checkpoint.name, checkpoint.env_step, fault)


def _apply_to_each(run_ids: Iterable[str], action: Callable[[str], object]) -> BulkResult:
    done, errors = [], []
    for run_id in run_ids:
        try:
            action(run_id)
        except EmtcError as exc:
            errors.append(str(exc))
        else:
            done.append(run_id)
    return BulkResult(tuple(done), tuple(errors))
