"""Check a database from any source before other code opens it: `emtc db check`.

First every row is read as plain values and checked by the same rules as a normal read: guarded columns (`guards`),
and sizes of blobs (`blobs`). If nothing is wrong, `check_contents` checks all values. Nothing is imported or changed.
Whether the rows of a run are consistent with each other is checked in `check_run`.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from sqlalchemy import Connection, LargeBinary, Table, inspect, text

from emtc_core.errors import StorageError
from emtc_core.install import get_upgrade_command
from storage.address import sqlite_address
from storage.arrays import MAX_TRAJECTORY_BYTES
from storage.blobs import MAX_BYTES, measure
from storage.column_types import get_inner_type, is_guarded, is_identifier
from storage.engine import open_untrusted, read_safely
from storage.guards import hide_passwords, shorten
from storage.maintenance.check_contents import list_content_errors
from storage.migrations import upgrade
from storage.models import Base

Kind = Literal["danger", "damage", "notice"]

_BLOB_BATCH_ROWS: Final = 64
_MIN_BUDGET_BYTES: Final = 256 << 20
_MAX_EXPANSION: Final = 200
"""All arrays of a database may have _MIN_BUDGET_BYTES, or this many times the bytes that they are stored in."""
_FLOAT8_OID: Final = 701
"""PostgreSQL's type number of float8, which SQLAlchemy's result processors for psycopg expect."""
_CONTROL_CHARACTERS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_DISPLAYED_COLUMNS: Final = {
    "runs": ("name", "env", "map", "algo", "notes", "error"),
    "sweeps": ("name",),
    "entries": ("title",),
}


@dataclass(frozen=True)
class DatabaseProblem:
    """One problem in a database.

    `danger`: it may be an attack on the reader. `damage`: it cannot be read correctly. `notice`: it can be read, and
    the user should know about it.
    """

    kind: Kind
    where: str
    """Table and key of the row, a path, "schema" or "file"."""
    what: str


@dataclass(frozen=True)
class Report:
    """The result of a check."""

    database: str
    """The URL without its password."""
    schema: str | None
    """Schema version; None if there are no tables, or if they were not read."""
    runs: int
    findings: tuple[DatabaseProblem, ...]

    @property
    def is_valid(self) -> bool:
        """Whether the database can be opened: all findings are notices."""
        return all(finding.kind == "notice" for finding in self.findings)


def check_database(
    url: str, *, is_allowed: Callable[[str], bool], packed_bytes: int | None = None, checks_contents: bool = True
) -> Report:
    """Check everything in a database that other code relies on.

    Args:
        url: URL as in `open_database`. The database may have any schema version.
        is_allowed: Whether this machine may import the module of an environment's map; see `emtc_core.envs.trust`.
        packed_bytes: Size of the file that the database was unpacked from; None: the size of its blobs.
        checks_contents: Also check every value, if nothing else is wrong. A bundle is first upgraded to this schema.

    Raises:
        StorageError: If there is no database, it belongs to another program, or it cannot be read at all.
    """
    engine, path = open_untrusted(url)
    safe_url = hide_passwords(sqlite_address(path) if path else str(engine.url))
    try:
        with read_safely(engine) as connection:
            tables = set(inspect(connection).get_table_names())
            if tables and "alembic_version" not in tables:
                raise StorageError(
                    f"{safe_url} is not a database of EMTC Lab: it contains {sorted(tables)[0]}.",
                    reason="not_a_database",
                    subject=safe_url,
                )
            errors = [
                DatabaseProblem("danger", "schema", f"it contains {trigger_or_view}, which runs SQL automatically")
                for trigger_or_view in upgrade.list_triggers_and_views(connection)
            ]
            if path:
                errors += _check_pages(connection)
            if errors:  # values that come from a view or from a damaged page are not rows
                return Report(safe_url, None, 0, tuple(errors))
            schema = upgrade.read_version(connection, safe_url)
            if path and schema in upgrade.known_versions():
                differences = upgrade.list_schema_differences(connection, schema)
                if differences:
                    findings = [DatabaseProblem("damage", "schema", f"{difference}.") for difference in differences]
                    return Report(safe_url, schema, 0, tuple(findings))
            findings = [
                *_check_schema_version(schema),
                *list_problems(connection, is_allowed=is_allowed, packed_bytes=packed_bytes),
            ]
            is_sound = all(finding.kind == "notice" for finding in findings)
            if checks_contents and is_sound and schema is not None:
                findings += [
                    DatabaseProblem("damage", error.where, f"{error.what}.")
                    for error in list_content_errors(connection)
                ]
            n_runs = _count_runs(connection)
    finally:
        engine.dispose()
    return Report(safe_url, schema, n_runs, tuple(findings))


def list_problems(
    connection: Connection, *, is_allowed: Callable[[str], bool], packed_bytes: int | None = None
) -> Iterator[DatabaseProblem]:
    """List what makes it unsafe to read the tables of a database, or to unpack its blobs.

    Args:
        connection: Connection to a database with a known schema.
        is_allowed: As in `check_database`.
        packed_bytes: As in `check_database`.
    """
    yield from _check_values(connection, is_allowed)
    yield from _check_blobs(connection, packed_bytes)


def _check_pages(connection: Connection) -> Iterator[DatabaseProblem]:
    """Check the pages of a SQLite file for damage."""
    for (line,) in connection.execute(text("PRAGMA quick_check(5)")):
        if line != "ok":
            yield DatabaseProblem("damage", "file", " ".join(str(line).replace("*** in database main ***", "").split()))


def _check_schema_version(version: str | None) -> Iterator[DatabaseProblem]:
    if version is None:
        yield DatabaseProblem("notice", "schema", "it has no tables yet. Create them with: emtc db upgrade")
    elif version < upgrade.BASELINE:
        yield DatabaseProblem(
            "damage", "schema", f"{version} is older than release 1.0. Upgrade it with EMTC Lab 1.0 first."
        )
    elif version < upgrade.SCHEMA_VERSION and version not in upgrade.known_versions():
        yield DatabaseProblem("damage", "schema", f"no version of EMTC Lab has the schema {version}.")
    elif version < upgrade.SCHEMA_VERSION:
        yield DatabaseProblem(
            "notice", "schema", f"{version} is older than {upgrade.SCHEMA_VERSION}. Use: emtc db upgrade"
        )
    elif version > upgrade.SCHEMA_VERSION:
        yield DatabaseProblem(
            "damage", "schema", f"{version} is newer than this program. Upgrade with: {get_upgrade_command()}"
        )


def _check_values(connection: Connection, is_allowed: Callable[[str], bool]) -> Iterator[DatabaseProblem]:
    """Check the guarded columns that are not blobs, and the names of modules."""
    for table in _list_tables(connection):
        existing = {column["name"] for column in inspect(connection).get_columns(table.name)}
        readers = {
            column.name: column.type.dialect_impl(connection.dialect).result_processor(connection.dialect, _FLOAT8_OID)
            for column in table.columns
            if is_guarded(column)
            and column.name in existing
            and not isinstance(get_inner_type(column.type), LargeBinary)
        }
        if not readers:
            continue
        names = ", ".join(f'"{name}"' for name in readers)
        for row in connection.execute(text(f"SELECT {names} FROM {table.name}")).mappings():
            where = f"{table.name} {shorten(row.get('id', row.get('run_id')))}"
            yield from _check_row(table.name, where, row, readers)
            for map in sorted(set(_list_module_maps(table.name, row))):
                if not is_allowed(map):
                    what = f"its map {shorten(map)} is a module to import, which this machine does not allow."
                    yield DatabaseProblem("danger", where, what)


def _check_row(
    table_name: str, where: str, row: Mapping[Any, Any], readers: Mapping[str, Callable[[Any], Any] | None]
) -> Iterator[DatabaseProblem]:
    """Read each value as a normal read does.

    Args:
        table_name: The table.
        where: Text for `DatabaseProblem.where`.
        row: Raw values.
        readers: Column → its result processor, which raises StorageError; None if the raw value is used.
    """
    for name, read in readers.items():
        try:
            value = read(row[name]) if read else row[name]
        except StorageError as error:
            kind: Kind = "danger" if is_identifier(f"{table_name}.{name}") else "damage"
            yield DatabaseProblem(kind, where, error.message)
            continue
        is_displayed = name in _DISPLAYED_COLUMNS.get(table_name, ())
        if is_displayed and isinstance(value, str) and _CONTROL_CHARACTERS.search(value):
            yield DatabaseProblem("notice", where, f"{name} contains control characters, which are shown as text.")


def _list_module_maps(table_name: str, row: Mapping[Any, Any]) -> Iterator[str]:
    """List the maps in a row that are import paths, from all places that other code reads a map from."""
    if table_name == "runs":
        env = _parse_object(_parse_object(row.get("config")).get("env"))
        if row.get("env") == "pettingzoo":
            yield str(row.get("map"))
        if env.get("name") == "pettingzoo":
            yield str(env.get("map"))
    elif table_name == "sweeps":
        file = _parse_object(_parse_object(row.get("plan")).get("file"))
        if file.get("env") == "pettingzoo":
            maps = file.get("map")
            yield from (str(map) for map in (maps if isinstance(maps, list) else [maps]))


def _check_blobs(connection: Connection, packed_bytes: int | None) -> Iterator[DatabaseProblem]:
    """Check the header, frames and unpacked size of every blob, and the size of all, without unpacking them."""
    stored = unpacked = 0
    for table in _list_tables(connection):
        blobs = [column.name for column in table.columns if isinstance(get_inner_type(column.type), LargeBinary)]
        if not blobs:
            continue
        has_trajectories = table.name.endswith("episodes")
        keys = [column.name for column in table.primary_key]
        names = ", ".join(f'"{name}"' for name in (*keys, *blobs))
        statement = text(f"SELECT {names} FROM {table.name}")
        for row in connection.execution_options(yield_per=_BLOB_BATCH_ROWS).execute(statement).mappings():
            where = f"{table.name} {shorten('/'.join(str(row[key]) for key in keys))}"
            for name in blobs:
                blob = row[name] if isinstance(row[name], bytes) else b""
                stored += len(blob)
                try:
                    unpacked += measure(blob, max_bytes=MAX_TRAJECTORY_BYTES if has_trajectories else MAX_BYTES)
                except StorageError as error:
                    kind: Kind = "danger" if error.reason == "too_large" else "damage"
                    yield DatabaseProblem(kind, where, f"{name}: {error}")
    budget = max(_MIN_BUDGET_BYTES, _MAX_EXPANSION * (stored if packed_bytes is None else packed_bytes))
    if unpacked > budget:
        what = f"its arrays unpack to {unpacked:,} bytes; for this file at most {budget:,} are allowed."
        yield DatabaseProblem("danger", "file", what)


def _count_runs(connection: Connection) -> int:
    """Count the runs; 0 if there are no tables."""
    if "runs" not in inspect(connection).get_table_names():
        return 0
    return int(connection.execute(text("SELECT count(*) FROM runs")).scalar_one())


def _list_tables(connection: Connection) -> list[Table]:
    """List the tables of the current schema that the database has."""
    existing = set(inspect(connection).get_table_names())
    return [table for table in Base.metadata.sorted_tables if table.name in existing]


def _parse_object(value: Any) -> Mapping[str, Any]:
    """Parse a JSON object, which SQLite stores as text. Any other value gives an empty object."""
    try:
        parsed = json.loads(value) if isinstance(value, str | bytes) else value
    except (ValueError, RecursionError):
        return {}
    return parsed if isinstance(parsed, Mapping) else {}
