"""The contents of a bundle, and copying of runs between two databases.

`copy_runs` writes the database of a bundle and also imports one. It does not copy:

- columns of `runs` whose `ColumnUse` is not `is_bundled`: columns about a process or a machine, and whether the run is
  hidden or archived;
- jobs, commands, checkpoints and notebook entries.

A run that is queued, running or paused becomes a stopped run in the copy.

A snapshot can be copied as a sample of whole episodes, so that a bundle of a large memory stays small. The sampled
nodes keep their recorded links, Δ_mem and β, also where a link refers to a node that is not in the sample.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, case, insert, literal, select

from storage.blobs import pack, unpack
from storage.column_types import get_use
from storage.models import RUN_TABLE_COLUMNS, SNAPSHOT_ARRAYS, Base, Run, SweepRow
from storage.queries.episodes import EMPTY_TRAJECTORY
from storage.queries.projections import EMBEDDING_PREFIX
from storage.runs.labels import MOST_TAGS

_CLEARED_RUN_COLUMNS: Final[dict[str, None]] = dict.fromkeys(
    column.name for column in RUN_TABLE_COLUMNS if not get_use(column).is_bundled
)
_UNFINISHED: Final = frozenset({"queued", "running", "paused"})
_ALWAYS_COPIED_TABLES: Final = (
    *("resumes", "evaluations", "policy_evaluations", "metrics", "gate_stats", "transition_summary"),
)
_NODE_COLUMNS: Final = tuple(name for name in SNAPSHOT_ARRAYS if name != "state")
"""Columns of `snapshots` with one array, which has a row per node."""
_BATCH_ROWS: Final = 5_000
_TRAJECTORY_BATCH_ROWS: Final = 64
_SAMPLE_SEED: Final = 0
_LABELS: Final = {
    "transitions": "every transition",
    "snapshots": "memory snapshots",
    "playbacks": "evaluation episodes",
    "trajectories": "states of all training episodes",
}


@dataclass(frozen=True)
class Contents:
    """What is copied of each run, in addition to its configuration, its curves and the outcomes of its episodes.

    The manifest of a bundle stores these fields.
    """

    snapshots: bool = True
    """Snapshots of the memory, with their projections."""
    playbacks: bool = True
    """The recorded greedy episodes of the evaluations."""
    transitions: bool = True
    """One row per training transition. Otherwise only sums over 1,000 environment steps are copied."""
    trajectories: bool = False
    """States and actions of every training episode."""
    kept_episodes: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """Run id → training episodes whose states and actions are copied although `trajectories` is false."""
    sampled_snapshots: Mapping[str, int] = field(default_factory=dict)
    """Run id → number of snapshots that are copied as samples although `snapshots` is false."""
    max_sample_nodes: int = 6_000
    """Maximum number of nodes in a sampled snapshot."""
    whole_runs: frozenset[str] = frozenset()
    """Runs of which all recorded data are copied, whatever the other fields are."""

    def describe(self) -> list[str]:
        """List the contents for people."""
        labels = ["curves and outcomes", *(label for name, label in _LABELS.items() if getattr(self, name))]
        if n := len(self.whole_runs):
            labels.append(f"everything of {n} run{'s' if n > 1 else ''}")
        if self.sampled_snapshots:
            labels.append(f"memory snapshots as samples of at most {self.max_sample_nodes:,} nodes")
        return labels


THIN: Final = Contents(snapshots=False, playbacks=False, transitions=False)
"""Only configuration, curves and outcomes."""
WHOLE: Final = Contents(trajectories=True)
"""All recorded data of a run."""


def copy_runs(
    source: Connection,
    target: Connection,
    run_ids: Sequence[str],
    contents: Contents,
    *,
    renumber: bool = False,
    tag: str = "",
) -> None:
    """Copy runs and their sweeps. The caller begins and ends the transactions of both connections.

    Args:
        source: Connection to the database that has the runs.
        target: Connection to the database that the rows are inserted into. It must not have any of the runs.
        run_ids: The runs.
        contents: What is copied of each run.
        renumber: Let the target assign new ids to snapshots and projections, because it may already use the old ones.
        tag: Tag that is added to each run, unless the run already has the maximum number of tags.
    """
    _copy_sweeps(source, target, run_ids)
    for run_id in run_ids:
        run_contents = WHOLE if run_id in contents.whole_runs else contents
        _copy_run(source, target, run_id, tag=tag)
        for table_name in _ALWAYS_COPIED_TABLES:
            _copy_rows(source, target, table_name, run_id, omit="id")
        _copy_episodes(source, target, run_id, run_contents)
        if run_contents.transitions:
            _copy_rows(source, target, "transitions", run_id)
        if run_contents.playbacks:
            _copy_rows(source, target, "eval_episodes", run_id)
        if run_contents.snapshots or run_id in run_contents.sampled_snapshots:
            _copy_snapshots(source, target, run_id, run_contents, renumber=renumber)


def select_evenly_spaced(steps: Sequence[int], n: int) -> list[int]:
    """Select at most `n` of the ascending environment steps. They are evenly spaced and include the last one.

    Returns:
        Ascending indices into `steps`.
    """
    if len(steps) <= n:
        return list(range(len(steps)))
    targets = np.linspace(0, steps[-1], n + 1)[1:]
    return sorted({int(np.abs(np.asarray(steps) - target).argmin()) for target in targets})


def select_nodes(
    snapshot: Mapping[Any, Any], max_nodes: int, preferred_episodes: frozenset[int] = frozenset()
) -> NDArray[np.int64]:
    """Select nodes of a snapshot for a sample: all nodes of as many episodes as fit.

    Source: implementation detail.

    Args:
        snapshot: A row of `snapshots` with packed columns.
        max_nodes: Maximum number of nodes.
        preferred_episodes: Episodes that are added first. The others follow in a random order with a fixed seed.

    Returns:
        Ascending row indices of the nodes in the snapshot, shape [n] with n <= max_nodes.
    """
    episode = unpack(snapshot["episode"])["episode"]
    episodes, counts = np.unique(episode, return_counts=True)
    shuffled = np.random.default_rng(_SAMPLE_SEED).permutation(len(episodes))
    is_preferred = np.isin(episodes[shuffled], list(preferred_episodes))
    order = np.concatenate([shuffled[is_preferred], shuffled[~is_preferred]])
    fitting = order[np.cumsum(counts[order]) <= max_nodes]
    return np.flatnonzero(np.isin(episode, episodes[fitting]))


def filter_snapshot(snapshot: Mapping[Any, Any], nodes: NDArray[np.int64]) -> dict[str, Any]:
    """Make a row of `snapshots` that contains only the given nodes.

    Source: implementation detail.

    Args:
        snapshot: A row of `snapshots` with packed columns.
        nodes: Ascending row indices of the nodes that are kept, shape [n].

    Returns:
        The row with packed columns. It has the id of the original row.
    """
    columns = {name: _filter_nodes(snapshot[name], nodes) for name in _NODE_COLUMNS}
    states = unpack(snapshot["state"])
    is_kept = np.isin(states["state_rows"], nodes)
    state_rows = np.searchsorted(nodes, states["state_rows"][is_kept])
    columns["state"] = pack({"state_rows": state_rows, "state": states["state"][is_kept]})
    return {**snapshot, **columns, "size": len(nodes)}


def _filter_nodes(blob: bytes, nodes: NDArray[np.int64]) -> bytes:
    """Keep only these rows of the arrays of a blob."""
    return pack({name: array[nodes] for name, array in unpack(blob).items()})


def _copy_sweeps(source: Connection, target: Connection, run_ids: Sequence[str]) -> None:
    """Copy the sweeps of these runs, except those that the target already has."""
    sweep_ids = {source.execute(select(Run.sweep_id).where(Run.id == run_id)).scalar() for run_id in run_ids}
    for sweep_id in sorted(sweep_id for sweep_id in sweep_ids if sweep_id):
        row = source.execute(select(SweepRow.__table__).where(SweepRow.id == sweep_id)).mappings().one_or_none()
        exists = target.execute(select(SweepRow.id).where(SweepRow.id == sweep_id)).first() is not None
        if row is not None and not exists:
            status = "stopped" if row["status"] == "running" else row["status"]
            no_worker = {"owner_token": None, "heartbeat_at": None}  # the copy belongs to no process
            target.execute(insert(SweepRow), dict(row) | no_worker | {"status": status})


def _copy_run(source: Connection, target: Connection, run_id: str, *, tag: str) -> None:
    run: dict[str, Any] = dict(source.execute(select(Run.__table__).where(Run.id == run_id)).mappings().one())
    if run["status"] in _UNFINISHED:
        run |= {"status": "stopped", "ended_at": run["ended_at"] or run["heartbeat_at"] or datetime.now(UTC)}
    if tag and len(run["tags"]) < MOST_TAGS:
        run["tags"] = sorted({*run["tags"], tag})
    target.execute(insert(Run), run | _CLEARED_RUN_COLUMNS)


def _copy_episodes(source: Connection, target: Connection, run_id: str, contents: Contents) -> None:
    """Copy the episodes of a run.

    A trajectory that is not part of the contents is replaced by an empty one, which readers show as removed.
    """
    if contents.trajectories:
        _copy_rows(source, target, "episodes", run_id)
        return
    table = Base.metadata.tables["episodes"]
    is_kept = table.c.episode.in_(contents.kept_episodes.get(run_id, ()))
    trajectory = case((is_kept, table.c.trajectory), else_=literal(EMPTY_TRAJECTORY)).label("trajectory")
    columns = [trajectory if column.name == "trajectory" else column for column in table.columns]
    _copy_rows(source, target, "episodes", run_id, columns=columns)


def _copy_snapshots(source: Connection, target: Connection, run_id: str, contents: Contents, *, renumber: bool) -> None:
    """Copy snapshots of a run with their projections, one at a time: all of them whole, or samples of some.

    The table `projections` has two kinds of rows: the embedding of a newly fitted embedder, whose method starts with
    `EMBEDDING_PREFIX`, and a layout, the 2D coordinates of PCA, t-SNE or UMAP. Layouts of a sampled snapshot are not
    copied, because a layout depends on all nodes of its snapshot.
    """
    snapshots, projections = Base.metadata.tables["snapshots"], Base.metadata.tables["projections"]
    keys = select(snapshots.c.id, snapshots.c.env_step).where(snapshots.c.run_id == run_id)
    rows = source.execute(keys.order_by(snapshots.c.env_step)).all()
    if not contents.snapshots:
        n = contents.sampled_snapshots[run_id]
        rows = [rows[index] for index in select_evenly_spaced([row.env_step for row in rows], n)]
    for row in rows:
        snapshot = dict(source.execute(select(snapshots).where(snapshots.c.id == row.id)).mappings().one())
        statement = select(projections).where(projections.c.snapshot_id == row.id).order_by(projections.c.id)
        copies = [dict(projection) for projection in source.execute(statement).mappings()]
        if not contents.snapshots:
            preferred_episodes = contents.kept_episodes.get(run_id, frozenset[int]())
            nodes = select_nodes(snapshot, contents.max_sample_nodes, preferred_episodes)
            snapshot = filter_snapshot(snapshot, nodes)
            copies = [copy for copy in copies if copy["method"].startswith(EMBEDDING_PREFIX)]
            for copy in copies:
                copy["coordinates"] = _filter_nodes(copy["coordinates"], nodes)
        if renumber:
            for values in (snapshot, *copies):
                del values["id"]
        new_id = target.execute(insert(snapshots).returning(snapshots.c.id), snapshot).scalar_one()
        for copy in copies:
            target.execute(insert(projections), copy | {"snapshot_id": new_id})


def _copy_rows(
    source: Connection,
    target: Connection,
    table_name: str,
    run_id: str,
    *,
    columns: Sequence[Any] = (),
    omit: str | None = None,
) -> None:
    """Copy the rows of one run in batches.

    Args:
        source: Connection to the database that has the rows.
        target: Connection to the database that the rows are inserted into.
        table_name: A table with a column `run_id`.
        run_id: The run.
        columns: Columns or expressions to select; all columns of the table if empty.
        omit: Column whose values the target assigns, if the table has it.
    """
    table = Base.metadata.tables[table_name]
    selected = columns or [column for column in table.columns if column.name != omit]
    batch_rows = _TRAJECTORY_BATCH_ROWS if "trajectory" in table.columns else _BATCH_ROWS
    statement = select(*selected).where(table.c.run_id == run_id).order_by(*table.primary_key.columns)
    names = [column.name for column in selected]
    for batch in source.execution_options(yield_per=batch_rows).execute(statement).partitions():
        target.execute(insert(table), [dict(zip(names, row, strict=True)) for row in batch])
