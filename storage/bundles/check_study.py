"""Check that the rows of a bundle's database are rows that this program could have written.

1. SQL conditions check each row alone: types, lengths and ranges of its values.
2. `maintenance.check_run` checks the invariants of each run: order, counts and equations.
3. Every blob is unpacked and its arrays are compared with the row.
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
from storage.column_types import get_inner_type, get_max_length
from storage.engine import Database
from storage.guards import shorten
from storage.maintenance.check_run import check_run
from storage.models import Base, EpisodeRow, EvalEpisode, ProjectionRow, SnapshotRow
from storage.queries.episodes import EMPTY_TRAJECTORY, unpack_trajectory
from storage.queries.memory import get_snapshot
from storage.queries.projections import EMBEDDING_PREFIX, get_projection

_FRACTION: Final = "BETWEEN 0 AND 1"
_STEP_IN_RUN: Final = "env_step BETWEEN 0 AND (SELECT env_steps FROM runs WHERE runs.id = run_id)"
_QUANTILES: Final = ("q05", "q25", "q50", "q75", "q95")
_RULES: Final[dict[str, tuple[str, ...]]] = {
    "runs": ("env_steps >= 0", "target_steps >= 0", f"win_rate {_FRACTION}", "json_array_length(tags) <= 60"),
    "resumes": ("env_step BETWEEN 0 AND reached_env_step", "episodes >= 0"),
    "episodes": ("episode >= 1", "first_env_step >= 1", "length >= 1", f"epsilon {_FRACTION}"),
    "eval_episodes": (_STEP_IN_RUN, "episode >= 0", "length >= 1"),
    "transitions": (
        *("env_step >= 1", "t >= 0", "delta_mem >= 0", f"beta {_FRACTION}", "tau > 0"),
        *("slot >= 0", "next_slot >= 0"),
    ),
    "transition_summary": ("bucket >= 0", "n BETWEEN 1 AND 1000", "delta_mem_n BETWEEN 0 AND n", "delta_mem_sum >= 0"),
    "gate_stats": (
        *(_STEP_IN_RUN, "tau > 0", "memory_size >= 0", f"desirable_fraction {_FRACTION}", f"beta_mean {_FRACTION}"),
        *("delta_mem_mean >= 0", "delta_mem_q05 >= 0", "beta_q05 >= 0", "beta_q95 <= 1"),
        *(f"{name}_{low} <= {name}_{high}" for name in ("delta_mem", "beta") for low, high in pairwise(_QUANTILES)),
    ),
    "metrics": (_STEP_IN_RUN,),
    "evaluations": (
        *(_STEP_IN_RUN, "episodes >= 1", "wins BETWEEN 0 AND episodes", "abs(win_rate * episodes - wins) < 0.501"),
        *("return_std >= 0", "length_mean > 0", '"distinct" BETWEEN 0 AND episodes', f"robust_win_rate {_FRACTION}"),
    ),
    "policy_evaluations": (
        *(_STEP_IN_RUN, "episodes >= 1", "wins BETWEEN 0 AND episodes", "abs(win_rate * episodes - wins) < 0.501"),
        *("return_std >= 0", "length_mean > 0", '"distinct" BETWEEN 1 AND episodes', "seed >= 0"),
    ),
    "snapshots": (_STEP_IN_RUN, "size >= 0"),
    "projections": ("seconds >= 0",),
}
_CONFIG_TYPES: Final = {"int": (int, float), "float": (int, float), "bool": bool}
_TABLES_WITH_INFINITY: Final = frozenset({"metrics", "gate_stats"})
_MAX_FLOAT: Final = 1.7e308
"""Largest absolute value where infinity is not allowed."""
_MAX_TEXT_LENGTH: Final = 1 << 20
_MAX_JSON_LENGTHS: Final = {"sweeps.plan": 64 << 20, "projections.params": 100_000, "runs.tags": 20_000}
"""For JSON columns whose limit is not `_MAX_TEXT_LENGTH`."""
_BLOB_BATCH_ROWS: Final = 64


def check_study(db: Database) -> None:
    """Check all rows of a bundle's database, which must have the current schema.

    Raises:
        StorageError: At the first error. The message names the row or the run.
    """
    with db.read() as connection:
        ids = list(connection.execute(text("SELECT id FROM runs ORDER BY id")).scalars())
        error = next(_list_row_errors(connection), None) or next(_list_config_errors(connection), None)
    if error is not None:
        raise StorageError(error, reason="unsound")
    for run_id in ids:
        _check_run(db, run_id)


def _list_row_errors(connection: Connection) -> Iterator[str]:
    """List foreign keys without a parent row, invalid values, and violated rules, with one example row each."""
    for table_name, _, parent, _ in connection.execute(text("PRAGMA foreign_key_check")):
        yield f"a row of {table_name} refers to a row of {parent} that does not exist"
    for table in Base.metadata.sorted_tables:
        for column in table.columns:
            if example := _find_row(connection, table, f"({_value_rule(column)}) IS NOT 1", column.name):
                key, value = example
                yield f"{table.name}.{column.name} contains {shorten(value)}, which is not a valid value (row {key})"
        for rule in _RULES.get(table.name, ()):
            if example := _find_row(connection, table, f"NOT ({rule})", next(iter(table.primary_key)).name):
                yield f"{table.name} violates the rule {rule} (row {example[0]})"


def _find_row(connection: Connection, table: Table, condition: str, column: str) -> tuple[str, Any] | None:
    """Find one row for which a condition is true; return its primary key as text, and its value in a column.

    Values are cut to 100 characters in SQL, so that a huge value is not loaded. A condition is not true if it is NULL.
    """
    names = [*(key.name for key in table.primary_key), column]
    selected = ", ".join(f'substr("{name}", 1, 100)' for name in names)
    row = connection.execute(text(f"SELECT {selected} FROM {table.name} WHERE {condition} LIMIT 1")).first()
    return None if row is None else (shorten("/".join(str(key) for key in row[:-1])), row[-1])


def _value_rule(column: Column[object]) -> str:
    """Return the SQL condition for a valid value of a column: its storage class, range and length."""
    sql_type, name = get_inner_type(column.type), f'"{column.name}"'
    qualified_name = f"{column.table.name}.{column.name}"
    if isinstance(sql_type, Boolean):
        rule = f"typeof({name}) = 'integer' AND {name} IN (0, 1)"
    elif isinstance(sql_type, Integer):
        rule = f"typeof({name}) = 'integer'"
    elif isinstance(sql_type, Double):
        rule = f"typeof({name}) IN ('integer', 'real')"
        if column.table.name not in _TABLES_WITH_INFINITY:
            rule += f" AND abs({name}) <= {_MAX_FLOAT}"
    elif isinstance(sql_type, LargeBinary):
        rule = f"typeof({name}) = 'blob'"
    elif isinstance(sql_type, JSON):
        max_length = _MAX_JSON_LENGTHS.get(qualified_name, _MAX_TEXT_LENGTH)
        rule = f"typeof({name}) = 'text' AND length({name}) <= {max_length} AND json_valid({name})"
    else:
        max_length = get_max_length(qualified_name) or getattr(sql_type, "length", None) or _MAX_TEXT_LENGTH
        rule = f"typeof({name}) = 'text' AND length({name}) <= {max_length}"
    return f"{name} IS NULL OR ({rule})" if column.nullable else rule


def _list_config_errors(connection: Connection) -> Iterator[str]:
    """List settings of a wrong type. Unknown settings are ignored, because they are only shown as text."""
    types = {field.key: field.type for field in describe_fields()}
    sections = {key.partition(".")[0] for key in types if "." in key}
    for run_id, stored in connection.execute(text("SELECT id, config FROM runs ORDER BY id")):
        config = json.loads(stored)
        if not isinstance(config, dict):
            yield f"run {run_id}: its config is not a JSON object"
            continue
        for name in sorted(sections & config.keys()):
            if not isinstance(config[name], dict):
                yield f"run {run_id}: its config contains {name} = {shorten(config[name])}, which is not a section"
        for key, value in cast(dict[str, Any], flatten_tree(config)).items():  # not validated: values of any type
            if key in types and value is not None and not isinstance(value, _CONFIG_TYPES.get(types[key], str)):
                yield f"run {run_id}: its config contains {key} = {shorten(value)}, which is of the wrong type"


def _check_run(db: Database, run_id: str) -> None:
    try:
        errors = [*(check_run(db, run_id)[:1] if _has_steps(db, run_id) else []), *_list_blob_errors(db, run_id)]
    except StorageError as error:
        raise StorageError(f"run {run_id}: {error}", reason=error.reason, subject=error.subject) from error
    except Exception as error:  # only the types of its settings are checked: their values can make any equation fail
        raise StorageError(f"run {run_id}: its rows cannot be checked with its config") from error
    if errors:
        raise StorageError(errors[0], reason="unsound", subject=run_id)


def _has_steps(db: Database, run_id: str) -> bool:
    """Does a run have episodes or transitions? A run that was imported from another program has only curves."""
    tables = ("episodes", "transitions", "transition_summary")
    condition = " OR ".join(f"EXISTS (SELECT 1 FROM {table} WHERE run_id = :run)" for table in tables)
    with db.read() as connection:
        return bool(connection.execute(text(f"SELECT {condition}"), {"run": run_id}).scalar_one())


def _list_blob_errors(db: Database, run_id: str) -> Iterator[str]:
    """Unpack all blobs of a run and list the rows that do not match them."""
    with db.read() as connection:
        for table in (EpisodeRow, EvalEpisode):
            statement = select(table.episode, table.length, table.trajectory).where(table.run_id == run_id)
            for row in connection.execution_options(yield_per=_BLOB_BATCH_ROWS).execute(statement):
                if table is EpisodeRow and row.trajectory == EMPTY_TRAJECTORY:
                    continue
                if len(unpack_trajectory(row.trajectory)["reward"]) != row.length:
                    yield f"run {run_id}: episode {row.episode} and its trajectory have different lengths"
        snapshots = select(SnapshotRow.id).where(SnapshotRow.run_id == run_id)
        snapshot_ids = connection.execute(snapshots).scalars().all()
        columns = select(ProjectionRow.id, ProjectionRow.method, SnapshotRow.size)
        joined = columns.join(SnapshotRow, SnapshotRow.id == ProjectionRow.snapshot_id)
        projections = connection.execute(joined.where(SnapshotRow.run_id == run_id)).all()
        episodes = set(connection.execute(select(EpisodeRow.episode).where(EpisodeRow.run_id == run_id)).scalars())
    for snapshot_id in snapshot_ids:
        snapshot = get_snapshot(db, snapshot_id)
        if (np.diff(snapshot.slot) <= 0).any() or (snapshot.slot < 0).any() or (snapshot.t < 0).any():
            yield f"snapshot {snapshot_id}: its slots are not unique and ascending, or a slot or t is negative"
        elif not set(snapshot.episode.tolist()) <= episodes:
            yield f"snapshot {snapshot_id}: a node refers to an episode that does not exist"
    for projection in projections:
        coordinates = get_projection(db, projection.id).coordinates
        is_layout = not projection.method.startswith(EMBEDDING_PREFIX)
        if len(coordinates) != projection.size or (is_layout and coordinates.shape[1] != 2):
            yield f"projection {projection.id} does not have two coordinates for every node"
