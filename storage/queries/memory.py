"""What does the episodic memory hold? Snapshots, single nodes, projections."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sqlalchemy import Connection, Row, select

from emtc_core.errors import StorageError
from storage.blobs import unpack_as, unpack_one
from storage.engine import Database
from storage.frames import Statement, read_frame
from storage.models import EpisodeRow, ProjectionRow, SnapshotRow
from storage.queries.episodes import Trajectory, get_trajectory

SNAPSHOT_FORMS = {
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
    age: NDArray[np.float32]  # env steps since the state that stands in the node was met; NaN: unknown

    @property
    def size(self) -> int:
        """Number of nodes M."""
        return len(self.slot)

    def row_of(self, slot: int) -> int | None:
        """Find the row of a slot, or None."""
        row = int(np.searchsorted(self.slot, slot))
        return row if row < len(self.slot) and self.slot[row] == slot else None

    def rows_of(self, slots: NDArray[np.integer]) -> NDArray[np.int64]:
        """Find the rows of slots, any shape; -1 where a slot holds nothing."""
        if not len(self.slot):
            return np.full(slots.shape, -1, np.int64)
        rows = np.minimum(np.searchsorted(self.slot, slots), len(self.slot) - 1)
        return np.where(self.slot[rows] == slots, rows, -1)


@dataclass(frozen=True)
class Nodes:
    """Who stood where in a snapshot: what tells its nodes [M] from others, and their places in the embedding."""

    id: int
    slot: NDArray[np.int64]
    episode: NDArray[np.int64]
    t: NDArray[np.int32]
    embedding: NDArray[np.float32]  # [M, 4]


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
        row = connection.execute(select(SnapshotRow.__table__).where(SnapshotRow.id == snapshot_id)).one_or_none()
        if row is None:
            raise StorageError(f"There is no snapshot {snapshot_id}.", reason="not_found", subject=snapshot_id)
        began = connection.execute(
            select(EpisodeRow.episode, EpisodeRow.first_env_step).where(EpisodeRow.run_id == row.run_id)
        ).all()
    first_steps = [tuple(each) for each in began]  # NumPy asks a row of SQLAlchemy's for names it lacks, which is slow
    forms = SNAPSHOT_FORMS.items()
    columns: dict[str, NDArray[Any]] = {name: unpack_one(row._mapping[name], form) for name, form in forms}
    states = unpack_as(row.state, {"state_rows": "i1", "state": "f2"})
    _check_lengths(snapshot_id, row.size, columns, states)
    columns["h"] = columns.pop("H")
    age = _ages(row.env_step, columns["episode"], columns["t"], np.array(first_steps, np.int64).reshape(-1, 2))
    return Snapshot(row.id, row.run_id, row.env_step, **columns, **states, age=age)


def get_nodes(db: Database, snapshot_id: int) -> Nodes:
    """Who stood where at that moment? A few of a snapshot's columns.

    Raises:
        StorageError: If there is no such snapshot.
    """
    names = ("slot", "episode", "t", "embedding")
    with db.read() as connection:
        asked = select(*(getattr(SnapshotRow, name) for name in names)).where(SnapshotRow.id == snapshot_id)
        row = connection.execute(asked).one_or_none()
    if row is None:
        raise StorageError(f"There is no snapshot {snapshot_id}.", reason="not_found", subject=snapshot_id)
    columns: dict[str, NDArray[Any]] = {name: unpack_one(row._mapping[name], SNAPSHOT_FORMS[name]) for name in names}
    if len({len(column) for column in columns.values()}) > 1 or columns["embedding"].shape[1] != EMBED_DIM:
        raise StorageError(f"Snapshot {snapshot_id} is damaged: its columns are not of one length.")
    return Nodes(snapshot_id, **columns)


def _ages(
    env_step: int, episode: NDArray[np.int64], t: NDArray[np.integer], began: NDArray[np.int64]
) -> NDArray[np.float32]:
    """Count env steps since each node's state was met, from the first env step of each episode [E, 2]."""
    if not len(began):
        return np.full(len(episode), np.nan, np.float32)
    began = began[np.argsort(began[:, 0])]
    place = np.minimum(np.searchsorted(began[:, 0], episode), len(began) - 1)
    known = began[place, 0] == episode
    return np.where(known, env_step - (began[place, 1] - 1 + t), np.nan).astype(np.float32)


def get_node(db: Database, snapshot: Snapshot, slot: int) -> PointDetail:
    """What is this node of a snapshot, and which episode does its state come from?

    Raises:
        StorageError: If the snapshot has no such slot.
    """
    row = snapshot.row_of(slot)
    if row is None:
        raise StorageError(f"Snapshot {snapshot.id} has no node in slot {slot}.", reason="not_found", subject=slot)
    t, episode, successor = int(snapshot.t[row]), int(snapshot.episode[row]), int(snapshot.idx_next[row])
    trajectory = get_trajectory(db, snapshot.run_id, episode)
    if not 0 <= t < len(trajectory.state):
        raise StorageError(f"Slot {slot} of snapshot {snapshot.id} names a step that its episode does not have.")
    return PointDetail(
        snapshot_id=snapshot.id,
        run_id=snapshot.run_id,
        env_step=snapshot.env_step,
        row=row,
        slot=slot,
        embedding=snapshot.embedding[row],
        h=float(snapshot.h[row]),
        xi=bool(snapshot.xi[row]),
        n_call=int(snapshot.n_call[row]),
        n_xi=int(snapshot.n_xi[row]),
        t=t,
        reward=float(snapshot.reward[row]),
        idx_next=successor if successor >= 0 else None,
        episode=episode,
        delta_mem=_known(float(snapshot.delta_mem[row])),
        beta=_known(float(snapshot.beta[row])),
        trajectory=trajectory,
    )


def find_projection(db: Database, snapshot_id: int, method: str, params: Mapping[str, Any]) -> Projection | None:
    """Was this projection computed before, with just these parameters?

    `start` tells from where a layout set out; parameters that do not name it accept any, the newest first.
    """
    return _find(db, _of_snapshot(snapshot_id, method), lambda row: _are_same(row.params, params))


def get_projection(db: Database, projection_id: int) -> Projection:
    """What are the coordinates of this projection?

    Raises:
        StorageError: If there is none.
    """
    with db.read() as connection:
        return _get_projection(connection, projection_id)


def find_embedding(db: Database, snapshot_id: int, kind: str, *, seed: int) -> Projection | None:
    """What is the newest embedding of this snapshot by a fresh embedder of this type? Coordinates [M, X]."""
    return _find(db, _of_snapshot(snapshot_id, f"{EMBEDDING}{kind}"), lambda row: row.params.get("seed") == seed)


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
    return _find(
        db, statement, lambda row: _are_same(row.params, wanted | {"n": min(row.size, wanted.get("n", row.size))})
    )


def _of_snapshot(snapshot_id: int, method: str) -> Statement:
    key = (ProjectionRow.snapshot_id == snapshot_id, ProjectionRow.method == method)
    return select(ProjectionRow.id, ProjectionRow.params).where(*key).order_by(ProjectionRow.id.desc())


def _find(db: Database, newest_first: Statement, fits: Callable[[Row[Any]], bool]) -> Projection | None:
    with db.read() as connection:
        found = next((row for row in connection.execute(newest_first).all() if fits(row)), None)
        return _get_projection(connection, found.id) if found else None


def _are_same(stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    known = {name: value for name, value in stored.items() if name != _START or _START in wanted}
    return json.dumps(known, sort_keys=True) == json.dumps(wanted, sort_keys=True)


def _get_projection(connection: Connection, projection_id: int) -> Projection:
    row = connection.execute(select(ProjectionRow.__table__).where(ProjectionRow.id == projection_id)).one_or_none()
    if row is None:
        raise StorageError(f"There is no projection {projection_id}.", reason="not_found", subject=projection_id)
    coordinates = unpack_one(row.coordinates, "f2")
    return Projection(row.id, row.snapshot_id, row.method, row.params, row.seconds, coordinates)


def _check_lengths(
    snapshot_id: int, size: int, columns: Mapping[str, NDArray[Any]], states: Mapping[str, NDArray[Any]]
) -> None:
    rows = states["state_rows"]
    whole = all(len(column) == size for column in columns.values()) and columns["embedding"].shape[1] == EMBED_DIM
    if not whole or len(rows) != len(states["state"]) or ((rows < 0) | (rows >= size)).any():
        raise StorageError(f"Snapshot {snapshot_id} is damaged: its columns are not of one length.")


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
