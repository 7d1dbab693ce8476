"""Delete the data that a run recorded after an env step (a rewind), or a whole run with its files.

A rewind is one transaction. Before a deletion, its extent can be counted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Integer, delete, func, insert, select, update
from sqlalchemy.orm import InstrumentedAttribute

from emtc_core.errors import RunStateError, StorageError
from storage.engine import Database
from storage.files.places import FilesPlace, get_place, get_run_place, local_folder, run_folder
from storage.files.remote import Remote, RemoteFile
from storage.files.trainer_files import check_lease, find_other_owner, read_local_lease, with_reserve
from storage.frames import in_parts
from storage.models import (
    SUMMARY_STEPS,
    Entry,
    EpisodeRow,
    EvalEpisode,
    Evaluation,
    GateStats,
    MetricRow,
    PolicyEvaluation,
    RequestedEvaluationRow,
    Resume,
    Run,
    SnapshotRow,
    Transition,
    TransitionSummary,
)
from storage.private_files import list_trainer_files, remove_folder, remove_own_files
from storage.runs.claims import check_owner, remove_owner
from storage.runs.rows import get_locked_row, lock_for_action, summarize_bucket, update_run_summary

_TABLES_BY_STEP = (
    *(Transition, EvalEpisode, GateStats, MetricRow, Evaluation, RequestedEvaluationRow, PolicyEvaluation),
    SnapshotRow,
)
_DELETE_STEPS = 200_000
"""Number of transitions deleted per transaction, so that a deletion does not block trainers for long."""


@dataclass(frozen=True)
class RunContents:
    """Number of rows and files of a run."""

    transitions: int
    episodes: int
    evaluations: int
    snapshots: int
    entries: int
    """Notebook entries that cite the run. They are not deleted with it."""
    children: int
    """Runs that were started again from this run. They are not deleted with it."""
    folder: str
    files: int
    size_bytes: int

    def __str__(self) -> str:
        size = f"{self.size_bytes / 1e6:,.1f} MB"
        folder = f"the folder {self.folder} with {_count(self.files, 'file')} ({size}: log and checkpoints)"
        return f"{_describe_rows(self)}, and {folder if self.files else 'no files'}"


@dataclass(frozen=True)
class TotalContents:
    """Number of rows and files of several runs."""

    runs: int
    transitions: int
    episodes: int
    evaluations: int
    snapshots: int
    files: int
    size_bytes: int
    reasons: tuple[str, ...] = ()
    """Why the files of some runs cannot be counted. These files will not be deleted."""

    def __str__(self) -> str:
        size = f"{self.size_bytes / 1e6:,.1f} MB"
        files = f"{_count(self.files, 'file')} of logs and checkpoints ({size})" if self.files else "no files"
        contents = f"{_describe_rows(self)}, and {files}"
        return f"{contents}. Some files will not be deleted. {' '.join(self.reasons)}" if self.reasons else contents


def _describe_rows(contents: RunContents | TotalContents) -> str:
    """Write the number of rows, for example "50 transitions in 1 episode, 2 evaluations, 0 snapshots"."""
    transitions, episodes = _count(contents.transitions, "transition"), _count(contents.episodes, "episode")
    evaluations, snapshots = _count(contents.evaluations, "evaluation"), _count(contents.snapshots, "snapshot")
    return f"{transitions} in {episodes}, {evaluations}, {snapshots}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _find_rewind_error(connection: Connection, run_id: str, env_step: int, *, reached: int) -> str | None:
    """Return why a run with `reached` env steps cannot be rewound to an env step, or None if it can.

    Only 0 and the last env step of an episode are possible.
    """
    if not 0 <= env_step <= reached:
        return f"Run {run_id} has {reached} env steps; it cannot go back to {env_step}."
    if _find_episode_end(connection, run_id, env_step) != env_step:
        return f"Run {run_id} can go back only to the end of an episode; {env_step} is inside one."
    return None


def _find_episode_end(connection: Connection, run_id: str, env_step: int) -> int:
    """Return the last env step <= `env_step` that is the end of an episode, or 0."""
    if env_step <= 0:
        return 0
    end = EpisodeRow.first_env_step + EpisodeRow.length - 1
    last = select(func.max(end)).where(EpisodeRow.run_id == run_id, end <= env_step)
    return connection.execute(last).scalar_one() or 0


def _rewind(connection: Connection, run_id: str, env_step: int, *, reached: int) -> int:
    """Delete everything that was recorded after an env step, and update the summaries.

    Args:
        connection: The transaction.
        run_id: The run.
        env_step: 0, or the last env step of an episode.
        reached: Env steps of the run.

    Returns:
        Number of deleted training episodes.

    Raises:
        RunStateError: If the run cannot be rewound to this env step.
    """
    if reason := _find_rewind_error(connection, run_id, env_step, reached=reached):
        raise RunStateError(reason)
    later = (EpisodeRow.run_id == run_id, EpisodeRow.first_env_step > env_step)
    episodes = connection.execute(delete(EpisodeRow).where(*later)).rowcount
    for table in _TABLES_BY_STEP:
        connection.execute(delete(table).where(table.run_id == run_id, table.env_step > env_step))
    first_bucket = env_step // SUMMARY_STEPS  # the first bucket with a deleted transition
    connection.execute(
        delete(TransitionSummary).where(TransitionSummary.run_id == run_id, TransitionSummary.bucket >= first_bucket)
    )
    summarize_bucket(connection, run_id, first_bucket)
    last = select(Evaluation.win_rate, Evaluation.return_mean).where(Evaluation.run_id == run_id)
    evaluation = connection.execute(last.order_by(Evaluation.env_step.desc()).limit(1)).one_or_none()
    win_rate, return_mean = evaluation or (None, None)
    connection.execute(
        update(Run).where(Run.id == run_id).values(env_steps=env_step, win_rate=win_rate, return_mean=return_mean)
    )
    update_run_summary(connection, run_id)
    return episodes


def rewind_run(
    db: Database,
    run_id: str,
    env_step: int,
    *,
    token: str | None = None,
    checkpoint: str | None = None,
    passed_over: Sequence[str] = (),
) -> None:
    """Delete everything that was recorded after `env_step`, and record the resume, in one transaction.

    Args:
        db: An open database.
        run_id: The run.
        env_step: Env step of the loaded checkpoint: 0, or the last env step of an episode.
        token: Token of the owner; None for a run without an owner.
        checkpoint: The checkpoint file that was loaded.
        passed_over: Why newer checkpoint files were not loaded.

    Raises:
        RunNotFoundError: If there is no such run.
        RunStateError: If the run cannot be rewound to this env step, or another process owns it.
    """
    with db.transaction() as connection:
        row = get_locked_row(connection, run_id)
        check_owner(row, token)
        episodes = _rewind(connection, run_id, env_step, reached=row.env_steps)
        values = {
            "run_id": run_id,
            "env_step": env_step,
            "reached_env_step": row.env_steps,
            "resumed_at": datetime.now(UTC),
            "episodes": episodes,
            "checkpoint": checkpoint,
            "passed_over": " ".join(passed_over) or None,
        }
        connection.execute(insert(Resume), values)


def find_resume_error(db: Database, run_id: str, env_step: int) -> str | None:
    """Return why a run cannot be resumed from a checkpoint, or None if it can.

    Args:
        db: An open database.
        run_id: The run.
        env_step: Env step of the checkpoint.
    """
    with db.read() as connection:
        reached = connection.execute(select(Run.env_steps).where(Run.id == run_id)).scalar_one()
        first = select(Transition.run_id).where(Transition.run_id == run_id, Transition.env_step == 1)
        if reached and connection.execute(first).first() is None:
            return f"The transitions of run {run_id} were thinned away; new ones would have no beginning."
        return _find_rewind_error(connection, run_id, env_step, reached=reached)


def count_contents_of_runs(db: Database, run_ids: Sequence[str]) -> TotalContents:
    """Count the rows and files that deleting these runs would delete. One transition per env step is counted."""
    runs = transitions = episodes = evaluations = snapshots = 0
    with db.read() as connection:
        for part in in_parts(run_ids):

            def count(key: InstrumentedAttribute[Any], part: Sequence[str] = part) -> int:
                return connection.execute(select(func.count()).where(key.in_(part))).scalar_one()

            runs += count(Run.id)
            env_steps = select(func.sum(Run.env_steps, type_=Integer())).where(Run.id.in_(part))
            transitions += int(connection.execute(env_steps).scalar_one() or 0)
            episodes += count(EpisodeRow.run_id)
            evaluations += count(Evaluation.run_id)
            snapshots += count(SnapshotRow.run_id)
    sizes, why_not = _all_file_sizes(db, run_ids)
    return TotalContents(runs, transitions, episodes, evaluations, snapshots, len(sizes), sum(sizes), why_not)


def _all_file_sizes(db: Database, run_ids: Sequence[str]) -> tuple[list[int], tuple[str, ...]]:
    """List the sizes of the files of several runs [bytes], and the reasons why some cannot be read.

    Each remote store is listed only once.
    """
    sizes: list[int] = []
    reasons: dict[str, None] = {}
    listings: dict[Remote, dict[str, list[RemoteFile]] | StorageError] = {}

    def list_at(remote: Remote) -> dict[str, list[RemoteFile]]:
        if remote not in listings:
            try:
                listings[remote] = remote.list_runs()
            except StorageError as error:
                listings[remote] = error
        listing = listings[remote]
        if isinstance(listing, StorageError):
            raise listing
        return listing

    for run_id in run_ids:
        try:
            place = get_run_place(db, run_id)
            remote_files = list_at(place.remote).get(run_id, []) if place.remote else None
            sizes += _file_sizes(db, run_id, place, remote_files)
        except StorageError as error:
            reasons[str(error)] = None
    return sizes, tuple(reasons)


def _file_sizes(
    db: Database, run_id: str, place: FilesPlace, remote_files: Sequence[RemoteFile] | None = None
) -> list[int]:
    """List the sizes of a run's files [bytes], next to the database and at its recorded place.

    `remote_files` are the files at a remote place, if they are already listed.
    """
    local = local_folder(db, run_id).rglob("*") if _may_remove_local(db, run_id) else ()
    sizes = [path.lstat().st_size for path in local if path.is_symlink() or path.is_file()]
    if remote := place.files_of(run_id):
        sizes += [file.size for file in (remote.list_files() if remote_files is None else remote_files)]
    elif place.recorded is not None:
        sizes += [path.lstat().st_size for path in list_trainer_files(run_folder(db, run_id))]
    return sizes


def count_run_contents(db: Database, run_id: str, *, leave_files: bool = False) -> RunContents:
    """Count the rows and files that `remove_run` would delete.

    Args:
        db: An open database.
        run_id: The run.
        leave_files: Do not count the files at the place of the run; count those next to the database.

    Raises:
        StorageError: If this machine must not read the place of the run's files, or cannot reach it.
    """
    place = get_place(db, None) if leave_files else _place_to_clear(db, run_id)
    sizes = _file_sizes(db, run_id, place)
    with db.read() as connection:

        def count(key: InstrumentedAttribute[Any]) -> int:
            return connection.execute(select(func.count()).where(key == run_id)).scalar_one()

        return RunContents(
            transitions=count(Transition.run_id),
            episodes=count(EpisodeRow.run_id),
            evaluations=count(Evaluation.run_id),
            snapshots=count(SnapshotRow.run_id),
            entries=count(Entry.run_id),
            children=count(Run.parent_id),
            folder=place.show(run_id),
            files=len(sizes),
            size_bytes=sum(sizes),
        )


def remove_run(db: Database, run_id: str, *, leave_files: bool = False) -> None:
    """Delete a run: its rows, then its log and checkpoints at their recorded place.

    Args:
        db: An open database.
        run_id: The run.
        leave_files: Delete only the rows and the files next to the database, not files at another place or of another
            database.

    Raises:
        RunNotFoundError: If there is no such run.
        RunStateError: If the run has a trainer. Nothing is deleted then.
        StorageError: If the folder contains a link, or this machine must not read the place of the files or cannot
            reach it. Nothing is deleted then.
    """
    # All places are checked before the first row is deleted.
    local = local_folder(db, run_id) if _may_remove_local(db, run_id) else None
    place = None if leave_files else _place_to_clear(db, run_id)
    remote = place.files_of(run_id) if place else None
    own_folder = run_folder(db, run_id) if place and place.recorded and remote is None else None
    if remote is not None:
        remote.list_files()
    with_reserve(db, lambda: delete_run(db, run_id))
    if local is not None:
        remove_folder(local)
    if own_folder is not None:
        remove_own_files(own_folder)
    if remote is not None:
        remote.remove_all()


def _may_remove_local(db: Database, run_id: str) -> bool:
    """Return whether a run's folder next to the database, or in the user's data folder, is not of another database."""
    return find_other_owner(db, read_local_lease(local_folder(db, run_id)), is_local=True) is None


def _place_to_clear(db: Database, run_id: str) -> FilesPlace:
    try:
        place = get_run_place(db, run_id)
        check_lease(db, place, run_id)
        return place
    except StorageError as error:
        if error.reason == "link":
            raise
        raise StorageError(
            f"{error} To delete only its rows: emtc delete {run_id} --leave-files",
            reason=error.reason,
            subject=error.subject,
        ) from error


def delete_run(db: Database, run_id: str) -> None:
    """Delete all rows of a run, from its last env step backwards, in several transactions.

    After each transaction the run is a shorter but valid run. Files are not deleted; see `remove_run`.

    Raises:
        RunNotFoundError: If there is no such run.
        RunStateError: If the run has a trainer.
    """
    while True:
        with db.transaction() as connection:
            row = lock_for_action(db, connection, run_id, "delete")
            remove_owner(connection, row)
            end = _find_episode_end(connection, run_id, row.env_steps - _DELETE_STEPS)
            _rewind(connection, run_id, end, reached=row.env_steps)
            if end == 0:
                connection.execute(delete(Run).where(Run.id == run_id))
                return
