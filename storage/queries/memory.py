"""What does the episodic memory hold? Snapshots, single nodes, projections."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sqlalchemy import Connection, Row, select

from emtc_core.errors import StorageError
from storage.blobs import find_row, unpack_as, unpack_one, unpack_row
from storage.engine import Database
from storage.frames import read_frame
from storage.models import ProjectionRow, SnapshotRow
from storage.queries.episodes import Trajectory, read_trajectory

_FORMS = {
    **dict.fromkeys(("slot", "n_call", "n_xi", "t", "idx_next", "episode"), "i1"),
    **dict.fromkeys(("H", "reward", "delta_mem", "beta"), "f1"),
    "embedding": "f2",
    "xi": "b1",
}
"""The columns of a snapshot, and the form of each one's array."""
EMBED_DIM = 4
EMBEDDING = "embed-"
"""Begins the method of a projection that has the dimensions of an embedder, fitted anew, instead of two."""
_START = "start"
"""The parameter of a projection that names the earlier one whose layout it set out from."""


@dataclass(frozen=True)
class Snapshot:
    """The memory at one moment, one row per node [M], by slot."""

    id: int
    run_id: str
    env_step: int
    slot: NDArray[np.int64]
    embedding: NDArray[np.float32]  # [M, 4]
    h: NDArray[np.float32]
    xi: NDArray[np.bool_]
    n_call: NDArray[np.int32]
    n_xi: NDArray[np.int32]
    t: NDArray[np.int32]
    reward: NDArray[np.float32]
    idx_next: NDArray[np.int64]  # slot of the successor; -1: none
    episode: NDArray[np.int64]  # whose state stands in the node
    delta_mem: NDArray[np.float32]  # NaN where there is no successor
    beta: NDArray[np.float32]
    state_rows: NDArray[np.int64]  # rows whose state is stored here
    state: NDArray[np.float16]  # [len(state_rows), S]

    @property
    def size(self) -> int:
        """Number of nodes M."""
        return len(self.slot)

    def row_of(self, slot: int) -> int | None:
        """Find the row of a slot, or None."""
        row = int(np.searchsorted(self.slot, slot))
        return row if row < len(self.slot) and self.slot[row] == slot else None


@dataclass(frozen=True)
class PointDetail:
    """One node of a snapshot with the episode whose state stands in it."""

    snapshot_id: int
    run_id: str
    env_step: int  # of the snapshot
    row: int
    slot: int
    embedding: NDArray[np.float32]  # [4]
    h: float
    xi: bool
    n_call: int
    n_xi: int
    t: int
    reward: float
    idx_next: int | None
    episode: int
    delta_mem: float | None
    beta: float | None
    trajectory: Trajectory

    @property
    def state(self) -> NDArray[np.float32]:
        """The node's state [S]."""
        return self.trajectory.state[self.t]


@dataclass(frozen=True)
class Projection:
    """Two coordinates for every node of a snapshot, in the snapshot's order."""

    id: int
    snapshot_id: int
    method: str
    params: dict[str, Any]
    seconds: float
    coordinates: NDArray[np.float32]  # [M, 2]


def list_snapshots(db: Database, run_id: str) -> pd.DataFrame:
    """When was the memory kept? id, env_step, size, created_at; oldest first."""
    columns = (SnapshotRow.id, SnapshotRow.env_step, SnapshotRow.size, SnapshotRow.created_at)
    statement = select(*columns).where(SnapshotRow.run_id == run_id).order_by(SnapshotRow.env_step)
    with db.read() as connection:
        return read_frame(connection, statement)


def get_snapshot(db: Database, snapshot_id: int) -> Snapshot:
    """What did the memory hold at that moment?

    Raises:
        StorageError: If there is no such snapshot.
    """
    with db.read() as connection:
        row = _snapshot_row(connection, snapshot_id)
    columns: dict[str, NDArray[Any]] = {name: unpack_one(row._mapping[name], form) for name, form in _FORMS.items()}
    states = unpack_as(row.state, {"state_rows": "i1", "state": "f2"})
    _check_lengths(snapshot_id, row.size, columns, states)
    columns["h"] = columns.pop("H")
    return Snapshot(row.id, row.run_id, row.env_step, **columns, **states)


def get_point(db: Database, snapshot_id: int, slot: int) -> PointDetail:
    """What is this node, and which episode does its state come from?

    Raises:
        StorageError: If the snapshot has no such slot.
    """
    with db.read() as connection:
        row = _snapshot_row(connection, snapshot_id)
        place = find_row(row.slot, slot)
        if place is None:
            raise StorageError(f"Snapshot {snapshot_id} has no node in slot {slot}.")
        node = {name: unpack_row(row._mapping[name], place, form) for name, form in _FORMS.items() if name != "slot"}
        trajectory = read_trajectory(connection, row.run_id, int(node["episode"]))
        if not 0 <= node["t"] < len(trajectory.state):
            raise StorageError(f"Slot {slot} of snapshot {snapshot_id} names a step that its episode does not have.")
    return PointDetail(
        snapshot_id=snapshot_id,
        run_id=row.run_id,
        env_step=row.env_step,
        row=place,
        slot=slot,
        embedding=node["embedding"],
        h=float(node["H"]),
        xi=bool(node["xi"]),
        n_call=int(node["n_call"]),
        n_xi=int(node["n_xi"]),
        t=int(node["t"]),
        reward=float(node["reward"]),
        idx_next=int(node["idx_next"]) if node["idx_next"] >= 0 else None,
        episode=int(node["episode"]),
        delta_mem=_known(float(node["delta_mem"])),
        beta=_known(float(node["beta"])),
        trajectory=trajectory,
    )


def find_projection(db: Database, snapshot_id: int, method: str, params: Mapping[str, Any]) -> Projection | None:
    """Was this projection computed before, with just these parameters?

    `start` tells from where a layout set out; parameters that do not name it accept any, the newest first.
    """
    key = (ProjectionRow.snapshot_id == snapshot_id, ProjectionRow.method == method)
    statement = select(ProjectionRow.id, ProjectionRow.params).where(*key).order_by(ProjectionRow.id.desc())
    with db.read() as connection:
        for row in connection.execute(statement).all():
            if _are_same(row.params, params):
                return _get_projection(connection, row.id)
    return None


def get_projection(db: Database, projection_id: int) -> Projection:
    """What are the coordinates of this projection?

    Raises:
        StorageError: If there is none.
    """
    with db.read() as connection:
        return _get_projection(connection, projection_id)


def find_embedding(db: Database, snapshot_id: int, kind: str, *, seed: int) -> Projection | None:
    """What is the newest embedding of this snapshot by a fresh embedder of this type? Coordinates [M, X]."""
    key = (ProjectionRow.snapshot_id == snapshot_id, ProjectionRow.method == f"{EMBEDDING}{kind}")
    statement = select(ProjectionRow.id, ProjectionRow.params).where(*key).order_by(ProjectionRow.id.desc())
    with db.read() as connection:
        for row in connection.execute(statement).all():
            if row.params.get("seed") == seed:
                return _get_projection(connection, row.id)
    return None


def find_earlier_projection(
    db: Database, snapshot_id: int, method: str, params: Mapping[str, Any]
) -> Projection | None:
    """Which projection with these parameters belongs to the nearest earlier snapshot of the same run?

    A smaller memory may have had fewer nodes than `n`; its `n` is then its size. `start` is not compared.
    """
    later = select(SnapshotRow.run_id, SnapshotRow.env_step).where(SnapshotRow.id == snapshot_id).subquery()
    statement = (
        select(ProjectionRow.id, ProjectionRow.params, SnapshotRow.size)
        .join(SnapshotRow, SnapshotRow.id == ProjectionRow.snapshot_id)
        .join(later, (SnapshotRow.run_id == later.c.run_id) & (SnapshotRow.env_step < later.c.env_step))
        .where(ProjectionRow.method == method)
        .order_by(SnapshotRow.env_step.desc(), ProjectionRow.id.desc())
    )
    wanted = {name: value for name, value in params.items() if name != _START}
    with db.read() as connection:
        for row in connection.execute(statement).all():
            if _are_same(row.params, wanted | {"n": min(row.size, wanted.get("n", row.size))}):
                return _get_projection(connection, row.id)
    return None


def _are_same(stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    known = {name: value for name, value in stored.items() if name != _START or _START in wanted}
    return json.dumps(known, sort_keys=True) == json.dumps(wanted, sort_keys=True)


def _get_projection(connection: Connection, projection_id: int) -> Projection:
    row = connection.execute(select(ProjectionRow.__table__).where(ProjectionRow.id == projection_id)).one_or_none()
    if row is None:
        raise StorageError(f"There is no projection {projection_id}.")
    coordinates = unpack_one(row.coordinates, "f2")
    return Projection(row.id, row.snapshot_id, row.method, row.params, row.seconds, coordinates)


def _check_lengths(
    snapshot_id: int, size: int, columns: Mapping[str, NDArray[Any]], states: Mapping[str, NDArray[Any]]
) -> None:
    rows = states["state_rows"]
    whole = all(len(column) == size for column in columns.values()) and columns["embedding"].shape[1] == EMBED_DIM
    if not whole or len(rows) != len(states["state"]) or ((rows < 0) | (rows >= size)).any():
        raise StorageError(f"Snapshot {snapshot_id} is damaged: its columns are not of one length.")


def _snapshot_row(connection: Connection, snapshot_id: int) -> Row[Any]:
    table = SnapshotRow.__table__
    row = connection.execute(select(table).where(SnapshotRow.id == snapshot_id)).one_or_none()
    if row is None:
        raise StorageError(f"There is no snapshot {snapshot_id}.")
    return row


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
