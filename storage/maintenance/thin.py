"""Thin a run: remove trajectories, transitions, checkpoints or snapshots, and keep its curves.

The data are counted first. They are removed in transactions of limited size, and never while the run is active.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sqlalchemy import Connection, delete, func, select, update

from storage.engine import Database
from storage.files import is_checkpoint, run_folder
from storage.maintenance.sizes import TRANSITION_BYTES, blob_size, snapshot_size
from storage.models import EpisodeRow, ProjectionRow, SnapshotRow, Transition
from storage.queries.episodes import EMPTY_TRAJECTORY
from storage.runs.claims import remove_owner
from storage.runs.rows import find_run, lock_for_action
from storage.runs.status import check_allowed

_BATCH_STEPS: Final = 100_000
_BATCH_EPISODES: Final = 500


@dataclass(frozen=True)
class Thinning:
    """What is removed from a run."""

    trajectories: bool = False
    transitions: bool = False
    checkpoints: bool = False
    snapshots_every: int = 1
    """Keep the last snapshot and every n-th before it; 1 keeps all."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing is removed."""
        return self == Thinning()


@dataclass(frozen=True)
class RemovedData:
    """Numbers of removed objects, and their estimated size."""

    trajectories: int = 0
    transitions: int = 0
    snapshots: int = 0
    checkpoints: int = 0
    size_bytes: int = 0

    def __add__(self, other: "RemovedData") -> "RemovedData":
        return RemovedData(*(a + b for a, b in zip(vars(self).values(), vars(other).values(), strict=True)))

    def __str__(self) -> str:
        counts = (
            (self.trajectories, "trajectory", "trajectories"),
            (self.transitions, "transition", "transitions"),
            (self.snapshots, "snapshot", "snapshots"),
            (self.checkpoints, "checkpoint", "checkpoints"),
        )
        parts = [f"{n:,} {singular if n == 1 else plural}" for n, singular, plural in counts if n]
        size_mb = self.size_bytes / 1e6
        size = f"{size_mb:,.1f} MB" if size_mb >= 1 else f"{self.size_bytes / 1e3:,.0f} kB"
        return f"{', '.join(parts)} (about {size})" if parts else "nothing"


def count_thinning(db: Database, run_id: str, what: Thinning) -> RemovedData:
    """Count what `thin_run` would remove from a run.

    Args:
        db: The database.
        run_id: The run.
        what: What is removed.

    Raises:
        RunNotFoundError: If there is no such run.
        RunStateError: If the run is active.
    """
    check_allowed(run_id, find_run(db, run_id).live_status, "thin")
    with db.read() as connection:
        total = RemovedData()
        if what.trajectories:
            size = blob_size(connection, EpisodeRow.trajectory)
            sums = select(func.count(), func.sum(size)).where(EpisodeRow.run_id == run_id, size > len(EMPTY_TRAJECTORY))
            n, n_bytes = connection.execute(sums).one()
            total += RemovedData(trajectories=n, size_bytes=int(n_bytes or 0))
        if what.transitions:
            n = connection.execute(select(func.count()).where(Transition.run_id == run_id)).scalar_one()
            total += RemovedData(transitions=n, size_bytes=n * TRANSITION_BYTES)
        for snapshot_id in _list_thinned_snapshots(connection, run_id, what.snapshots_every):
            projection_size = blob_size(connection, ProjectionRow.coordinates)
            sizes = (
                select(snapshot_size(connection)).where(SnapshotRow.id == snapshot_id),
                select(func.sum(projection_size)).where(ProjectionRow.snapshot_id == snapshot_id),
            )
            n_bytes = sum(int(connection.execute(size).scalar() or 0) for size in sizes)
            total += RemovedData(snapshots=1, size_bytes=n_bytes)
    if what.checkpoints:
        sizes = [path.stat().st_size for path in _list_checkpoints(db, run_id)]
        total += RemovedData(checkpoints=len(sizes), size_bytes=sum(sizes))
    return total


def thin_run(db: Database, run_id: str, what: Thinning) -> RemovedData:
    """Remove data from a run. After an interruption, a second call with the same arguments completes it.

    The file of a SQLite database keeps its size: new rows reuse the space, or a vacuum returns it to the disk.

    Args:
        db: The database.
        run_id: The run.
        what: What is removed.

    Returns:
        What was removed.

    Raises:
        RunNotFoundError: If there is no such run.
        RunStateError: If the run is active, or becomes active meanwhile.
    """
    removed = count_thinning(db, run_id, what)
    if what.checkpoints:  # first, because the transactions below need free space even on a full disk
        with db.transaction() as connection:  # locks the run while its files are deleted
            row = lock_for_action(db, connection, run_id, "thin")
            for path in _list_checkpoints(db, run_id):
                path.unlink(missing_ok=True)
            remove_owner(connection, row)
    _delete_rows(db, run_id, what)
    return removed


def _delete_rows(db: Database, run_id: str, what: Thinning) -> None:
    """Delete rows and trajectories in transactions of limited size."""
    with db.read() as connection:
        snapshot_ids = _list_thinned_snapshots(connection, run_id, what.snapshots_every)
        last_episode = select(func.max(EpisodeRow.episode)).where(EpisodeRow.run_id == run_id)
        episode_stop = (connection.execute(last_episode).scalar() or 0) + 1 if what.trajectories else 0
        extent = select(func.min(Transition.env_step), func.max(Transition.env_step)).where(Transition.run_id == run_id)
        first_step, last_step = connection.execute(extent).one() if what.transitions else (None, None)
    for snapshot_id in snapshot_ids:
        with db.transaction() as connection:
            _lock_to_thin(db, connection, run_id)
            connection.execute(delete(SnapshotRow).where(SnapshotRow.id == snapshot_id))  # cascades to projections
    for first in range(0, episode_stop, _BATCH_EPISODES):
        with db.transaction() as connection:
            _lock_to_thin(db, connection, run_id)
            is_in_batch = EpisodeRow.episode.between(first, first + _BATCH_EPISODES - 1)
            is_whole = blob_size(connection, EpisodeRow.trajectory) > len(EMPTY_TRAJECTORY)
            thinned = update(EpisodeRow).where(EpisodeRow.run_id == run_id, is_in_batch, is_whole)
            connection.execute(thinned.values(trajectory=EMPTY_TRAJECTORY))
    # in ascending order: queries read the sums instead of the transitions as soon as the first transition is missing
    for first in range(first_step or 0, (last_step or -1) + 1, _BATCH_STEPS):
        with db.transaction() as connection:
            _lock_to_thin(db, connection, run_id)
            is_in_batch = Transition.env_step.between(first, first + _BATCH_STEPS - 1)
            connection.execute(delete(Transition).where(Transition.run_id == run_id, is_in_batch))


def _list_checkpoints(db: Database, run_id: str) -> list[Path]:
    """List the checkpoints and best policies in a run's folder."""
    return [path for path in run_folder(db, run_id).glob("*") if is_checkpoint(path)]


def _lock_to_thin(db: Database, connection: Connection, run_id: str) -> None:
    """Lock the run until the end of the transaction, check that it can be thinned, and remove its owner."""
    remove_owner(connection, lock_for_action(db, connection, run_id, "thin"))


def _list_thinned_snapshots(connection: Connection, run_id: str, every: int) -> list[int]:
    """List the snapshots to remove: all except the last one and every n-th before it."""
    statement = select(SnapshotRow.id).where(SnapshotRow.run_id == run_id).order_by(SnapshotRow.env_step.desc())
    ids = connection.execute(statement).scalars()
    return [snapshot_id for index, snapshot_id in enumerate(ids) if index % max(1, every)]
