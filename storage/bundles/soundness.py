"""Whether the database of a bundle is one that this program could have written, asked of every row of it.

What stands in one row (kinds, lengths, ranges) is asked in SQL; then each run is judged by the invariants that hold for
one's own runs (`maintenance.check_run`: order, counts, equations), and every blob is read as its page would read it.
"""

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final, cast

import numpy as np
from sqlalchemy import Column, Connection, Table, select, text
from sqlalchemy.types import JSON, Boolean, Double, Integer, LargeBinary

from emtc_core.config.resolve import describe_fields, flatten_tree
from emtc_core.errors import StorageError
from storage.column_types import longest, unguarded
from storage.engine import Database
from storage.guards import shorten
from storage.maintenance.check_run import check_run
from storage.models import Base, EpisodeRow, EvalEpisode, ProjectionRow, SnapshotRow
from storage.queries.episodes import THINNED, read_arrays
from storage.queries.memory import EMBEDDING, get_projection, get_snapshot

_FRACTION: Final = "BETWEEN 0 AND 1"
_WITHIN: Final = "env_step BETWEEN 0 AND (SELECT env_steps FROM runs WHERE runs.id = run_id)"
_QUANTILES: Final = ("q05", "q25", "q50", "q75", "q95")
_RANGES: Final[dict[str, tuple[str, ...]]] = {
    "runs": ("env_steps >= 0", "target_steps >= 0", f"win_rate {_FRACTION}", "json_array_length(tags) <= 60"),
    "resumes": ("env_step BETWEEN 0 AND reached_env_step", "episodes >= 0"),
    "episodes": ("episode >= 1", "first_env_step >= 1", "length >= 1", f"epsilon {_FRACTION}"),
    "eval_episodes": (_WITHIN, "episode >= 0", "length >= 1"),
    "transitions": (
        *("env_step >= 1", "t >= 0", "delta_mem >= 0", f"beta {_FRACTION}", "tau > 0"),
        *("slot >= 0", "next_slot >= 0"),
    ),
    "transition_summary": ("bucket >= 0", "n BETWEEN 1 AND 1000", "delta_mem_n BETWEEN 0 AND n", "delta_mem_sum >= 0"),
    "gate_stats": (
        *(_WITHIN, "tau > 0", "memory_size >= 0", f"desirable_fraction {_FRACTION}", f"beta_mean {_FRACTION}"),
        *("delta_mem_mean >= 0", "delta_mem_q05 >= 0", "beta_q05 >= 0", "beta_q95 <= 1"),
        *(f"{name}_{low} <= {name}_{high}" for name in ("delta_mem", "beta") for low, high in pairwise(_QUANTILES)),
    ),
    "metrics": (_WITHIN,),
    "evaluations": (
        *(_WITHIN, "episodes >= 1", "wins BETWEEN 0 AND episodes", "abs(win_rate * episodes - wins) < 0.501"),
        *("return_std >= 0", "length_mean > 0", '"distinct" BETWEEN 0 AND episodes', f"robust_win_rate {_FRACTION}"),
    ),
    "policy_evaluations": (
        *(_WITHIN, "episodes >= 1", "wins BETWEEN 0 AND episodes", "abs(win_rate * episodes - wins) < 0.501"),
        *("return_std >= 0", "length_mean > 0", '"distinct" BETWEEN 1 AND episodes', "seed >= 0"),
    ),
    "snapshots": (_WITHIN, "size >= 0"),
    "projections": ("seconds >= 0",),
}
_SETTINGS: Final = {"int": (int, float), "float": (int, float), "bool": bool}
_MAY_BE_INFINITE: Final = frozenset({"metrics", "gate_stats"})
_LARGEST: Final = 1.7e308
_LONGEST_JSON: Final = {"sweeps.plan": 64 << 20, "projections.params": 100_000, "runs.tags": 20_000}
_LONGEST_TEXT: Final = 1 << 20
_BLOBS_AT_ONCE: Final = 64


def check_study(db: Database) -> None:
    """Refuse a bundle's database, which has this version's schema, for the first thing that is wrong with it.

    Raises:
        StorageError: In one sentence, which names the row.
    """
    with db.read() as connection:
        ids = list(connection.execute(text("SELECT id FROM runs ORDER BY id")).scalars())
        wrong = next(_wrong_rows(connection), None) or next(_wrong_settings(connection), None)
    if wrong is not None:
        raise StorageError(wrong, reason="unsound")
    for run_id in ids:
        _check_run(db, run_id)


def _wrong_rows(connection: Connection) -> Iterator[str]:
    for table, _, parent, _ in connection.execute(text("PRAGMA foreign_key_check")):
        yield f"a row of {table} has no {parent}"
    for table in Base.metadata.sorted_tables:
        for column in table.columns:
            yield from _breach(connection, table, _kind(column), f"{table.name}.{column.name}", column.name)
        for rule in _RANGES.get(table.name, ()):
            yield from _breach(connection, table, rule, table.name, None, is_range=True)


def _wrong_settings(connection: Connection) -> Iterator[str]:
    """Settings of other kinds than theirs; what no version knows is text, and is left as it is."""
    kinds = {field.key: field.type for field in describe_fields()}
    sections = {key.partition(".")[0] for key in kinds if "." in key}
    for run_id, stored in connection.execute(text("SELECT id, config FROM runs ORDER BY id")):
        config = json.loads(stored)
        if not isinstance(config, dict):
            yield f"run {run_id}: its settings are no settings"
            continue
        for name in sorted(sections & config.keys()):
            if not isinstance(config[name], dict):
                yield f"run {run_id}: its settings hold {name} = {shorten(config[name])}, which is no section"
        for key, value in cast(dict[str, Any], flatten_tree(config)).items():  # a stranger's values are of any kind
            if key in kinds and value is not None and not isinstance(value, _SETTINGS.get(kinds[key], str)):
                yield f"run {run_id}: its settings hold {key} = {shorten(value)}, which is of another kind"


def _breach(
    connection: Connection, table: Table, rule: str, what: str, shown: str | None, *, is_range: bool = False
) -> Iterator[str]:
    """Look for one row in which a rule does not hold; a range holds where there is no value."""
    keys = [*(column.name for column in table.primary_key), *([shown] if shown else [])]
    names = ", ".join(f'substr("{name}", 1, 100)' for name in keys)
    broken = f"NOT ({rule})" if is_range else f"({rule}) IS NOT 1"
    row = connection.execute(text(f"SELECT {names} FROM {table.name} WHERE {broken} LIMIT 1")).first()
    if row is not None:
        value = f" holds {shorten(row[-1])}, which it never does" if shown else f" breaks the rule {rule}"
        yield f"{what}{value} (row {shorten('/'.join(str(key) for key in row[: len(table.primary_key)]))})"


def _kind(column: Column[object]) -> str:
    """What a value of a column must be, in SQL."""
    kind, name = unguarded(column.type), f'"{column.name}"'
    stored = f"typeof({name})"
    limit = _LARGEST if column.table.name not in _MAY_BE_INFINITE else None
    if isinstance(kind, Boolean):
        rule = f"{stored} = 'integer' AND {name} IN (0, 1)"
    elif isinstance(kind, Integer):
        rule = f"{stored} = 'integer'"
    elif isinstance(kind, Double):
        rule = f"{stored} IN ('integer', 'real')" + (f" AND abs({name}) <= {limit}" if limit else "")
    elif isinstance(kind, LargeBinary):
        rule = f"{stored} = 'blob'"
    elif isinstance(kind, JSON):
        most = _LONGEST_JSON.get(f"{column.table.name}.{column.name}", _LONGEST_TEXT)
        rule = f"{stored} = 'text' AND length({name}) <= {most} AND json_valid({name})"
    else:
        most = longest(f"{column.table.name}.{column.name}") or getattr(kind, "length", None) or _LONGEST_TEXT
        rule = f"{stored} = 'text' AND length({name}) <= {most}"
    return f"{name} IS NULL OR ({rule})" if column.nullable else rule


def _check_run(db: Database, run_id: str) -> None:
    try:
        wrong = [*(check_run(db, run_id)[:1] if _has_steps(db, run_id) else []), *_wrong_blobs(db, run_id)]
    except StorageError as error:
        raise StorageError(f"run {run_id}: {error}", reason=error.reason, subject=error.subject) from error
    except Exception as error:  # its settings were checked by nobody, and what they do to arithmetic is theirs
        raise StorageError(f"run {run_id}: its rows cannot be judged by its settings") from error
    if wrong:
        raise StorageError(wrong[0], reason="unsound", subject=run_id)


def _has_steps(db: Database, run_id: str) -> bool:
    """Whether a run has more than curves, as what others measured has."""
    tables = ("episodes", "transitions", "transition_summary")
    found = " OR ".join(f"EXISTS (SELECT 1 FROM {table} WHERE run_id = :run)" for table in tables)
    with db.read() as connection:
        return bool(connection.execute(text(f"SELECT {found}"), {"run": run_id}).scalar_one())


def _wrong_blobs(db: Database, run_id: str) -> Iterator[str]:
    with db.read() as connection:
        yield from _wrong_trajectories(connection, run_id)
        ids = connection.execute(select(SnapshotRow.id).where(SnapshotRow.run_id == run_id)).scalars().all()
        drawn = select(ProjectionRow.id, ProjectionRow.method, SnapshotRow.size).join(
            SnapshotRow, SnapshotRow.id == ProjectionRow.snapshot_id
        )
        projections = connection.execute(drawn.where(SnapshotRow.run_id == run_id)).all()
        episodes = set(connection.execute(select(EpisodeRow.episode).where(EpisodeRow.run_id == run_id)).scalars())
    for snapshot_id in ids:
        snapshot = get_snapshot(db, snapshot_id)
        if (np.diff(snapshot.slot) <= 0).any() or (snapshot.slot < 0).any() or (snapshot.t < 0).any():
            yield f"snapshot {snapshot_id} does not list its nodes once each, in order"
        elif not set(snapshot.episode.tolist()) <= episodes:
            yield f"snapshot {snapshot_id} names episodes that are not there"
    for row in projections:
        coordinates = get_projection(db, row.id).coordinates
        if len(coordinates) != row.size or (coordinates.shape[1] != 2 and not row.method.startswith(EMBEDDING)):
            yield f"projection {row.id} has not two coordinates for every node"


def _wrong_trajectories(connection: Connection, run_id: str) -> Iterator[str]:
    for table in (EpisodeRow, EvalEpisode):
        rows = select(table.episode, table.length, table.trajectory).where(table.run_id == run_id)
        for row in connection.execution_options(yield_per=_BLOBS_AT_ONCE).execute(rows):
            if (table is EvalEpisode or row.trajectory != THINNED) and len(
                read_arrays(row.trajectory)["reward"]
            ) != row.length:
                yield f"run {run_id}: episode {row.episode} is not as long as its trajectory"
