"""Delete the data that a run recorded after an env step (a rewind), or a whole run with its files.

A rewind is one transaction. Before a deletion, its extent can be counted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Integer, delete, func, insert, select, update
from sqlalchemy.orm import InstrumentedAttribute

from emtc_core.errors import RunStateError
from storage.engine import Database
from storage.files import list_file_sizes, remove_run_folder, run_folder
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
        return f"{_describe_rows(self)}, and {folder if self.files else f'no files in {self.folder}'}"


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

    def __str__(self) -> str:
        size = f"{self.size_bytes / 1e6:,.1f} MB"
        files = f"{_count(self.files, 'file')} of logs and checkpoints ({size})" if self.files else "no files"
        return f"{_describe_rows(self)}, and {files}"


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
    """Count the rows and files that deleting these runs would delete. One transition per env step is counted.

    Raises:
        StorageError: If EMTC_FILES cannot be used.
    """
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
    sizes = [size for run_id in run_ids for size in list_file_sizes(run_folder(db, run_id))]
    return TotalContents(runs, transitions, episodes, evaluations, snapshots, len(sizes), sum(sizes))


def count_run_contents(db: Database, run_id: str) -> RunContents:
    """Count the rows and files that `remove_run` would delete.

    Raises:
        StorageError: If EMTC_FILES cannot be used.
    """
    folder = run_folder(db, run_id)
    sizes = list_file_sizes(folder)
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
            folder=str(folder),
            files=len(sizes),
            size_bytes=sum(sizes),
        )


def remove_run(db: Database, run_id: str) -> None:
    """Delete a run: its folder with log and checkpoints, and all its rows.

    The rows are deleted from the last env step backwards, in several transactions. After each of them the run is a
    shorter but valid run. The folder is deleted first, because the transactions need free space even on a full disk.

    Raises:
        RunNotFoundError: If there is no such run.
        RunStateError: If the run has a trainer. Nothing is deleted then.
        StorageError: If EMTC_FILES cannot be used. Nothing is deleted then.
    """
    while True:
        with db.transaction() as connection:
            row = lock_for_action(db, connection, run_id, "delete")
            remove_owner(connection, row)
            remove_run_folder(db, run_id)
            end = _find_episode_end(connection, run_id, row.env_steps - _DELETE_STEPS)
            _rewind(connection, run_id, end, reached=row.env_steps)
            if end == 0:
                connection.execute(delete(Run).where(Run.id == run_id))
                return
