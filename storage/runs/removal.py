"""What is taken from a run: what it recorded after a step when it goes back, or all of it, rows and folder, for good.

Going back is one transaction, and a run stays whole at its end. A deletion is counted first, then done.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Integer, delete, func, insert, select, update
from sqlalchemy.orm import InstrumentedAttribute

from emtc_core.errors import RunStateError, StorageError
from storage.engine import Database
from storage.files.places import Place, local_folder, place_of, run_folder, run_place
from storage.files.remote import Remote, RemoteFile
from storage.files.trainer_files import check_lease, with_reserve
from storage.frames import in_parts
from storage.models import (
    SUMMARY_STEPS,
    AskedEvaluation,
    Entry,
    EpisodeRow,
    EvalEpisode,
    Evaluation,
    GateStats,
    MetricRow,
    PolicyEvaluation,
    Resume,
    Run,
    SnapshotRow,
    Transition,
    TransitionSummary,
)
from storage.private_files import list_own_files, remove_folder, remove_own_files
from storage.runs import lifecycle
from storage.runs.claims import watch_elsewhere
from storage.runs.lifecycle import Event, check_token
from storage.runs.rows import locked_row, state_now, summarize_bucket, update_run_summary

_BY_STEP = (
    *(Transition, EvalEpisode, GateStats, MetricRow, Evaluation, AskedEvaluation, PolicyEvaluation),
    SnapshotRow,
)


def why_not_rewind(connection: Connection, run_id: str, env_step: int, *, reached: int) -> str | None:
    """Why a run cannot go back to a step, or None if it can: 0 and the end of each of its episodes."""
    if not 0 <= env_step <= reached:
        return f"Run {run_id} has {reached} env steps; it cannot go back to {env_step}."
    if last_episode_end(connection, run_id, env_step) != env_step:
        return f"Run {run_id} can go back to the end of an episode only; {env_step} is inside one."
    return None


def why_thinned(connection: Connection, run_id: str, *, reached: int) -> str | None:
    """Why a run that lost its first transition cannot go on, or None if it did not."""
    first = select(Transition.run_id).where(Transition.run_id == run_id, Transition.env_step == 1)
    if reached == 0 or connection.execute(first).first() is not None:
        return None
    return f"The transitions of run {run_id} were thinned away; what followed would have no beginning."


def last_episode_end(connection: Connection, run_id: str, env_step: int) -> int:
    """Find the last step, at most `env_step`, that ends an episode; 0 when there is none."""
    if env_step <= 0:
        return 0
    ends = select(func.max(EpisodeRow.first_env_step + EpisodeRow.length - 1)).where(
        EpisodeRow.run_id == run_id, EpisodeRow.first_env_step + EpisodeRow.length - 1 <= env_step
    )
    return connection.execute(ends).scalar_one() or 0


def rewind(connection: Connection, run_id: str, env_step: int, *, reached: int) -> int:
    """Remove what was recorded after a step.

    Returns:
        How many training episodes went.

    Raises:
        RunStateError: If the run cannot go back there.
    """
    if reason := why_not_rewind(connection, run_id, env_step, reached=reached):
        raise RunStateError(reason)
    later = (EpisodeRow.run_id == run_id, EpisodeRow.first_env_step > env_step)
    episodes = connection.execute(delete(EpisodeRow).where(*later)).rowcount
    for table in _BY_STEP:
        connection.execute(delete(table).where(table.run_id == run_id, table.env_step > env_step))
    first_bucket = env_step // SUMMARY_STEPS  # the first that holds a removed step
    connection.execute(
        delete(TransitionSummary).where(TransitionSummary.run_id == run_id, TransitionSummary.bucket >= first_bucket)
    )
    summarize_bucket(connection, run_id, first_bucket)
    last = select(Evaluation.win_rate, Evaluation.return_mean).where(Evaluation.run_id == run_id)
    kept = connection.execute(last.order_by(Evaluation.env_step.desc()).limit(1)).one_or_none()
    win_rate, return_mean = kept or (None, None)
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
    """Supersede everything recorded after `env_step`, in one transaction, and note that it happened.

    Args:
        db: An open database.
        run_id: The run.
        env_step: Where the trainer stands now: 0 or the last step of an episode.
        token: By which the caller owns the run.
        checkpoint: The file that was restored.
        passed_over: Why newer files were not.

    Raises:
        RunStateError: If the run has not come that far, an episode straddles the step, or somebody else has the run.
    """
    with db.transaction() as connection:
        row = locked_row(connection, run_id)
        check_token(row, token)
        episodes = rewind(connection, run_id, env_step, reached=row.env_steps)
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


def why_not_resume_at(db: Database, run_id: str, env_step: int) -> str | None:
    """Why the recorded rows do not fit a checkpoint at a step, or None if they do."""
    with db.read() as connection:
        reached = connection.execute(select(Run.env_steps).where(Run.id == run_id)).scalar_one()
        thinned = why_thinned(connection, run_id, reached=reached)
        return thinned or why_not_rewind(connection, run_id, env_step, reached=reached)


@dataclass(frozen=True)
class RunContents:
    """What a run has: rows in the database, and files in its folder."""

    transitions: int
    episodes: int
    evaluations: int
    snapshots: int
    entries: int
    """Notebook entries that cite it; they stay."""
    children: int
    """Runs that were started again from it; they stay."""
    folder: str
    files: int
    size_bytes: int

    def __str__(self) -> str:
        counted = (
            f"{self.transitions:,} transitions in {self.episodes:,} episodes, {self.evaluations:,} evaluations, "
            f"{self.snapshots:,} snapshots"
        )
        size = f"{self.size_bytes / 1e6:,.1f} MB" if self.size_bytes else "nothing"
        return f"{counted}, and the folder {self.folder} with {self.files:,} files ({size}: log and checkpoints)"


@dataclass(frozen=True)
class Total:
    """What several runs have together."""

    runs: int
    transitions: int
    episodes: int
    evaluations: int
    snapshots: int
    files: int
    size_bytes: int
    why_not: tuple[str, ...] = ()
    """Why the files of some cannot be counted, which will not be deleted therefore."""

    def __str__(self) -> str:
        counted = (
            f"{self.transitions:,} transitions in {self.episodes:,} episodes, {self.evaluations:,} evaluations, "
            f"{self.snapshots:,} snapshots, and {self.files:,} files of logs and checkpoints "
            f"({self.size_bytes / 1e6:,.1f} MB)"
        )
        return f"{counted}. Some will stay. {' '.join(self.why_not)}" if self.why_not else counted


def total_run_contents(db: Database, run_ids: Sequence[str]) -> Total:
    """Count what removing all of these runs would remove; their transitions are as many as their env steps."""
    runs = transitions = episodes = evaluations = snapshots = 0
    with db.read() as connection:
        for part in in_parts(run_ids):

            def count(key: InstrumentedAttribute[Any], what: Any = None, part: Sequence[str] = part) -> int:
                asked = select(func.count() if what is None else func.coalesce(what, 0)).where(key.in_(part))
                return int(connection.execute(asked).scalar_one())

            runs += count(Run.id)
            transitions += count(Run.id, func.sum(Run.env_steps, type_=Integer()))
            episodes += count(EpisodeRow.run_id)
            evaluations += count(Evaluation.run_id)
            snapshots += count(SnapshotRow.run_id)
    sizes, why_not = _all_file_sizes(db, run_ids)
    return Total(runs, transitions, episodes, evaluations, snapshots, len(sizes), sum(sizes), why_not)


def _all_file_sizes(db: Database, run_ids: Sequence[str]) -> tuple[list[int], tuple[str, ...]]:
    """The sizes of the files of several runs, asking a service once, and why some cannot be measured."""
    sizes: list[int] = []
    reasons: dict[str, None] = {}
    listed: dict[Remote, dict[str, list[RemoteFile]] | StorageError] = {}

    def list_at(remote: Remote) -> dict[str, list[RemoteFile]]:
        if remote not in listed:
            try:
                listed[remote] = remote.list_runs()
            except StorageError as error:
                listed[remote] = error
        if isinstance(answer := listed[remote], StorageError):
            raise answer
        return answer

    for run_id in run_ids:
        try:
            place = run_place(db, run_id)
            there = list_at(place.remote).get(run_id, []) if place.remote else None
            sizes += _file_sizes(db, run_id, place, there)
        except StorageError as error:
            reasons[str(error)] = None
    return sizes, tuple(reasons)


def _file_sizes(db: Database, run_id: str, place: Place, there: Sequence[RemoteFile] | None = None) -> list[int]:
    """Measure what a run has beside the database and in its own place; `there` is what is known of a service."""
    beside = local_folder(db, run_id).rglob("*")
    sizes = [path.lstat().st_size for path in beside if path.is_symlink() or path.is_file()]
    if remote := place.files_of(run_id):
        sizes += [found.size for found in (remote.list_files() if there is None else there)]
    elif place.recorded is not None:
        sizes += [path.lstat().st_size for path in list_own_files(run_folder(db, run_id))]
    return sizes


def count_run_contents(db: Database, run_id: str, *, leave_files: bool = False) -> RunContents:
    """Count what `remove_run` would remove.

    Raises:
        StorageError: If the run's files lie where this machine may not look, or cannot be reached.
    """
    place = place_of(db, None) if leave_files else _place_to_clear(db, run_id)
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
    """Delete a run for good: its rows, then its log and checkpoints, wherever the run says they lie.

    Args:
        db: An open database.
        run_id: The run.
        leave_files: Delete the rows, and what lies beside the database; leave what lies elsewhere.

    Raises:
        RunNotFoundError: If there is no such run.
        RunStateError: If somebody works on it; nothing is removed then.
        StorageError: If its folder leads elsewhere, or its files lie where this machine may not look or cannot reach:
            nothing is removed then.
    """
    watch_elsewhere(db, run_id)
    beside = local_folder(db, run_id)  # refused before a row is gone, if it leads elsewhere
    place = None if leave_files else _place_to_clear(db, run_id)
    remote = place.files_of(run_id) if place else None
    own = run_folder(db, run_id) if place and place.recorded and remote is None else None
    if remote is not None:
        remote.list_files()  # asked while nothing is gone yet
    with_reserve(db, lambda: delete_run(db, run_id))
    remove_folder(beside)
    if own is not None:
        remove_own_files(own)
    if remote is not None:
        remote.remove_all()


def _place_to_clear(db: Database, run_id: str) -> Place:
    try:
        place = run_place(db, run_id)
        check_lease(db, place, run_id)
        return place
    except StorageError as error:
        raise StorageError(
            f"{error} To delete its rows alone: emtc delete {run_id} --leave-files",
            reason=error.reason,
            subject=error.subject,
        ) from error


_DELETE_STEPS = 200_000  # transitions removed per transaction, so that a delete never blocks a trainer


def delete_run(db: Database, run_id: str) -> None:
    """Remove a run and all it recorded, from its end backwards in bounded transactions.

    Between two of them the run is a shorter but valid one. Its folder of logs and checkpoints is not touched here;
    see `removal`.

    Raises:
        RunNotFoundError: If there is no such run.
        RunStateError: If a live process works on it.
    """
    while True:
        with db.transaction() as connection:
            row = locked_row(connection, run_id)
            lifecycle.check(run_id, state_now(row), Event.DELETE)
            keep = last_episode_end(connection, run_id, row.env_steps - _DELETE_STEPS)
            rewind(connection, run_id, keep, reached=row.env_steps)
            if keep == 0:
                connection.execute(delete(Run).where(Run.id == run_id))
                return
