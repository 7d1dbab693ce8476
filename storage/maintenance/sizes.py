"""How much space does each run need, by kind, and how large are the database and the free space on its disk?

Blobs are measured in SQL without reading them; training trajectories are measured in a sample of episodes. Other rows
are counted and multiplied by their usual size on disk with indexes. So the sizes per run are estimates. The size of the
whole database is exact.
"""

import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final

from sqlalchemy import ColumnElement, Connection, LargeBinary, exists, func, select
from sqlalchemy.orm import InstrumentedAttribute

from emtc_core.errors import StorageError
from storage.address import get_log_path
from storage.engine import Database, files_root
from storage.files import get_runs_root, measure_folder
from storage.models import (
    EpisodeRow,
    EvalEpisode,
    Evaluation,
    GateStats,
    MetricRow,
    PolicyEvaluation,
    ProjectionRow,
    RequestedEvaluationRow,
    Run,
    SnapshotRow,
    Transition,
    TransitionSummary,
)

TRANSITION_BYTES: Final = 70
_EPISODE_BYTES: Final = 110
"""Size of a row of `episodes` without its trajectory."""
_ROW_BYTES: Final = {
    MetricRow: 98,
    GateStats: 130,
    TransitionSummary: 110,
    **dict.fromkeys((Evaluation, RequestedEvaluationRow, PolicyEvaluation), 130),
}
_SAMPLED_EPISODES: Final = 200
"""Number of episodes per run whose trajectories are measured."""


@dataclass(frozen=True)
class RunSize:
    """Space that one run needs, by kind [bytes]."""

    run_id: str
    name: str
    status: str
    env_steps: int
    transitions: int
    trajectories: int
    curves: int
    playbacks: int
    snapshots: int
    checkpoints: int
    other_files: int

    @property
    def total(self) -> int:
        """Sum of all kinds."""
        return sum(getattr(self, kind) for kind in KINDS)


KINDS: tuple[str, ...] = tuple(field.name for field in fields(RunSize))[4:]
"""The fields of `RunSize` that are sizes."""


@dataclass(frozen=True)
class Sizes:
    """Sizes of a database, its runs and their files [bytes]."""

    url: str
    """URL of the database without its password."""
    database: int
    """Size of the file with its write-ahead log, or the size that the server reports."""
    reusable: int | None
    """Free pages inside the file, which a vacuum returns to the disk; None on a server, which does not report them."""
    disk_free: int | None
    """Free space on the disk of the database file; None on a server."""
    runs: tuple[RunSize, ...]
    """Largest run first."""
    left_behind: int
    """Size of folders next to a SQLite file whose runs no longer exist."""
    unmeasured: str = ""
    """Why the files of the runs are not counted; empty if they are counted."""


def measure_sizes(db: Database) -> Sizes:
    """Measure a database and the files of its runs."""
    unmeasured, folder_sizes = "", dict[str, tuple[int, int]]()
    try:
        root = get_runs_root(db)
        folder_sizes = {folder.name: measure_folder(folder) for folder in root.glob("*/")}
    except StorageError as error:  # EMTC_FILES cannot be used
        root, unmeasured = None, f"The files of the runs are not counted. {error}"
    with db.read() as connection:
        runs = _measure_runs(connection, folder_sizes)
        database, reusable = file_sizes(connection, db)
    run_ids = {run.run_id for run in runs}
    is_only_ours = db.path is not None and root == files_root(db)  # other folders have runs of several databases
    left_behind = sum(
        checkpoints + others
        for name, (checkpoints, others) in folder_sizes.items()
        if is_only_ours and name not in run_ids and not name.startswith("sweep-")
    )
    return Sizes(
        url=db.safe_url,
        database=database,
        reusable=reusable,
        disk_free=shutil.disk_usage(db.path.parent).free if db.path else None,
        runs=tuple(sorted(runs, key=lambda run: (-run.total, run.run_id))),
        left_behind=left_behind,
        unmeasured=unmeasured,
    )


def file_sizes(connection: Connection, db: Database) -> tuple[int, int | None]:
    """Measure a database.

    Returns:
        The size of the database with its write-ahead log, and the size of its free pages (None on a server) [bytes].
    """
    if db.path is None:
        return connection.exec_driver_sql("SELECT pg_database_size(current_database())").scalar_one(), None
    pages, free_pages, page_bytes = (
        connection.exec_driver_sql(f"PRAGMA {name}").scalar_one()
        for name in ("page_count", "freelist_count", "page_size")
    )
    log = get_log_path(db.path)
    return pages * page_bytes + (log.stat().st_size if log.is_file() else 0), free_pages * page_bytes


def snapshot_size(connection: Connection) -> ColumnElement[int]:
    """Return an SQL expression for the size of all blobs of a snapshot [bytes]."""
    columns = SnapshotRow.__table__.columns
    sizes = [blob_size(connection, column) for column in columns if isinstance(column.type, LargeBinary)]
    return sum(sizes[1:], sizes[0])


def blob_size(connection: Connection, blob: ColumnElement[bytes] | InstrumentedAttribute[bytes]) -> ColumnElement[int]:
    """Return an SQL expression for the size of a blob [bytes]. It does not read the blob."""
    return (func.length if connection.dialect.name == "sqlite" else func.octet_length)(blob)


def _measure_runs(connection: Connection, folder_sizes: Mapping[str, tuple[int, int]]) -> list[RunSize]:
    """Measure every run.

    Args:
        connection: Connection for reading.
        folder_sizes: Name of a folder → size of its checkpoints and other files [bytes].
    """
    curves = _measure_curves(connection)
    trajectories = _estimate_trajectories(connection)
    playback_sizes = select(EvalEpisode.run_id, func.sum(blob_size(connection, EvalEpisode.trajectory)))
    playbacks = {
        run_id: int(size or 0) for run_id, size in connection.execute(playback_sizes.group_by(EvalEpisode.run_id))
    }
    snapshots = _measure_snapshots(connection)
    has_steps = exists().where(Transition.run_id == Run.id, Transition.env_step == 1)
    rows = connection.execute(select(Run.id, Run.name, Run.status, Run.env_steps, has_steps.label("has_steps")))
    runs: list[RunSize] = []
    for row in rows:
        checkpoints, other_files = folder_sizes.get(row.id, (0, 0))
        runs.append(
            RunSize(
                run_id=row.id,
                name=row.name,
                status=row.status,
                env_steps=row.env_steps,
                transitions=row.env_steps * TRANSITION_BYTES if row.has_steps else 0,
                trajectories=trajectories.get(row.id, 0),
                curves=curves.get(row.id, 0),
                playbacks=playbacks.get(row.id, 0),
                snapshots=snapshots.get(row.id, 0),
                checkpoints=checkpoints,
                other_files=other_files,
            )
        )
    return runs


def _measure_curves(connection: Connection) -> dict[str, int]:
    """Count the rows of curves by run and multiply them by their usual size."""
    sizes: Counter[str] = Counter()
    for table, row_bytes in _ROW_BYTES.items():
        counts = select(table.run_id, func.count()).group_by(table.run_id)
        for run_id, n in connection.execute(counts):
            sizes[run_id] += n * row_bytes
    return sizes


def _estimate_trajectories(connection: Connection) -> dict[str, int]:
    """Estimate the size of a run's episodes from a sample.

    The number of episodes and the choice of the sample are read from the index `ix_episodes_outline` alone.
    """
    counts = select(EpisodeRow.run_id, func.count()).group_by(EpisodeRow.run_id)
    sizes: dict[str, int] = {}
    for run_id, n in connection.execute(counts).all():
        stride = max(1, n // _SAMPLED_EPISODES)
        sample = (EpisodeRow.run_id == run_id, EpisodeRow.episode % stride == 0)
        mean = select(func.avg(blob_size(connection, EpisodeRow.trajectory))).where(*sample)
        sizes[run_id] = round(n * (float(connection.execute(mean).scalar() or 0) + _EPISODE_BYTES))
    return sizes


def _measure_snapshots(connection: Connection) -> dict[str, int]:
    """Measure the snapshots of each run with their projections."""
    sizes: Counter[str] = Counter()
    projection_size = blob_size(connection, ProjectionRow.coordinates)
    of_snapshot = ProjectionRow.snapshot_id == SnapshotRow.id
    for statement in (
        select(SnapshotRow.run_id, func.sum(snapshot_size(connection))).group_by(SnapshotRow.run_id),
        select(SnapshotRow.run_id, func.sum(projection_size))
        .join(ProjectionRow, of_snapshot)
        .group_by(SnapshotRow.run_id),
    ):
        for run_id, size in connection.execute(statement):
            sizes[run_id] += int(size or 0)
    return sizes
