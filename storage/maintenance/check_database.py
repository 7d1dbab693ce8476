"""Look at a database of unknown origin before anything trusts it: `emtc db check`.

Every row is read as plain values and judged by the rules that its readers use: the guards of columns (`guards`), the
sizes of blobs (`blobs`), the folders of runs (`files`). Nothing is unpacked, imported, followed or changed. That the
rows of a sound run agree with each other is another question (`check`).
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sqlalchemy import Column, Connection, LargeBinary, Table, inspect, text
from sqlalchemy.engine import Dialect

from emtc_core.errors import StorageError
from emtc_core.install import how_to_upgrade
from storage.address import sqlite_address
from storage.blobs import measure
from storage.column_types import is_guarded, is_identifier, unguarded
from storage.engine import files_root_of, open_unchecked, read_safely
from storage.files.places import why_no_place
from storage.guards import IDENTIFIER, hide_passwords, shorten
from storage.migrations import upgrade
from storage.models import Base
from storage.private_files import find_special_files
from storage.queries.episodes import MOST_TRAJECTORY_BYTES

Kind = Literal["danger", "damage", "notice"]
_BLOBS_AT_ONCE = 64
_FLOAT8 = 701  # PostgreSQL's number of the type, which its driver asks for
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_SHOWN_TEXTS = {"runs": ("name", "env", "map", "algo", "notes", "error"), "sweeps": ("name",), "entries": ("title",)}


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong.

    `danger`: it was made to do something to its reader. `damage`: it cannot be read as it should be. `notice`: it is
    read, and this is what to know.
    """

    kind: Kind
    where: str
    what: str


@dataclass(frozen=True)
class Report:
    """What a look at a database found."""

    database: str
    schema: str | None
    runs: int
    findings: tuple[Finding, ...]

    @property
    def is_sound(self) -> bool:
        """Whether every page may open it."""
        return all(finding.kind == "notice" for finding in self.findings)


def check_database(url: str, *, is_allowed: Callable[[str], bool]) -> Report:
    """Look at everything in a database that its readers depend on.

    Args:
        url: As `open_database` takes it; the database may be of any schema.
        is_allowed: Whether this machine imports the module of an environment's map, as `emtc_core.envs.trust` says.

    Raises:
        StorageError: If there is no database, or it cannot be read at all.
    """
    engine, path = open_unchecked(url)
    shown = hide_passwords(sqlite_address(path) if path else str(engine.url))
    try:
        with read_safely(engine) as connection:
            own = [
                Finding("danger", "schema", f"{act}, which acts by itself")
                for act in _triggers_and_views(connection, shown)
            ]
            broken = list(_structure(connection)) if path else []
            if own or broken:  # what a view or a broken page gives is no row
                return Report(shown, None, 0, (*own, *broken))
            schema = upgrade.read_version(connection, shown)
            if path and schema in upgrade.known_versions() and (broken := list(_layout(connection, schema))):
                return Report(shown, schema, 0, tuple(broken))
            findings = [*_schema(schema), *_rows(connection, is_allowed), *_blobs(connection)]
            ids = _run_ids(connection)
    finally:
        engine.dispose()
    return Report(shown, schema, len(ids), (*findings, *_folders(files_root_of(path), ids)))


def _triggers_and_views(connection: Connection, shown: str) -> list[str]:
    tables = set(inspect(connection).get_table_names())
    if tables and "alembic_version" not in tables:
        raise StorageError(
            f"{shown} is not a database of EMTC Lab: it holds {sorted(tables)[0]}.",
            reason="not_a_database",
            subject=shown,
        )
    return upgrade.list_triggers_and_views(connection)


def _structure(connection: Connection) -> Iterator[Finding]:
    for (line,) in connection.execute(text("PRAGMA quick_check(5)")):
        if line != "ok":
            yield Finding("damage", "file", " ".join(str(line).replace("*** in database main ***", "").split()))


def _layout(connection: Connection, version: str) -> Iterator[Finding]:
    for what in upgrade.find_strange_layout(connection, version):
        yield Finding("damage", "schema", f"{what}.")


def _schema(version: str | None) -> Iterator[Finding]:
    if version is None:
        yield Finding("notice", "schema", "it holds no tables yet. Make them with: emtc db upgrade")
    elif version < upgrade.SCHEMA_VERSION and version not in upgrade.known_versions():
        yield Finding("damage", "schema", f"{version} is a schema of no version of EMTC Lab.")
    elif version < upgrade.SCHEMA_VERSION:
        yield Finding("notice", "schema", f"{version} is older than {upgrade.SCHEMA_VERSION}. Use: emtc db upgrade")
    elif version > upgrade.SCHEMA_VERSION:
        yield Finding("damage", "schema", f"{version} is newer than this program. Upgrade with: {how_to_upgrade()}")


def _rows(connection: Connection, is_allowed: Callable[[str], bool]) -> Iterator[Finding]:
    for table in _present(connection):
        judged = [
            column for column in table.columns if is_guarded(column) and column.name in _columns(connection, table)
        ]
        small = [column for column in judged if not isinstance(unguarded(column.type), LargeBinary)]
        if not small:
            continue
        readers = {column.name: _reader(column, connection.dialect) for column in small}
        names = ", ".join(f'"{name}"' for name in readers)
        for row in connection.execute(text(f"SELECT {names} FROM {table.name}")).mappings():
            where = f"{table.name} {shorten(row.get('id', row.get('run_id')))}"
            yield from _cells(table.name, where, row, readers)
            yield from _modules(table.name, where, row, is_allowed)
            yield from _place(where, row.get("files") if table.name == "runs" else None)


def _reader(column: Column[Any], dialect: Dialect) -> Callable[[Any], Any] | None:
    return column.type.dialect_impl(dialect).result_processor(dialect, _FLOAT8)


def _cells(
    table: str, where: str, row: Mapping[Any, Any], readers: Mapping[str, Callable[[Any], Any] | None]
) -> Iterator[Finding]:
    for name, reader in readers.items():
        try:
            value = reader(row[name]) if reader else row[name]
        except StorageError as error:
            yield Finding(
                "danger" if is_identifier(f"{table}.{name}") else "damage",
                where,
                error.message,
            )
            continue
        if name in _SHOWN_TEXTS.get(table, ()) and isinstance(value, str) and _CONTROL.search(value):
            yield Finding("notice", where, f"{name} holds control characters; they are shown as text.")


def _place(where: str, recorded: object) -> Iterator[Finding]:
    """A notice of files that lie elsewhere; whether they may be used is asked again by whoever would."""
    if isinstance(recorded, str) and (why := why_no_place(recorded)):
        yield Finding("notice", where, why)


def _modules(table: str, where: str, row: Mapping[Any, Any], is_allowed: Callable[[str], bool]) -> Iterator[Finding]:
    for map in sorted(set(_named_maps(table, row))):
        if not is_allowed(map):
            what = f"its map {shorten(map)} names a module to import, which this machine does not allow."
            yield Finding("danger", where, what)


def _named_maps(table: str, row: Mapping[Any, Any]) -> Iterator[str]:
    """List the maps of a row that are import paths, wherever a reader would look for one."""
    if table == "runs":
        env = _object(_object(row.get("config")).get("env"))
        if row.get("env") == "pettingzoo":
            yield str(row.get("map"))
        if env.get("name") == "pettingzoo":
            yield str(env.get("map"))
    elif table == "sweeps":
        file = _object(_object(row.get("plan")).get("file"))
        if file.get("env") == "pettingzoo":
            maps = file.get("map")
            yield from (str(map) for map in (maps if isinstance(maps, list) else [maps]))


def _blobs(connection: Connection) -> Iterator[Finding]:
    for table in _present(connection):
        blobs = [column.name for column in table.columns if isinstance(unguarded(column.type), LargeBinary)]
        if not blobs:
            continue
        keys = [column.name for column in table.primary_key]
        names = ", ".join(f'"{name}"' for name in (*keys, *blobs))
        rows = connection.execution_options(yield_per=_BLOBS_AT_ONCE).execute(text(f"SELECT {names} FROM {table.name}"))
        for row in rows.mappings():
            where = f"{table.name} {shorten('/'.join(str(row[key]) for key in keys))}"
            yield from _measured(where, row, blobs, limited=table.name.endswith("episodes"))


def _measured(where: str, row: Mapping[Any, Any], names: list[str], *, limited: bool) -> Iterator[Finding]:
    limit = {"most_bytes": MOST_TRAJECTORY_BYTES} if limited else {}
    for name in names:
        blob = row[name]
        try:
            measure(blob if isinstance(blob, bytes) else b"", **limit)
        except StorageError as error:
            kind: Kind = "danger" if error.reason == "too_large" else "damage"
            yield Finding(kind, where, f"{name}: {error}")


def _folders(root: Path, run_ids: list[str]) -> Iterator[Finding]:
    for run_id in run_ids:
        for place in find_special_files(root, root / run_id):
            yield Finding("danger", str(place), "is a link or a special file; its run's folder is not used.")


def _run_ids(connection: Connection) -> list[str]:
    if "runs" not in inspect(connection).get_table_names():
        return []
    ids = connection.execute(text("SELECT id FROM runs ORDER BY id")).scalars()
    return [run_id for run_id in ids if isinstance(run_id, str) and IDENTIFIER.fullmatch(run_id)]


def _present(connection: Connection) -> list[Table]:
    there = set(inspect(connection).get_table_names())
    return [table for table in Base.metadata.sorted_tables if table.name in there]


def _columns(connection: Connection, table: Table) -> set[str]:
    return {column["name"] for column in inspect(connection).get_columns(table.name)}


def _object(value: Any) -> Mapping[str, Any]:
    """Read a JSON object, which SQLite gives as text; whatever is none is an empty one."""
    try:
        read = json.loads(value) if isinstance(value, str | bytes) else value
    except (ValueError, RecursionError):
        return {}
    return read if isinstance(read, Mapping) else {}
