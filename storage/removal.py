"""What goes with a run when it is deleted for good: counted first, then removed, rows and folder."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import InstrumentedAttribute

from storage.engine import Database, run_folder
from storage.files import remove_folder
from storage.models import Entry, EpisodeRow, Evaluation, Run, SnapshotRow, Transition
from storage.runs import delete_run

_AT_ONCE = 500  # databases limit the parameters of one statement


@dataclass(frozen=True)
class Belongings:
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

    def __str__(self) -> str:
        return (
            f"{self.transitions:,} transitions in {self.episodes:,} episodes, {self.evaluations:,} evaluations, "
            f"{self.snapshots:,} snapshots, and {self.files:,} files of logs and checkpoints "
            f"({self.size_bytes / 1e6:,.1f} MB)"
        )


def total_belongings(db: Database, run_ids: Sequence[str]) -> Total:
    """Count what removing all of these runs would remove; their transitions are as many as their env steps."""
    runs = transitions = episodes = evaluations = snapshots = 0
    with db.read() as connection:
        for first in range(0, len(run_ids), _AT_ONCE):
            part = run_ids[first : first + _AT_ONCE]

            def count(key: InstrumentedAttribute[Any], what: Any = None, part: Sequence[str] = part) -> int:
                asked = select(func.count() if what is None else func.coalesce(what, 0)).where(key.in_(part))
                return int(connection.execute(asked).scalar_one())

            runs += count(Run.id)
            transitions += count(Run.id, func.sum(Run.env_steps))
            episodes += count(EpisodeRow.run_id)
            evaluations += count(Evaluation.run_id)
            snapshots += count(SnapshotRow.run_id)
    sizes = [size for run_id in run_ids for size in _file_sizes(run_folder(db, run_id))]
    return Total(runs, transitions, episodes, evaluations, snapshots, len(sizes), sum(sizes))


def _file_sizes(folder: Path) -> list[int]:
    return [path.lstat().st_size for path in folder.rglob("*") if path.is_symlink() or path.is_file()]


def list_belongings(db: Database, run_id: str) -> Belongings:
    """Count what `remove_run` would remove."""
    folder = run_folder(db, run_id)
    sizes = _file_sizes(folder)
    with db.read() as connection:

        def count(key: InstrumentedAttribute[Any]) -> int:
            return connection.execute(select(func.count()).where(key == run_id)).scalar_one()

        return Belongings(
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
    """Delete a run for good: its rows, then its folder of log and checkpoints.

    Raises:
        RunNotFoundError: If there is no such run.
        RunStateError: If somebody works on it; nothing is removed then.
        StorageError: If its folder leads elsewhere; nothing is removed then.
    """
    folder = run_folder(db, run_id)  # refused before a row is gone, if it leads elsewhere
    delete_run(db, run_id)
    remove_folder(folder)
