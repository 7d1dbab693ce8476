"""Check references and settings in a database from any source. Nothing is changed."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from sqlalchemy import Connection, text

from emtc_core.config.resolve import describe_fields, flatten_stored
from emtc_core.config.values import FieldInfo
from storage.guards import shorten
from storage.runs.rows import imported_label

_MAX_SLOTS: Final = 50_000_000
"""Upper bound of `memory.capacity`."""
_CONFIG_TYPES: Final = {"int": (int, float), "float": (int, float), "bool": bool}


@dataclass(frozen=True)
class ContentError:
    """One invalid value."""

    where: str
    """Table and key of the row."""
    what: str
    """The row and its error, without a period."""


def list_content_errors(connection: Connection) -> Iterator[ContentError]:
    """List the invalid values of a database whose tables have the columns of a known schema.

    Settings are only checked if all rows are valid.
    """
    is_valid = True
    for check in (_list_row_errors, _list_config_errors, _list_size_errors):
        for error in check(connection) if is_valid else ():
            is_valid = False
            yield error


def _list_row_errors(connection: Connection) -> Iterator[ContentError]:
    if connection.dialect.name == "sqlite":
        for table, _, parent, _ in connection.execute(text("PRAGMA foreign_key_check")):
            yield ContentError(table, f"a row of {table} refers to a row of {parent} that does not exist")


def _list_config_errors(connection: Connection) -> Iterator[ContentError]:
    """List invalid settings. Unknown settings are ignored, because they are only shown as text."""
    fields = {field.key: field for field in describe_fields()}
    sections = {key.partition(".")[0] for key in fields if "." in key}
    for row in connection.execute(text("SELECT id, env, map, algo, seed, config FROM runs ORDER BY id")):
        where, config = f"runs {shorten(row.id)}", _parse_json(row.config)
        if not isinstance(config, dict):
            yield ContentError(where, f"run {row.id}: its config is not a JSON object")
            continue
        wrong_sections = [name for name in sorted(sections & config.keys()) if not isinstance(config[name], dict)]
        for name in wrong_sections:
            what = f"run {row.id}: its config contains {name} = {shorten(config[name])}, which is not a section"
            yield ContentError(where, what)
        if wrong_sections:
            continue
        identity = {"env.name": row.env, "env.map": row.map, "algo": row.algo, "seed": row.seed}
        values = cast(dict[str, Any], flatten_stored(config))  # not validated: values of any type
        for key, value in identity.items():
            if values.get(key) != value:
                stored = shorten(values.get(key))
                yield ContentError(
                    where, f"run {row.id}: its config contains {key} = {stored}, but the run has {shorten(value)}"
                )
        has_bounds = imported_label(config) is None  # another program has other bounds
        for key, value in values.items():
            if key in fields and (expected := _explain_setting(fields[key], value, has_bounds=has_bounds)):
                what = f"run {row.id}: its config contains {key} = {shorten(value)}, which {expected}"
                yield ContentError(where, what)


def _explain_setting(field: FieldInfo, value: Any, *, has_bounds: bool) -> str:
    """Explain why the value of a setting is invalid; empty if it is valid. Choices may be those of another version."""
    if value is None or value in field.words:
        return ""
    number = value
    if not isinstance(value, _CONFIG_TYPES.get(field.type, str)):
        return "is of the wrong type"
    if not has_bounds or field.type not in ("int", "float"):
        return ""
    if field.minimum is not None and (number < field.minimum or (field.minimum_open and number == field.minimum)):
        return f"must be {'>' if field.minimum_open else '>='} {field.minimum:g}"
    return f"must be <= {field.maximum:g}" if field.maximum is not None and number > field.maximum else ""


def _list_size_errors(connection: Connection) -> Iterator[ContentError]:
    """List snapshots with more nodes than the memory of their run can have. Nothing is unpacked."""
    statement = text(
        "SELECT snapshots.id, run_id, size, config, "
        "(SELECT count(*) FROM episodes WHERE episodes.run_id = runs.id) AS n_episodes, "
        "(SELECT sum(n) FROM transition_summary WHERE transition_summary.run_id = runs.id) AS n_steps "
        "FROM snapshots JOIN runs ON runs.id = run_id ORDER BY snapshots.id"
    )
    for row in connection.execute(statement):
        memory = _get_memory(_parse_json(row.config))
        limit = _get_capacity(memory)
        if memory.get("replay_refresh", "none") == "none":  # otherwise a state can be written more than once
            n_steps = int(row.n_steps or 0)  # counted, because a row of `runs` can claim any number
            limit = min(limit, n_steps + row.n_episodes)  # an episode visits one state more than it has steps
        if row.size > limit:
            what = (
                f"snapshot {row.id} has {row.size:,} nodes, but the memory of run {row.run_id} has at most {limit:,} "
                f"after its {int(row.n_steps or 0):,} env steps"
            )
            yield ContentError(f"snapshots {row.id}", what)


def _parse_json(stored: Any) -> Any:
    """Parse a JSON value, which SQLite stores as text; None if it is nested too deeply."""
    try:
        return json.loads(stored) if isinstance(stored, str | bytes) else stored
    except (ValueError, RecursionError):
        return None


def _get_memory(config: Any) -> Mapping[str, Any]:
    """Return the section `memory` of a stored configuration; empty if it has none."""
    memory = config.get("memory") if isinstance(config, dict) else None
    return memory if isinstance(memory, dict) else {}


def _get_capacity(memory: Mapping[str, Any]) -> int:
    """Return the largest number of nodes of a memory."""
    capacity = memory.get("capacity")
    return int(max(0, min(capacity, _MAX_SLOTS))) if isinstance(capacity, int | float) else _MAX_SLOTS
