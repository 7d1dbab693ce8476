"""What a bundle holds, and how the rows of a run go from one database to another.

The same copy makes a bundle of one's own runs and takes a stranger's runs in: every value is looked at on its way, what
belongs to a process or a machine (who trains, who may write, on which host, where files lie) stays behind, and so do
hidden and archived marks. A run that was at work arrives as stopped. Jobs, commands and checkpoints are never copied,
notebook entries only into a bundle that asks for them.

A snapshot may go as a sample, whole episodes of its nodes, so that a small bundle can show a big memory. What a sample
cannot say, the manifest does: how many nodes of each snapshot were kept at most. A link to a node that was left out
stays as it was recorded, and its Δ_mem and β with it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Column, Connection, Table, case, insert, literal, select
from sqlalchemy.types import Double, Integer, LargeBinary

from emtc_core.errors import StorageError
from storage.blobs import pack, unpack_as, unpack_one
from storage.column_types import unguarded
from storage.frames import wrong_value
from storage.models import Base, ProjectionRow, Run, SnapshotRow, SweepRow
from storage.queries.episodes import THINNED
from storage.queries.memory import EMBEDDING, SNAPSHOT_FORMS
from storage.runs.labels import MOST_TAGS

_NOBODY_S: Final = dict.fromkeys(
    ("pid", "pid_created_at", "host", "launch_token", "owner_token", "claimed_at", "hidden_at", "archived_at", "files")
)
_AT_WORK: Final = frozenset({"queued", "running", "paused"})
_ALWAYS: Final = ("resumes", "evaluations", "policy_evaluations", "metrics", "gate_stats", "transition_summary")
_ROWS_AT_ONCE: Final = 5_000
_BLOB_ROWS_AT_ONCE: Final = 64
_NO_EPISODES: Final[frozenset[int]] = frozenset()

_SEED: Final = 0


@dataclass(frozen=True)
class Contents:
    """What is copied of each run, besides its configuration, curves and the outcomes of its episodes."""

    snapshots: bool = True
    """The memory over time, with its projections."""
    playbacks: bool = True
    """The greedy episodes that evaluations kept."""
    transitions: bool = True
    """Every training step with its verdict, or none: then there are their sums over 1,000 steps."""
    trajectories: bool = False
    """States and actions of every training episode."""
    chosen: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """Run id → training episodes whose states and actions go along, whatever else stays behind."""
    samples: Mapping[str, int] = field(default_factory=dict)
    """Run id → how many snapshots of it go along as samples of their nodes, where `snapshots` is off."""
    sample_nodes: int = 6_000
    """Nodes in each of those at most."""
    entries: bool = False
    """The notebook's entries about these runs."""

    def describe(self) -> dict[str, Any]:
        """The contents as a manifest holds them."""
        kinds = {name: value for name, value in vars(self).items() if isinstance(value, bool)}
        sampled = {"sampled": dict(self.samples), "sample_nodes": self.sample_nodes} if self.samples else {}
        return kinds | sampled | {"episodes": {run_id: sorted(numbers) for run_id, numbers in self.chosen.items()}}


THIN: Final = Contents(snapshots=False, playbacks=False, transitions=False)
WHOLE: Final = Contents(trajectories=True)


def copy_runs(
    source: Connection,
    target: Connection,
    run_ids: Sequence[str],
    contents: Contents,
    *,
    renumber: bool = False,
    tag: str = "",
) -> None:
    """Copy runs with their sweeps; both connections are in one transaction of their own.

    Args:
        source: Where from.
        target: Where to; none of the runs is there.
        run_ids: The runs.
        contents: What of them.
        renumber: Give snapshots and projections new numbers, where others have theirs already.
        tag: Put on each run, where there is room for one more.

    Raises:
        StorageError: If a value is not of its column's kind.
    """
    _copy_sweeps(source, target, run_ids)
    for run_id in run_ids:
        row = source.execute(select(Run.__table__).where(Run.id == run_id)).mappings().one()
        target.execute(insert(Run), _ended(dict(row)) | _NOBODY_S | _tagged(row["tags"], tag))
        for name in _ALWAYS:
            _copy(source, target, name, _of_run(name, run_id), without=("id",))
        _copy_episodes(source, target, run_id, contents)
        if contents.playbacks:
            _copy(source, target, "eval_episodes", _of_run("eval_episodes", run_id))
        if contents.snapshots:
            _copy_snapshots(source, target, run_id, renumber=renumber)
        elif run_id in contents.samples:
            _copy_samples(source, target, run_id, contents)
        if contents.entries:
            _copy(source, target, "entries", _of_run("entries", run_id))


def _copy_sweeps(source: Connection, target: Connection, run_ids: Sequence[str]) -> None:
    named = {row.sweep_id for run_id in run_ids for row in source.execute(select(Run.sweep_id).where(Run.id == run_id))}
    for sweep_id in sorted(each for each in named if each):
        row = source.execute(select(SweepRow.__table__).where(SweepRow.id == sweep_id)).mappings().one_or_none()
        known = target.execute(select(SweepRow.id).where(SweepRow.id == sweep_id)).first()
        if row is not None and known is None:
            nobody = {"pid": None, "pid_created_at": None, "host": None}
            status = "stopped" if row["status"] == "running" else row["status"]
            target.execute(insert(SweepRow), dict(row) | nobody | {"status": status})


def _tagged(tags: Any, tag: str) -> dict[str, Any]:
    known = tags if isinstance(tags, list) else []
    return {"tags": sorted({*known, tag})} if tag and len(known) < MOST_TAGS else {}


def _ended(row: dict[str, Any]) -> dict[str, Any]:
    if row["status"] not in _AT_WORK:
        return row
    ended = row["ended_at"] or row["heartbeat_at"] or datetime.now(UTC)
    return row | {"status": "stopped", "ended_at": ended}


def _copy_episodes(source: Connection, target: Connection, run_id: str, contents: Contents) -> None:
    chosen = contents.chosen.get(run_id, _NO_EPISODES)
    table = _table("episodes")
    if contents.trajectories:
        _copy(source, target, "episodes", _of_run("episodes", run_id))
    else:
        packed = case((table.c.episode.in_(chosen), table.c.trajectory), else_=literal(THINNED)).label("trajectory")
        columns = [packed if column.name == "trajectory" else column for column in table.columns]
        _copy(source, target, "episodes", _of_run("episodes", run_id), columns=columns)
    if contents.transitions:
        _copy(source, target, "transitions", _of_run("transitions", run_id))


def _copy_snapshots(source: Connection, target: Connection, run_id: str, *, renumber: bool) -> None:
    table, projections = _table("snapshots"), _table("projections")
    ids = source.execute(select(SnapshotRow.id).where(SnapshotRow.run_id == run_id).order_by(SnapshotRow.env_step))
    for snapshot_id in ids.scalars().all():
        row = dict(source.execute(select(table).where(table.c.id == snapshot_id)).mappings().one())
        _check_row(table, row)
        without = {"id"} if renumber else set[str]()
        kept = {name: value for name, value in row.items() if name not in without}
        new = target.execute(insert(table).returning(table.c.id), kept).scalar_one()
        drawn = select(projections).where(ProjectionRow.snapshot_id == snapshot_id).order_by(ProjectionRow.id)
        for each in source.execute(drawn).mappings().all():
            values = {str(name): value for name, value in each.items() if name not in without}
            _check_row(projections, values)
            target.execute(insert(projections), values | {"snapshot_id": new})


def _copy_samples(source: Connection, target: Connection, run_id: str, contents: Contents) -> None:
    asked = select(SnapshotRow.id, SnapshotRow.env_step).where(SnapshotRow.run_id == run_id)
    rows = source.execute(asked.order_by(SnapshotRow.env_step)).all()
    first = contents.chosen.get(run_id, _NO_EPISODES)
    for place in spread_over([row.env_step for row in rows], contents.samples[run_id]):
        whole = select(_table("snapshots")).where(SnapshotRow.id == rows[place].id)
        row = dict(source.execute(whole).mappings().one())
        kept = choose_nodes(row, contents.sample_nodes, first)
        row = sample_nodes(row, kept)
        _check_row(_table("snapshots"), row)
        target.execute(insert(SnapshotRow), row)
        _copy_embeddings(source, target, int(row["id"]), kept)


def _copy_embeddings(source: Connection, target: Connection, snapshot_id: int, kept: NDArray[np.int64]) -> None:
    """Copy what fresh embedders made of a snapshot, for the nodes that go along; layouts are drawn again."""
    table = _table("projections")
    fitted = select(table).where(table.c.snapshot_id == snapshot_id, table.c.method.startswith(EMBEDDING))
    for each in source.execute(fitted.order_by(table.c.id)).mappings().all():
        row = sample_coordinates(each, kept)
        _check_row(table, row)
        target.execute(insert(table), row)


def _copy(
    source: Connection,
    target: Connection,
    name: str,
    wanted: Sequence[Any],
    *,
    columns: Sequence[Any] = (),
    without: Sequence[str] = (),
) -> None:
    table = _table(name)
    chosen = columns or [column for column in table.columns if column.name not in without]
    at_once = _BLOB_ROWS_AT_ONCE if _has_blob(table) else _ROWS_AT_ONCE
    ordered = select(*chosen).where(*wanted).order_by(*table.primary_key.columns)
    rows = source.execution_options(yield_per=at_once).execute(ordered).mappings()
    for some in _parts(rows, at_once):
        for row in some:
            _check_row(table, row)
        target.execute(insert(table), some)


def _parts(rows: Any, size: int) -> Iterator[list[dict[str, Any]]]:
    rows = iter(rows)
    while some := [dict(row) for row in islice(rows, size)]:
        yield some


def _check_row(table: Table, row: Mapping[str, Any]) -> None:
    """SQLite stores anything in any column; a stranger's row is taken only if its values are what they claim.

    Raises:
        StorageError: If a value is not of its column's kind.
    """
    for name, value in row.items():
        if value is None or isinstance(value, _python_kinds(table.columns[name])):
            continue
        raise wrong_value(f"{table.name}.{name}", [value if isinstance(value, str | bytes) else repr(value)])


def _python_kinds(column: Column[Any]) -> tuple[type, ...]:
    known = _KINDS.get((column.table.name, column.name))
    if known is None:
        kind = unguarded(column.type)
        known = (object,)
        for of, allowed in ((Integer, (int,)), (Double, (int, float)), (LargeBinary, (bytes,))):
            if isinstance(kind, of):
                known = allowed
        _KINDS[column.table.name, column.name] = known
    return known


_KINDS: dict[tuple[str, str], tuple[type, ...]] = {}


def _table(name: str) -> Table:
    return Base.metadata.tables[name]


def _of_run(name: str, run_id: str) -> list[Any]:
    return [_table(name).c.run_id == run_id]


def _has_blob(table: Table) -> bool:
    return any(isinstance(unguarded(column.type), LargeBinary) for column in table.columns)


def list_present(connection: Connection, run_ids: Sequence[str]) -> list[str]:
    """List those of these runs that a database has."""
    return [each for each in run_ids if connection.execute(select(Run.id).where(Run.id == each)).first()]


def refuse_empty(run_ids: Sequence[str]) -> None:
    """Refuse a bundle of nothing.

    Raises:
        StorageError: If there is no run.
    """
    if not run_ids:
        raise StorageError("A bundle holds at least one run. List what there is with: emtc runs", reason="no_runs")


def spread_over(steps: Sequence[int], n: int) -> list[int]:
    """At most `n` places among ascending env steps, the last one always, the others evenly spaced in env steps."""
    if len(steps) <= n:
        return list(range(len(steps)))
    wanted = np.linspace(0, steps[-1], n + 1)[1:]
    return sorted({int(np.abs(np.asarray(steps) - step).argmin()) for step in wanted})


def choose_nodes(row: Mapping[Any, Any], most: int, first: frozenset[int] = frozenset()) -> NDArray[np.int64]:
    """Ascending places of at most `most` nodes in a row of `snapshots`, of as many whole episodes as fit.

    Args:
        row: A row of the table, its columns packed.
        most: Nodes to keep.
        first: Episodes that are kept before others are drawn.
    """
    return _choose_rows(unpack_one(row["episode"], SNAPSHOT_FORMS["episode"]), most, first)


def sample_nodes(row: Mapping[Any, Any], kept: NDArray[np.int64]) -> dict[str, Any]:
    """A row of `snapshots`, its columns packed, with these of its nodes alone."""
    states = unpack_as(row["state"], {"state_rows": "i1", "state": "f2"})
    here = np.isin(states["state_rows"], kept)
    state_rows = np.searchsorted(kept, states["state_rows"][here])
    packed: dict[str, Any] = {
        name: pack({name: unpack_one(row[name], form)[kept]}) for name, form in SNAPSHOT_FORMS.items()
    }
    packed["state"] = pack({"state_rows": state_rows, "state": states["state"][here]})
    return {**row, **packed, "size": len(kept)}


def sample_coordinates(row: Mapping[Any, Any], kept: NDArray[np.int64]) -> dict[str, Any]:
    """A row of `projections`, its coordinates packed, of these nodes alone."""
    coordinates = unpack_one(row["coordinates"], "f2")[kept]
    return {**row, "coordinates": pack({"coordinates": coordinates})}


def _choose_rows(episode: NDArray[np.int64], most: int, first: frozenset[int]) -> NDArray[np.int64]:
    """Ascending rows of whole episodes, the wanted ones and then drawn ones, until the next would be too many."""
    known, counts = np.unique(episode, return_counts=True)
    drawn = np.random.default_rng(_SEED).permutation(len(known))
    order = np.concatenate([drawn[np.isin(known[drawn], list(first))], drawn[~np.isin(known[drawn], list(first))]])
    chosen = order[np.cumsum(counts[order]) <= most]
    return np.flatnonzero(np.isin(episode, known[chosen]))
