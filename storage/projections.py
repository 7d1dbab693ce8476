"""Store projections of snapshots, and the background jobs that compute them.

A projection has 2 coordinates per node for a map, or all embedding dimensions of a newly fitted embedder.
"""

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

import numpy as np
import psutil
from numpy.typing import NDArray
from sqlalchemy import insert, select, update

from emtc_core.errors import StorageError
from storage.blobs import pack
from storage.engine import Database
from storage.models import Job, ProjectionRow, SnapshotRow
from storage.queries.projections import EMBEDDING_PREFIX

JobStatus = Literal["queued", "running", "finished", "failed", "cancelled"]


@dataclass(frozen=True)
class JobRow:
    """A background job that computes a projection. The status is `lost` if its process has ended unexpectedly."""

    id: int
    snapshot_id: int
    method: str
    params: dict[str, Any]
    status: Literal["queued", "running", "finished", "failed", "cancelled", "lost"]
    progress: float  # in [0, 1]
    pid: int | None
    error: str | None
    created_at: datetime


def save_projection(
    db: Database,
    snapshot_id: int,
    *,
    method: str,
    params: Mapping[str, Any],
    coordinates: NDArray[np.floating[Any]],
    seconds: float,
) -> int:
    """Store the coordinates of a snapshot's nodes, in the order of the snapshot.

    Args:
        db: An open database.
        snapshot_id: The snapshot.
        method: `tsne`, `umap` or `pca`; or `embed-` and the type of a newly fitted embedder.
        params: All parameters that influence the result: seed, versions, settings. `find_projection` compares them.
        coordinates: [M, 2], dimensionless, or [M, X] [embedding] with the X dimensions of an embedder; stored as
            float32. Source: the projection method.
        seconds: Computing time [s].

    Returns:
        The id of the projection.

    Raises:
        StorageError: If there is no such snapshot, the shape of the coordinates does not match, or one of them is NaN
            or infinite.
    """
    if not np.isfinite(coordinates).all():
        raise StorageError(
            f"The {method} of snapshot {snapshot_id} has coordinates that are NaN or infinite. It is not stored."
        )
    values = {
        "snapshot_id": snapshot_id,
        "method": method,
        "params": dict(params),
        "coordinates": pack({"coordinates": np.asarray(coordinates, np.float32)}),
        "seconds": float(seconds),
        "created_at": datetime.now(UTC),
    }
    with db.transaction() as connection:
        size = connection.execute(select(SnapshotRow.size).where(SnapshotRow.id == snapshot_id)).scalar_one_or_none()
        width = 2 if not method.startswith(EMBEDDING_PREFIX) else coordinates.shape[-1]
        if size is None or coordinates.shape != (size, width):
            raise StorageError(
                f"Snapshot {snapshot_id} has {size or 0} nodes; coordinates have shape {coordinates.shape}."
            )
        return connection.execute(insert(ProjectionRow).returning(ProjectionRow.id), values).scalar_one()


def create_job(db: Database, snapshot_id: int, *, method: str, params: Mapping[str, Any]) -> JobRow:
    """Queue a job, or return the queued or running job with the same method and parameters.

    Args:
        db: An open database.
        snapshot_id: The snapshot.
        method: As in `save_projection`.
        params: As in `save_projection`.
    """
    now = datetime.now(UTC)
    with db.transaction() as connection:
        active = select(Job.__table__).where(
            Job.snapshot_id == snapshot_id, Job.method == method, Job.status.in_(("queued", "running"))
        )
        for row in map(_make_row, connection.execute(active)):
            if row.params == dict(params) and row.status != "lost":
                return row
        values = {
            "snapshot_id": snapshot_id,
            "method": method,
            "params": dict(params),
            "status": "queued",
            "progress": 0.0,
            "created_at": now,
            "updated_at": now,
        }
        job_id = connection.execute(insert(Job).returning(Job.id), values).scalar_one()
    return get_job(db, job_id)


def update_job(
    db: Database,
    job_id: int,
    *,
    status: JobStatus | None = None,
    progress: float | None = None,
    pid: int | None = None,
    error: str | None = None,
) -> None:
    """Change fields of a job. None does not change a field, and a cancelled job is not changed.

    Args:
        db: An open database.
        job_id: The job.
        status: The new status.
        progress: Fraction of the work that is done, in [0, 1].
        pid: The process of this machine that computes the projection.
        error: Why the job failed.
    """
    fields = {"status": status, "progress": progress, "error": error}
    values = {name: value for name, value in fields.items() if value is not None}
    if pid is not None:
        values |= {"pid": pid, "host": socket.gethostname()}
    with db.transaction() as connection:
        connection.execute(
            update(Job)
            .where(Job.id == job_id, Job.status != "cancelled")
            .values(**values, updated_at=datetime.now(UTC))
        )


def get_job(db: Database, job_id: int) -> JobRow:
    """Get a job.

    Raises:
        StorageError: If there is no such job.
    """
    with db.read() as connection:
        row = connection.execute(select(Job.__table__).where(Job.id == job_id)).one_or_none()
    if row is None:
        raise StorageError(f"There is no projection job {job_id}.")
    return _make_row(row)


def list_jobs(db: Database, snapshot_id: int) -> list[JobRow]:
    """List the jobs of a snapshot, newest first."""
    with db.read() as connection:
        rows = connection.execute(
            select(Job.__table__).where(Job.snapshot_id == snapshot_id).order_by(Job.id.desc())
        ).all()
    return [_make_row(row) for row in rows]


def _make_row(row: Any) -> JobRow:
    is_lost = False
    if row.status in ("queued", "running") and row.pid is not None and row.host == socket.gethostname():
        is_lost = not psutil.pid_exists(row.pid)
    return JobRow(
        row.id,
        row.snapshot_id,
        row.method,
        row.params,
        "lost" if is_lost else row.status,
        row.progress,
        row.pid,
        row.error,
        row.created_at,
    )
