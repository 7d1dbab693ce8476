"""How much room does what take? Per run and kind, beside what the database and its disk say of themselves.

Blobs are measured without reading them, those of many episodes by a sample. A row of numbers is counted, at what a
row takes on the disk with its indexes. So kinds are close, and the size of the whole file is exact.
"""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from sqlalchemy import ColumnElement, Connection, LargeBinary, exists, func, select
from sqlalchemy.orm import InstrumentedAttribute

from emtc_core.errors import StorageError
from storage.column_types import unguarded
from storage.engine import Database, files_root
from storage.files.places import Place, place_of
from storage.files.remote import RemoteFile
from storage.models import (
    AskedEvaluation,
    EpisodeRow,
    EvalEpisode,
    Evaluation,
    GateStats,
    MetricRow,
    PolicyEvaluation,
    ProjectionRow,
    Run,
    SnapshotRow,
    Transition,
    TransitionSummary,
)
from storage.private_files import find_folder, is_checkpoint, measure_folder

TRANSITION_BYTES = 70
_EPISODE_BYTES = 110  # beside its trajectory
_ROW_BYTES = {
    MetricRow: 98,
    GateStats: 130,
    TransitionSummary: 110,
    **dict.fromkeys((Evaluation, AskedEvaluation, PolicyEvaluation), 130),
}
_BEYOND_ALL = 1 << 50  # a number of steps that somebody made up is not multiplied out of its column
_MOST_REASONS = 3
_SAMPLE = 200  # episodes of a run whose trajectories are measured


@dataclass(frozen=True)
class RunSize:
    """What one run takes [bytes]."""

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
        """All of it."""
        return sum(getattr(self, kind) for kind in KINDS)


KINDS: tuple[str, ...] = tuple(field.name for field in fields(RunSize))[4:]
"""The kinds of what a run takes, as `RunSize` names them."""


@dataclass(frozen=True)
class Sizes:
    """What a database takes [bytes]."""

    shown: str
    database: int
    """The file with its log, or the server's own figure."""
    reusable: int
    """Empty pages inside, which a vacuum gives back; 0 where a server does not tell."""
    disk_free: int | None
    """On the disk of the file and of its runs' folders; None for a server, whose disk is elsewhere."""
    runs: tuple[RunSize, ...]
    left_behind: int
    """In folders of runs that are no more."""
    unmeasured: str = ""
    """Which files lie where this machine may not look or cannot reach, so that they are in no figure."""


def measure(db: Database) -> Sizes:
    """Measure a database and everything that lies beside it or in its runs' own place, the biggest run first."""
    folders = {place.name: measure_folder(place) for place in _folders(files_root(db))}
    with db.read() as connection:
        placed, unmeasured = _placed(db, connection)
        runs = _runs(connection, {name: _both(folders.get(name), placed.get(name)) for name in {*folders, *placed}})
        database, reusable = file_sizes(connection, db)
    known = {run.run_id for run in runs}
    left = [sum(taken) for name, taken in folders.items() if name not in known and not name.startswith("sweep-")]
    free = shutil.disk_usage(db.path.parent).free if db.path else None
    ordered = tuple(sorted(runs, key=lambda run: (-run.total, run.run_id)))
    return Sizes(db.shown, database, reusable, free, ordered, sum(left), unmeasured)


def _placed(db: Database, connection: Connection) -> tuple[dict[str, tuple[int, int]], str]:
    """The sizes of runs' files that do not lie beside the database, and why some cannot be measured."""
    found: dict[str, tuple[int, int]] = {}
    reasons: list[str] = []
    rows = connection.execute(select(Run.files, Run.id).where(Run.files.is_not(None)).order_by(Run.files, Run.id)).all()
    for recorded in dict.fromkeys(row.files for row in rows):
        run_ids = [row.id for row in rows if row.files == recorded]
        try:
            place = place_of(db, recorded)
            found |= _measure_place(place, run_ids)
        except StorageError as error:
            reasons.append(
                f"The files of {len(run_ids):,} run{'s' if len(run_ids) != 1 else ''} are not counted. {error}"
            )
    return found, " ".join(reasons[:_MOST_REASONS])


def _measure_place(place: Place, run_ids: list[str]) -> dict[str, tuple[int, int]]:
    if place.remote is not None:
        there = place.remote.list_runs()
        return {run_id: _add_up(there.get(run_id, [])) for run_id in run_ids}
    return {run_id: measure_folder(find_folder(place.root, run_id)) for run_id in run_ids}


def _add_up(files: Sequence[RemoteFile]) -> tuple[int, int]:
    checkpoints = sum(found.size for found in files if is_checkpoint(found.name))
    return checkpoints, sum(found.size for found in files) - checkpoints


def _both(beside: tuple[int, int] | None, placed: tuple[int, int] | None) -> tuple[int, int]:
    a, b = beside or (0, 0), placed or (0, 0)
    return a[0] + b[0], a[1] + b[1]


def _folders(root: Path) -> list[Path]:
    if root.is_symlink() or not root.is_dir():
        return []
    return [place for place in root.iterdir() if place.is_dir() and not place.is_symlink()]


def file_sizes(connection: Connection, db: Database) -> tuple[int, int]:
    """Measure a database with its log, and the empty pages inside it [bytes]; a server tells only the first."""
    if db.path is None:
        return connection.exec_driver_sql("SELECT pg_database_size(current_database())").scalar_one(), 0
    pages, free, page_bytes = (
        connection.exec_driver_sql(f"PRAGMA {name}").scalar_one()
        for name in ("page_count", "freelist_count", "page_size")
    )
    log = db.path.with_name(f"{db.path.name}-wal")
    return pages * page_bytes + (log.stat().st_size if log.is_file() else 0), free * page_bytes


def _runs(connection: Connection, folders: Mapping[str, tuple[int, int]]) -> list[RunSize]:
    curves = _count_curves(connection)
    trajectories = _sample_trajectories(connection)
    playbacks = _sum_blobs(connection, EvalEpisode.run_id, EvalEpisode.trajectory)
    snapshots = _sum_snapshots(connection)
    has_steps = exists().where(Transition.run_id == Run.id, Transition.env_step == 1)
    rows = connection.execute(select(Run.id, Run.name, Run.status, Run.env_steps, has_steps.label("has_steps")))
    return [
        RunSize(
            run_id=row.id,
            name=row.name,
            status=row.status,
            env_steps=row.env_steps,
            transitions=min(max(row.env_steps, 0) * TRANSITION_BYTES, _BEYOND_ALL) if row.has_steps else 0,
            trajectories=trajectories.get(row.id, 0),
            curves=curves.get(row.id, 0),
            playbacks=playbacks.get(row.id, 0),
            snapshots=snapshots.get(row.id, 0),
            checkpoints=folders.get(row.id, (0, 0))[0],
            other_files=folders.get(row.id, (0, 0))[1],
        )
        for row in rows
    ]


def _count_curves(connection: Connection) -> dict[str, int]:
    found: dict[str, int] = {}
    for table, row_bytes in _ROW_BYTES.items():
        counts = select(table.run_id, func.count()).group_by(table.run_id)
        for run_id, n in connection.execute(counts):
            found[run_id] = found.get(run_id, 0) + n * row_bytes
    return found


def _sample_trajectories(connection: Connection) -> dict[str, int]:
    """Measure some trajectories of each run; which ones is answered from the index `ix_episodes_outline`."""
    counts = select(EpisodeRow.run_id, func.count()).group_by(EpisodeRow.run_id)
    found = {}
    for run_id, n in connection.execute(counts).all():
        every = max(1, n // _SAMPLE)
        chosen = (EpisodeRow.run_id == run_id, EpisodeRow.episode % every == 0)
        mean = connection.execute(select(func.avg(octets(connection, EpisodeRow.trajectory))).where(*chosen)).scalar()
        found[run_id] = round(n * (float(mean or 0) + _EPISODE_BYTES))
    return found


def _sum_blobs(
    connection: Connection, key: InstrumentedAttribute[str], blob: InstrumentedAttribute[bytes]
) -> dict[str, int]:
    sums = select(key, func.sum(octets(connection, blob))).group_by(key)
    return {run_id: int(total or 0) for run_id, total in connection.execute(sums)}


def _sum_snapshots(connection: Connection) -> dict[str, int]:
    found: dict[str, int] = {}
    projected = octets(connection, ProjectionRow.coordinates)
    of_run = ProjectionRow.snapshot_id == SnapshotRow.id
    for statement in (
        select(SnapshotRow.run_id, func.sum(snapshot_octets(connection))).group_by(SnapshotRow.run_id),
        select(SnapshotRow.run_id, func.sum(projected)).join(ProjectionRow, of_run).group_by(SnapshotRow.run_id),
    ):
        for run_id, total in connection.execute(statement):
            found[run_id] = found.get(run_id, 0) + int(total or 0)
    return found


def snapshot_octets(connection: Connection) -> ColumnElement[int]:
    """The bytes of all columns of a snapshot, for a statement."""
    columns = SnapshotRow.__table__.columns
    first, *others = [octets(connection, each) for each in columns if isinstance(unguarded(each.type), LargeBinary)]
    return sum(others, first)


def octets(connection: Connection, blob: ColumnElement[bytes] | InstrumentedAttribute[bytes]) -> ColumnElement[int]:
    """The size of a blob, for a statement; the blob itself is not read."""
    return (func.length if connection.dialect.name == "sqlite" else func.octet_length)(blob)
