"""Bring a database to the newest schema, inside the caller's transaction, one process at a time."""

import re
from functools import cache
from pathlib import Path

from sqlalchemy import URL, Connection, create_engine, inspect, text

from emtc_core.errors import NewerDatabaseError, StorageError
from emtc_core.install import how_to_upgrade
from storage.models import SCHEMA_VERSION, Base

SCRIPTS = Path(__file__).parent
_LOCK_KEY = 0x454D5443  # "EMTC"


def is_current(connection: Connection, url: str) -> bool:
    """Whether the database has the newest schema.

    Raises:
        NewerDatabaseError: If its schema is newer than this program.
        StorageError: If the database is somebody else's.
    """
    version = read_version(connection, url)
    if version is None:
        return False
    if version > SCHEMA_VERSION:
        raise NewerDatabaseError(
            f"{url} was written by a newer version of EMTC Lab (schema {version}, this one knows up to "
            f"{SCHEMA_VERSION}). Upgrade with: {how_to_upgrade()}"
        )
    return version == SCHEMA_VERSION


def read_version(connection: Connection, url: str) -> str | None:
    """Read the schema that a database has, or None where it has no tables yet.

    Raises:
        StorageError: If the database is somebody else's, or does things of its own.
    """
    tables = set(inspect(connection).get_table_names())
    if "alembic_version" not in tables:
        if tables:
            raise StorageError(f"{url} is not a database of EMTC Lab: it holds {sorted(tables)[0]}.")
        return None
    if own := list_triggers_and_views(connection):
        raise StorageError(f"{url} holds {own[0]}, which EMTC Lab never makes. See: emtc db check")
    versions = list(connection.execute(text("SELECT version_num FROM alembic_version")).scalars())
    if not versions:
        return None
    if len(versions) > 1 or not isinstance(versions[0], str) or not re.fullmatch(r"\w{4,32}", versions[0]):
        raise StorageError(
            f"{url} does not name one schema in alembic_version, but {len(versions)} rows. Is it damaged?"
        )
    return versions[0]


def known_versions() -> frozenset[str]:
    """List every schema that this program can upgrade from, and its own."""
    return frozenset(file.name.partition("_")[0] for file in (SCRIPTS / "versions").glob("[0-9]*_*.py"))


def list_triggers_and_views(connection: Connection) -> list[str]:
    """List what a SQLite file would do by itself: triggers, and views in the place of tables."""
    if connection.dialect.name != "sqlite":
        return []
    own = connection.execute(text("SELECT type, name FROM sqlite_master WHERE type IN ('trigger', 'view')")).all()
    return [f"the {kind} {name!s}" for kind, name in own if kind == "trigger" or name in Base.metadata.tables]


def to_head(connection: Connection, url: str) -> None:
    """Run the missing migrations. The caller's transaction makes them all or nothing.

    On SQLite the connection must not enforce foreign keys, and its writer lock is held already; on a
    server an advisory lock does the same. So of several processes that open an old database at once one
    migrates and the others find the work done.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK_KEY})
    if is_current(connection, url):
        return
    from alembic.util.exc import CommandError

    try:
        _run(connection, "head")
    except CommandError as error:
        raise StorageError(f"{url} names a schema that no version of EMTC Lab has. Is it damaged?") from error
    if connection.dialect.name == "sqlite":
        orphan = connection.execute(text("PRAGMA foreign_key_check")).first()
        if orphan is not None:
            raise StorageError(f"{url} cannot be upgraded: a row of {orphan[0]} has lost its {orphan[2]}.")


def make_older(place: Path, version: str) -> None:
    """Make a SQLite file with the tables of an earlier schema and no row, for those who try an upgrade."""
    engine = create_engine(URL.create("sqlite", database=str(place)))
    try:
        with engine.begin() as connection:
            _run(connection, version)
    finally:
        engine.dispose()


Layout = dict[str, frozenset[tuple[str, int, int]]]
"""Table → its columns: name, place in the key from 1 (0: none), and what is hidden about it (0: nothing)."""


def describe_indexes(version: str) -> dict[str, str]:
    """List the indexes that a SQLite database of a known schema has, with the statements that make them."""
    return _describe(version)[0]


def find_strange_layout(connection: Connection, version: str) -> list[str]:
    """What of the tables of a SQLite database of a known schema no version of this program has made so."""
    expected, found = _describe(version)[1], _read_layout(connection)
    strange = [f"the table {name} is missing" for name in sorted(expected.keys() - found.keys())]
    for name in sorted(expected.keys() & found.keys()):
        missing = sorted(each[0] for each in expected[name] - found[name])
        more = sorted(each[0] for each in found[name] - expected[name])
        if missing:
            strange.append(f"{name} has no column {missing[0]} as it should be")
        elif more:
            strange.append(f"{name} has a column {more[0]!r}, which no version has made")
    return strange


@cache
def _describe(version: str) -> tuple[dict[str, str], Layout]:
    """Make a database of a schema, and list its indexes and its tables."""
    engine = create_engine("sqlite://")
    try:
        with engine.begin() as connection:
            _run(connection, version)
            made = text("SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL")
            return {row.name: row.sql for row in connection.execute(made)}, _read_layout(connection)
    finally:
        engine.dispose()


def _read_layout(connection: Connection) -> Layout:
    columns = text(
        "SELECT t.name AS place, c.name, c.pk, c.hidden + (t.type != 'table') AS hidden "
        "FROM pragma_table_list AS t JOIN pragma_table_xinfo(t.name) AS c WHERE t.schema = 'main'"
    )
    layout: dict[str, set[tuple[str, int, int]]] = {}
    for row in connection.execute(columns):
        if not row.place.startswith("sqlite_"):
            layout.setdefault(row.place, set()).add((row.name, row.pk, row.hidden))
    return {name: frozenset(found) for name, found in layout.items()}


def _run(connection: Connection, version: str) -> None:
    from alembic import command  # slow to import, needed once in a database's life
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(SCRIPTS).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, version)
