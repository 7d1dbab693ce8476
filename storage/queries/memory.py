"""What does the episodic memory contain? Snapshots and their nodes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sqlalchemy import Connection, case, exists, select

from emtc_core.errors import StorageError
from storage.blobs import unpack
from storage.engine import Database
from storage.frames import read_frame
from storage.models import SNAPSHOT_ARRAYS, EpisodeRow, GateStats, Run, SnapshotRow
from storage.queries.episodes import Trajectory, get_trajectory


@dataclass(frozen=True)
class WholeMemory:
    """The memory of which a snapshot contains only a sample, by the newest gate statistics up to the snapshot.

    Source: tables `gate_stats` and `episodes`.
    """

    env_step: int  # of the statistics [env steps]; equal to or before that of the snapshot
    size: int  # [nodes]; a memory never shrinks, so this is a lower bound if `env_step` is before the snapshot
    desirable_fraction: float | None  # dimensionless
    delta_mem_mean: float | None  # [return]
    beta_mean: float | None  # dimensionless; None without a gate
    n_episodes: int  # training episodes of the run up to the snapshot


@dataclass(frozen=True)
class Snapshot:
    """The episodic memory at one env step. Arrays have one row per node [M], sorted by slot.

    A bundle may contain only a sample of the nodes (`storage.bundles.contents`). A snapshot is a sample if it has fewer
    nodes than the gate statistics counted in the memory at its env step or before.

    Source: table `snapshots`, which contains the nodes of Algorithm 2.
    """

    id: int
    run_id: str
    env_step: int
    slot: NDArray[np.int64]  # [M] slot indices, ascending
    embedding: NDArray[np.float32]  # [M, X] [embedding]
    h: NDArray[np.float32]  # [M] [return]
    xi: NDArray[np.bool_]  # [M] boolean, success flag
    n_call: NDArray[np.int32]  # [M] [visits]
    n_xi: NDArray[np.int32]  # [M] [visits] in successful trajectories
    t: NDArray[np.int32]  # [M] time step of the stored state [steps]
    reward: NDArray[np.float32]  # [M] [reward] of the transition to the successor
    idx_next: NDArray[np.int64]  # [M] slot index of the successor; -1 if it has none
    episode: NDArray[np.int64]  # [M] training episode of the stored state, dimensionless
    delta_mem: NDArray[np.float32]  # [M] [return]; NaN if the node has no successor
    beta: NDArray[np.float32]  # [M] dimensionless; NaN if the node has no successor
    state_rows: NDArray[np.int64]  # [K] row indices of the nodes whose state is in the snapshot
    state: NDArray[np.float16]  # [K, S] [state features]
    age: NDArray[np.float32]  # [M] time since the stored state was visited [env steps]; NaN if unknown
    whole: WholeMemory | None = None  # the memory of which these nodes are a sample; None if they are all nodes

    @property
    def size(self) -> int:
        """Number of nodes M."""
        return len(self.slot)

    def row_of(self, slot: int) -> int | None:
        """Return the row of a slot, or None if the slot is empty."""
        row = int(np.searchsorted(self.slot, slot))
        return row if row < len(self.slot) and self.slot[row] == slot else None

    def rows_of(self, slots: NDArray[np.integer]) -> NDArray[np.int64]:
        """Find the rows of slots.

        Source: implementation detail.

        Args:
            slots: Slot indices, any shape.

        Returns:
            Row indices, same shape; -1 for an empty slot.
        """
        if not len(self.slot):
            return np.full(slots.shape, -1, np.int64)
        rows = np.minimum(np.searchsorted(self.slot, slots), len(self.slot) - 1)
        return np.where(self.slot[rows] == slots, rows, -1)


@dataclass(frozen=True)
class Nodes:
    """Identity and embedding of the nodes [M] of a snapshot. Episode and `t` identify the stored state of a node.

    Source: table `snapshots`.
    """

    id: int
    slot: NDArray[np.int64]  # [M] slot indices
    episode: NDArray[np.int64]  # [M] training episode of the stored state, dimensionless
    t: NDArray[np.int32]  # [M] [steps]
    embedding: NDArray[np.float32]  # [M, X] [embedding]


@dataclass(frozen=True)
class NodeDetail:
    """One node of a snapshot and the training episode of its stored state.

    Source: tables `snapshots` and `episodes`.
    """

    snapshot_id: int
    run_id: str
    env_step: int  # of the snapshot
    row: int
    slot: int
    embedding: NDArray[np.float32]  # [X] [embedding]
    h: float  # [return]
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
        """The node's state [S] [state features]. Source: the trajectory of its episode."""
        return self.trajectory.state[self.t]


def list_snapshots(db: Database, run_id: str) -> pd.DataFrame:
    """Which snapshots of the memory does a run have?

    Source: table `snapshots`.

    Returns:
        One row per snapshot, oldest first: id, env_step [env steps], size [nodes], memory_size [nodes], created_at
        [UTC]. `memory_size` is the size of the whole memory, larger than `size` in a sample; see `WholeMemory`.
    """
    of_memory = (GateStats.run_id == SnapshotRow.run_id, GateStats.env_step <= SnapshotRow.env_step)
    newest = select(GateStats.memory_size).where(*of_memory).order_by(GateStats.env_step.desc()).limit(1)
    counted = newest.correlate(SnapshotRow).scalar_subquery()
    memory_size = case((counted > SnapshotRow.size, counted), else_=SnapshotRow.size).label("memory_size")
    columns = (SnapshotRow.id, SnapshotRow.env_step, SnapshotRow.size, memory_size, SnapshotRow.created_at)
    statement = select(*columns).where(SnapshotRow.run_id == run_id).order_by(SnapshotRow.env_step)
    with db.read() as connection:
        return read_frame(connection, statement)


def list_runs_with_snapshots(db: Database) -> list[str]:
    """Which runs have at least one snapshot of their memory? Newest first."""
    has_snapshot = exists().where(SnapshotRow.run_id == Run.id)
    with db.read() as connection:
        run_ids = connection.execute(select(Run.id).where(has_snapshot).order_by(Run.created_at.desc())).scalars()
        return [str(run_id) for run_id in run_ids]


def get_snapshot(db: Database, snapshot_id: int) -> Snapshot:
    """What did the memory contain at this snapshot?

    Raises:
        StorageError: If there is no such snapshot, or it cannot be read.
    """
    with db.read() as connection:
        row = connection.execute(select(SnapshotRow.__table__).where(SnapshotRow.id == snapshot_id)).one_or_none()
        if row is None:
            raise StorageError(f"There is no snapshot {snapshot_id}.")
        episodes = connection.execute(
            select(EpisodeRow.episode, EpisodeRow.first_env_step).where(EpisodeRow.run_id == row.run_id)
        ).all()
        memory = _find_memory(connection, row.run_id, row.env_step)
    columns = _read_columns(row, SNAPSHOT_ARRAYS)
    columns["h"] = columns.pop("H")
    # Tuples, because NumPy converts the rows of SQLAlchemy slowly: it looks for attributes that they do not have.
    first_steps = np.array([tuple(episode) for episode in episodes], np.int64).reshape(-1, 2)
    age = _compute_age(row.env_step, columns["episode"], columns["t"], first_steps)
    whole = None
    if memory is not None and memory.memory_size > row.size:
        whole = WholeMemory(*memory, n_episodes=int((first_steps[:, 1] <= row.env_step).sum()))
    return Snapshot(row.id, row.run_id, row.env_step, **columns, age=age, whole=whole)


def get_nodes(db: Database, snapshot_id: int) -> Nodes:
    """Which nodes does a snapshot have, and where are they in the embedding? Reads only four columns.

    Raises:
        StorageError: If there is no such snapshot, or it cannot be read.
    """
    names = ("slot", "episode", "t", "embedding")
    with db.read() as connection:
        columns = [getattr(SnapshotRow, name) for name in names]
        row = connection.execute(select(*columns).where(SnapshotRow.id == snapshot_id)).one_or_none()
    if row is None:
        raise StorageError(f"There is no snapshot {snapshot_id}.")
    return Nodes(snapshot_id, **_read_columns(row, names))


def _find_memory(connection: Connection, run_id: str, env_step: int) -> Any:
    """Read the newest gate statistics up to an env step; None if there are none."""
    columns = (GateStats.env_step, GateStats.memory_size, GateStats.desirable_fraction)
    means = (GateStats.delta_mem_mean, GateStats.beta_mean)
    statement = select(*columns, *means).where(GateStats.run_id == run_id, GateStats.env_step <= env_step)
    return connection.execute(statement.order_by(GateStats.env_step.desc()).limit(1)).one_or_none()


def _read_columns(row: Any, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Unpack columns of a snapshot."""
    arrays: dict[str, NDArray[Any]] = {}
    for name in names:
        arrays |= unpack(row._mapping[name])
    return arrays


def _compute_age(
    env_step: int, episode: NDArray[np.int64], t: NDArray[np.integer], first_steps: NDArray[np.int64]
) -> NDArray[np.float32]:
    """Compute the env steps since each stored state was visited; NaN if its episode is not stored.

    Args:
        env_step: Env step of the snapshot.
        episode: Training episode of each node [M].
        t: Step in that episode [M].
        first_steps: Episode number and first env step of the run's episodes [E, 2].

    Returns:
        Age of each node [M] in env steps.
    """
    if not len(first_steps):
        return np.full(len(episode), np.nan, np.float32)
    first_steps = first_steps[np.argsort(first_steps[:, 0])]
    row = np.minimum(np.searchsorted(first_steps[:, 0], episode), len(first_steps) - 1)
    is_stored = first_steps[row, 0] == episode
    return np.where(is_stored, env_step - (first_steps[row, 1] - 1 + t), np.nan).astype(np.float32)


def get_node(db: Database, snapshot: Snapshot, slot: int) -> NodeDetail:
    """What is in this node of a snapshot, and from which training episode is its state?

    Args:
        db: An open database.
        snapshot: The snapshot.
        slot: Slot of the node.

    Raises:
        StorageError: If the snapshot has no node in this slot, or the trajectory of the episode is not stored.
    """
    row = snapshot.row_of(slot)
    if row is None:
        part = "" if snapshot.whole is None else ", which is a sample of the memory,"
        raise StorageError(f"Snapshot {snapshot.id}{part} has no node in slot {slot}.")
    t, episode, successor = int(snapshot.t[row]), int(snapshot.episode[row]), int(snapshot.idx_next[row])
    trajectory = get_trajectory(db, snapshot.run_id, episode)
    return NodeDetail(
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
        delta_mem=_none_if_nan(float(snapshot.delta_mem[row])),
        beta=_none_if_nan(float(snapshot.beta[row])),
        trajectory=trajectory,
    )


def _none_if_nan(value: float) -> float | None:
    return None if math.isnan(value) else value
