"""Upgrade a database to the current schema, and copy a SQLite database.

An upgrade runs in the caller's transaction, in one process at a time. A copy contains one state of the database while
other processes write. It is made before every upgrade, and for `emtc db backup`.
"""

import errno
import os
import re
import socket
import sqlite3
from contextlib import closing, suppress
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Final

import psutil
from sqlalchemy import URL, Connection, create_engine, inspect, text
from sqlalchemy.exc import IntegrityError

from emtc_core.atomic_file import sync_to_disk
from emtc_core.errors import NewerDatabaseError, StorageError
from emtc_core.install import get_upgrade_command
from storage import address
from storage.models import SCHEMA_VERSION, Base
from storage.private_files import FILE_MODE, parent_folder

Layout = dict[str, frozenset[tuple[str, int, int]]]
"""Table → its columns as (name, position in the primary key from 1 or 0, 0 if the column is a normal column)."""

SCRIPTS = Path(__file__).parent
BASELINE: Final = "0010"
"""Schema of release 1.0. Databases of development versions before it are refused."""
_VERSION_TABLE: Final = """CREATE TABLE IF NOT EXISTS alembic_version (
    version_num VARCHAR(32) NOT NULL CONSTRAINT alembic_version_pkc PRIMARY KEY
)"""
"""The table of Alembic, as Alembic creates it."""
_PAGES_AT_ONCE = 4096
_WAIT_S: Final = 10.0
_TEMPORARY_PREFIX: Final = ".begun-copy."
_NO_LINKS: Final = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS})
"""Errors of a file system without hard links."""


def is_current(connection: Connection, url: str) -> bool:
    """Whether the database has the current schema.

    Raises:
        NewerDatabaseError: If its schema is newer than this program.
        StorageError: If it is not a database of EMTC Lab, or from before release 1.0.
    """
    version = read_version(connection, url)
    if version is None:
        return False
    if version < BASELINE:
        raise StorageError(
            f"{url} was written by a version before release 1.0 (schema {version}).",
            hint="Upgrade it with EMTC Lab 1.0 first: emtc db upgrade",
            reason="before_release",
            subject=version,
        )
    if version > SCHEMA_VERSION:
        raise NewerDatabaseError(
            f"{url} was written by a newer version of EMTC Lab (schema {version}; this version supports schemas up to "
            f"{SCHEMA_VERSION}). Upgrade with: {get_upgrade_command()}",
            reason="newer_version",
            subject=version,
        )
    return version == SCHEMA_VERSION


def read_version(connection: Connection, url: str) -> str | None:
    """Read the schema version of a database; None if it has no tables yet.

    Args:
        connection: Connection for reading.
        url: URL of the database without its password, for messages.

    Raises:
        StorageError: If it is not a database of EMTC Lab, or has triggers or views that EMTC Lab does not create.
    """
    tables = set(inspect(connection).get_table_names())
    if "alembic_version" not in tables:
        if tables:
            raise StorageError(
                f"{url} is not a database of EMTC Lab: it contains {sorted(tables)[0]}.",
                reason="not_a_database",
                subject=url,
            )
        return None
    if unexpected := list_triggers_and_views(connection):
        raise StorageError(f"{url} contains {unexpected[0]}, which EMTC Lab does not create. See: emtc db check")
    versions = list(connection.execute(text("SELECT version_num FROM alembic_version")).scalars())
    if not versions:
        return None
    if len(versions) > 1 or not isinstance(versions[0], str) or not re.fullmatch(r"\w{4,32}", versions[0]):
        raise StorageError(
            f"{url} must have one row with a schema version in alembic_version, but it has {len(versions)} rows or "
            "another value. It may be damaged."
        )
    return versions[0]


def known_versions() -> frozenset[str]:
    """List all schema versions that this program can upgrade from, and the current one."""
    return frozenset(file.name.partition("_")[0] for file in (SCRIPTS / "versions").glob("[0-9]*_*.py"))


def list_triggers_and_views(connection: Connection) -> list[str]:
    """List the triggers of a SQLite file, and its views with the name of a table, as "the trigger NAME"."""
    if connection.dialect.name != "sqlite":
        return []
    rows = connection.execute(text("SELECT type, name FROM sqlite_master WHERE type IN ('trigger', 'view')")).all()
    return [f"the {kind} {name!s}" for kind, name in rows if kind == "trigger" or name in Base.metadata.tables]


def upgrade_to_head(connection: Connection, url: str) -> None:
    """Run the missing migrations. The caller's transaction makes sure that all or none are applied.

    If several processes open an old database, one runs the migrations and the others wait and then have nothing to do:
    SQLite's write lock and a table lock in PostgreSQL make sure of that.

    Args:
        connection: Connection in a transaction for writing. On SQLite it must not enforce foreign keys.
        url: URL of the database without its password, for messages.

    Raises:
        NewerDatabaseError: If its schema is newer than this program.
        StorageError: If its schema is unknown, or a row refers to a missing row.
    """
    if connection.dialect.name == "postgresql":
        _lock_version_table(connection)
    if is_current(connection, url):
        return
    from alembic.util.exc import CommandError

    try:
        _run_migrations(connection, "head")
    except CommandError as error:
        raise StorageError(f"{url} has a schema that no version of EMTC Lab has. It may be damaged.") from error
    if connection.dialect.name == "sqlite":
        orphan = connection.execute(text("PRAGMA foreign_key_check")).first()
        if orphan is not None:
            raise StorageError(
                f"{url} cannot be upgraded: a row of {orphan[0]} refers to a row of {orphan[2]} that does not exist."
            )


def make_older(place: Path, version: str) -> None:
    """Create a SQLite file with the empty tables of an earlier schema, to test an upgrade.

    Args:
        place: Path of the new file.
        version: The schema version.
    """
    engine = create_engine(URL.create("sqlite", database=str(place)))
    try:
        with engine.begin() as connection:
            _run_migrations(connection, version)
    finally:
        engine.dispose()


def describe_indexes(version: str) -> dict[str, str]:
    """Return the indexes of a SQLite database of a known schema: name → SQL statement that creates it."""
    return _describe_schema(version)[0]


def list_schema_differences(connection: Connection, version: str) -> list[str]:
    """List how the tables of a SQLite database differ from the tables of a known schema, one text per table."""
    expected, actual = _describe_schema(version)[1], _read_layout(connection)
    differences = [f"the table {name} is missing" for name in sorted(expected.keys() - actual.keys())]
    for name in sorted(expected.keys() & actual.keys()):
        missing = sorted(column[0] for column in expected[name] - actual[name])
        unexpected = sorted(column[0] for column in actual[name] - expected[name])
        if missing:
            differences.append(f"{name} has no column {missing[0]} of the expected kind")
        elif unexpected:
            differences.append(f"{name} has a column {unexpected[0]!r}, which is not in the schema")
    return differences


def back_up_before_upgrade(path: Path, version: str | None) -> Path:
    """Copy a database before its upgrade, to `NAME.schema-VERSION.db` in the same folder. Earlier copies are kept.

    Args:
        path: The SQLite file.
        version: Its schema version.

    Returns:
        The path of the copy.

    Raises:
        StorageError: If the copy cannot be written. Then no copy exists.
    """
    place = _find_free_path(path, f"schema-{version or 'none'}")
    try:
        _copy(path, place)
    except (OSError, sqlite3.Error) as error:
        raise StorageError(
            f"{path} was not upgraded: its backup {place.name} cannot be written ({error}). Free disk space first.",
            reason="not_copied",
            subject=path,
        ) from error
    return place


def copy_database(path: Path, place: Path | None = None) -> Path:
    """Copy a database while other processes write to it. The folders of its runs are not copied.

    Args:
        path: The SQLite file.
        place: Path of the copy, which must not exist; its folder is created. By default it is in the same folder, named
            by the time.

    Returns:
        The path of the copy.

    Raises:
        StorageError: If the copy cannot be written. Then no copy exists.
    """
    place = place or _find_free_path(path, f"backup-{datetime.now(UTC):%Y%m%d-%H%M%S}")
    if os.path.lexists(place):
        raise StorageError(
            f"{place} already exists, and a backup does not replace files. Choose another name.",
            reason="exists",
            subject=place,
        )
    try:
        with parent_folder(place):
            _copy(path, place)
    except (OSError, sqlite3.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise StorageError(
            f"The backup {place} cannot be written: {reason}. Choose another path.",
            reason="not_writable",
            subject=place,
        ) from error
    return place


@cache
def _describe_schema(version: str) -> tuple[dict[str, str], Layout]:
    """Create a database of a schema in memory, and return its indexes and its layout."""
    engine = create_engine("sqlite://")
    try:
        with engine.begin() as connection:
            _run_migrations(connection, version)
            indexes = text("SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL")
            return {row.name: row.sql for row in connection.execute(indexes)}, _read_layout(connection)
    finally:
        engine.dispose()


def _read_layout(connection: Connection) -> Layout:
    """Read the layout of a SQLite database. Columns of a view are marked as not normal."""
    statement = text(
        "SELECT t.name AS table_name, c.name, c.pk, c.hidden + (t.type != 'table') AS hidden "
        "FROM pragma_table_list AS t JOIN pragma_table_xinfo(t.name) AS c WHERE t.schema = 'main'"
    )
    layout: dict[str, set[tuple[str, int, int]]] = {}
    for row in connection.execute(statement):
        if not row.table_name.startswith("sqlite_"):
            layout.setdefault(row.table_name, set()).add((row.name, row.pk, row.hidden))
    return {table_name: frozenset(columns) for table_name, columns in layout.items()}


def _lock_version_table(connection: Connection) -> None:
    """Wait until no other process upgrades a PostgreSQL database. A role that can only read cannot take this lock."""
    with suppress(IntegrityError), connection.begin_nested():  # another process has just created the table
        connection.execute(text(_VERSION_TABLE))
    connection.execute(text("LOCK TABLE alembic_version IN SHARE ROW EXCLUSIVE MODE"))


def _run_migrations(connection: Connection, version: str) -> None:
    from alembic import command  # imported here because it is slow and rarely needed
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(SCRIPTS).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, version)


def _copy(path: Path, place: Path) -> None:
    """Copy one state of a database page by page, so that a writer does not restart the copy.

    The copy is written under a temporary name, checked, and flushed to the disk before it gets its name. So a crash
    leaves either the complete copy or no copy.

    Raises:
        OSError, sqlite3.Error: If it cannot be written. Then no temporary file remains.
    """
    _remove_abandoned_copies(place.parent)
    temporary = place.with_name(f"{_TEMPORARY_PREFIX}{socket.gethostname()}.{os.getpid()}.{place.name}")
    try:
        os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE))
        _copy_pages(path, temporary)
        sync_to_disk(temporary)
        try:
            os.link(temporary, place)  # unlike a rename, a link does not replace an existing file
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            temporary.rename(place)
        sync_to_disk(place.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _copy_pages(path: Path, target_path: Path) -> None:
    """Copy the pages of a database in one read transaction, and check the copy."""
    with (
        closing(address.connect(path, wait_s=_WAIT_S, writes=False)) as source,  # reads also if its disk is full
        closing(sqlite3.connect(target_path)) as target,
    ):
        source.isolation_level = None
        target.execute("PRAGMA journal_mode=OFF")  # the copy is not used before it is complete
        source.execute("BEGIN")
        source.execute("SELECT count(*) FROM sqlite_master").fetchone()
        source.backup(target, pages=_PAGES_AT_ONCE)
        target.execute("PRAGMA journal_mode=DELETE")  # one file without a write-ahead log
        for (line,) in target.execute("PRAGMA quick_check(1)"):
            if line != "ok":
                raise sqlite3.DatabaseError(f"the copy is damaged: {line}")


def _remove_abandoned_copies(folder: Path) -> None:
    """Delete the temporary files of processes of this host that have ended."""
    pattern = re.compile(re.escape(f"{_TEMPORARY_PREFIX}{socket.gethostname()}.") + r"(\d+)\..*")
    for file in folder.iterdir():
        if (match := pattern.fullmatch(file.name)) and not psutil.pid_exists(int(match[1])):
            file.unlink(missing_ok=True)


def _find_free_path(path: Path, label: str) -> Path:
    """Return the first of NAME.LABEL.db, NAME.LABEL-2.db, … that does not exist."""
    stem = f"{path.stem}.{label}"
    names = [f"{stem}.db", *(f"{stem}-{number}.db" for number in range(2, 1000))]
    return next(free for name in names if not os.path.lexists(free := path.with_name(name)))
