"""Which projections of a snapshot are stored, and what are their coordinates?"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Row, select

from emtc_core.errors import StorageError
from storage.blobs import unpack_array
from storage.engine import Database
from storage.frames import Statement
from storage.models import ProjectionRow, SnapshotRow

EMBEDDING_PREFIX = "embed-"
"""Prefix of the method of a projection whose coordinates are the embedding of a newly fitted embedder."""
_START = "start"
"""Parameter of a projection: the earlier projection that was used to initialize the layout."""


@dataclass(frozen=True)
class Projection:
    """Coordinates of every node of a snapshot, in the order of the snapshot.

    Source: table `projections`.
    """

    id: int
    snapshot_id: int
    method: str
    params: dict[str, Any]
    seconds: float
    coordinates: NDArray[np.float32]  # [M, 2] dimensionless; [M, X] [embedding] of an embedder


def find_projection(db: Database, snapshot_id: int, method: str, params: Mapping[str, Any]) -> Projection | None:
    """Is there a stored projection of this snapshot with exactly these parameters? Returns the newest.

    Args:
        db: An open database.
        snapshot_id: The snapshot.
        method: As in `save_projection`.
        params: As in `save_projection`. Without `start`, the stored value of `start` is not compared.
    """
    return _find(db, _select_by_method(snapshot_id, method), lambda row: _are_equal(row.params, params))


def get_projection(db: Database, projection_id: int) -> Projection:
    """What are the coordinates of this projection?

    Raises:
        StorageError: If there is no such projection.
    """
    with db.read() as connection:
        return _get_projection(connection, projection_id)


def find_embedding(db: Database, snapshot_id: int, kind: str, *, seed: int) -> Projection | None:
    """What is the newest embedding of this snapshot by a newly fitted embedder of this type? Coordinates [M, X].

    Args:
        db: An open database.
        snapshot_id: The snapshot.
        kind: Type of the embedder.
        seed: Seed of the fit.
    """
    return _find(
        db, _select_by_method(snapshot_id, f"{EMBEDDING_PREFIX}{kind}"), lambda row: row.params.get("seed") == seed
    )


def find_earlier_projection(
    db: Database, snapshot_id: int, method: str, params: Mapping[str, Any]
) -> Projection | None:
    """What is the projection with these parameters of the nearest earlier snapshot of the same run?

    Args:
        db: An open database.
        snapshot_id: The later snapshot.
        method: As in `save_projection`.
        params: As in `save_projection`. `start` is not compared. If the earlier snapshot has fewer than `n` nodes, its
            stored `n` must be its size.
    """
    later = select(SnapshotRow.run_id, SnapshotRow.env_step).where(SnapshotRow.id == snapshot_id).subquery()
    statement = (
        select(ProjectionRow.id, ProjectionRow.params, SnapshotRow.size)
        .join(SnapshotRow, SnapshotRow.id == ProjectionRow.snapshot_id)
        .join(later, (SnapshotRow.run_id == later.c.run_id) & (SnapshotRow.env_step < later.c.env_step))
        .where(ProjectionRow.method == method)
        .order_by(SnapshotRow.env_step.desc(), ProjectionRow.id.desc())
    )
    compared = {name: value for name, value in params.items() if name != _START}
    return _find(
        db, statement, lambda row: _are_equal(row.params, compared | {"n": min(row.size, compared.get("n", row.size))})
    )


def _select_by_method(snapshot_id: int, method: str) -> Statement:
    key = (ProjectionRow.snapshot_id == snapshot_id, ProjectionRow.method == method)
    return select(ProjectionRow.id, ProjectionRow.params).where(*key).order_by(ProjectionRow.id.desc())


def _find(db: Database, statement: Statement, matches: Callable[[Row[Any]], bool]) -> Projection | None:
    """Get the first projection of a statement of id and params whose row matches."""
    with db.read() as connection:
        match = next((row for row in connection.execute(statement).all() if matches(row)), None)
        return _get_projection(connection, match.id) if match else None


def _are_equal(stored: Mapping[str, Any], params: Mapping[str, Any]) -> bool:
    compared = {name: value for name, value in stored.items() if name != _START or _START in params}
    return json.dumps(compared, sort_keys=True) == json.dumps(params, sort_keys=True)


def _get_projection(connection: Connection, projection_id: int) -> Projection:
    row = connection.execute(select(ProjectionRow.__table__).where(ProjectionRow.id == projection_id)).one_or_none()
    if row is None:
        raise StorageError(f"There is no projection {projection_id}.")
    coordinates = unpack_array(row.coordinates)
    return Projection(row.id, row.snapshot_id, row.method, row.params, row.seconds, coordinates)
