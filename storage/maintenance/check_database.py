"""Check a database from any source before other code opens it: `emtc db check`.

First the pages of the file, the names of modules and the folders of runs are checked. If nothing is wrong,
`check_contents` checks references and settings. Nothing is imported or changed, and no link is followed.
Whether the rows of a run are consistent with each other is checked in `check_run`.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from sqlalchemy import Connection, inspect, text

from storage.address import sqlite_address
from storage.engine import files_root_of, open_untrusted, read_safely
from storage.files.places import explain_unusable_place
from storage.guards import IDENTIFIER, hide_passwords, shorten
from storage.maintenance.check_contents import list_content_errors
from storage.models import SCHEMA_VERSION
from storage.private_files import find_special_files
from storage.schema import has_tables

Kind = Literal["danger", "damage", "notice"]

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
    schema: int | None
    """Schema version; None if there are no tables, or if they were not read."""
    runs: int
    findings: tuple[DatabaseProblem, ...]

    @property
    def is_valid(self) -> bool:
        """Whether the database can be opened: all findings are notices."""
        return all(finding.kind == "notice" for finding in self.findings)


def check_database(url: str, *, is_allowed: Callable[[str], bool], checks_contents: bool = True) -> Report:
    """Check everything in a database that other code relies on.

    Args:
        url: URL as in `open_database`.
        is_allowed: Whether this machine may import the module of an environment's map; see `emtc_core.envs.trust`.
        checks_contents: Also check references and settings, if nothing else is wrong.

    Raises:
        StorageError: If there is no database, it belongs to another program, or it cannot be read at all.
    """
    engine, path = open_untrusted(url)
    safe_url = hide_passwords(sqlite_address(path) if path else str(engine.url))
    try:
        with read_safely(engine) as connection:
            if path and (errors := list(_check_pages(connection))):
                return Report(safe_url, None, 0, tuple(errors))
            schema = SCHEMA_VERSION if has_tables(connection, safe_url) else None
            findings = list(list_problems(connection, is_allowed=is_allowed))
            is_sound = all(finding.kind == "notice" for finding in findings)
            if checks_contents and is_sound and schema is not None:
                findings += [
                    DatabaseProblem("damage", error.where, f"{error.what}.")
                    for error in list_content_errors(connection)
                ]
            run_ids = _list_runs(connection)
    finally:
        engine.dispose()
    root = files_root_of(path)
    for run_id in run_ids:
        for special_file in find_special_files(root, root / run_id):
            what = "is a link or a special file. The folder of its run is not used."
            findings.append(DatabaseProblem("danger", str(special_file), what))
    return Report(safe_url, schema, len(run_ids), tuple(findings))


def list_problems(connection: Connection, *, is_allowed: Callable[[str], bool]) -> Iterator[DatabaseProblem]:
    """List the names of modules, the places of files and the texts in a database that a user should know about."""
    yield from _check_values(connection, is_allowed)


def _check_pages(connection: Connection) -> Iterator[DatabaseProblem]:
    """Check the pages of a SQLite file for damage."""
    for (line,) in connection.execute(text("PRAGMA quick_check(5)")):
        if line != "ok":
            yield DatabaseProblem("damage", "file", " ".join(str(line).replace("*** in database main ***", "").split()))


def _check_values(connection: Connection, is_allowed: Callable[[str], bool]) -> Iterator[DatabaseProblem]:
    """Check the names of modules, the places of files, and the texts that are displayed."""
    existing = inspect(connection).get_table_names()
    for table_name, displayed in _DISPLAYED_COLUMNS.items():
        if table_name not in existing:
            continue
        for row in connection.execute(text(f"SELECT * FROM {table_name}")).mappings():
            where = f"{table_name} {shorten(row.get('id', row.get('run_id')))}"
            for name in displayed:
                if isinstance(row[name], str) and _CONTROL_CHARACTERS.search(row[name]):
                    what = f"{name} contains control characters, which are shown as text."
                    yield DatabaseProblem("notice", where, what)
            for map in sorted(set(_list_module_maps(table_name, row))):
                if not is_allowed(map):
                    what = f"its map {shorten(map)} is a module to import, which this machine does not allow."
                    yield DatabaseProblem("danger", where, what)
            place = row.get("files") if table_name == "runs" else None
            if isinstance(place, str) and (
                reason := explain_unusable_place(place)
            ):  # checked again whenever it is used
                yield DatabaseProblem("notice", where, reason)


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


def _list_runs(connection: Connection) -> list[str]:
    """List the valid run ids."""
    if "runs" not in inspect(connection).get_table_names():
        return []
    run_ids = connection.execute(text("SELECT id FROM runs ORDER BY id")).scalars()
    return [run_id for run_id in run_ids if isinstance(run_id, str) and IDENTIFIER.fullmatch(run_id)]


def _parse_object(value: Any) -> Mapping[str, Any]:
    """Parse a JSON object, which SQLite stores as text. Any other value gives an empty object."""
    try:
        parsed = json.loads(value) if isinstance(value, str | bytes) else value
    except (ValueError, RecursionError):
        return {}
    return parsed if isinstance(parsed, Mapping) else {}
