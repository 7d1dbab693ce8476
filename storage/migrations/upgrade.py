"""Bring a database to the newest schema, inside the caller's transaction, one process at a time.

And a whole copy of a SQLite database, taken while others write, before something changes all of it.
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

from emtc_core.errors import NewerDatabaseError, StorageError
from emtc_core.install import how_to_upgrade
from storage import address
from storage.models import SCHEMA_VERSION, Base
from storage.private_files import FILE_MODE

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
            f"{SCHEMA_VERSION}). Upgrade with: {how_to_upgrade()}",
            reason="newer_version",
            subject=version,
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
            raise StorageError(
                f"{url} is not a database of EMTC Lab: it holds {sorted(tables)[0]}.",
                reason="not_a_database",
                subject=url,
            )
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


_PAGES_AT_ONCE, _WAIT_S = 4096, 10.0
_ASIDE: Final = ".begun-copy."
_NO_LINKS: Final = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS})


def back_up(path: Path, version: str | None) -> Path:
    """Copy a database beside itself, as `NAME.schema-VERSION.db`; an earlier copy stays.

    Returns:
        Where the copy is.

    Raises:
        StorageError: If it cannot be written; then there is none.
    """
    place = _free_place(path, f"schema-{version or 'none'}")
    try:
        _copy(path, place)
    except (OSError, sqlite3.Error) as error:
        raise StorageError(
            f"{path} was not upgraded: its backup {place.name} cannot be written ({error}). Make room beside it.",
            reason="not_copied",
            subject=path,
        ) from error
    return place


def copy_database(path: Path, place: Path | None = None) -> Path:
    """Copy a database as it is now, whoever writes it meanwhile; the folders of its runs are not copied.

    Args:
        path: The SQLite file.
        place: Where the copy shall be, which must not be there; without it beside the file, named by the time.

    Returns:
        Where the copy is.

    Raises:
        StorageError: If it cannot be written; then there is none.
    """
    place = place or _free_place(path, f"backup-{datetime.now(UTC):%Y%m%d-%H%M%S}")
    if os.path.lexists(place):
        raise StorageError(
            f"{place} is there already, and a backup replaces nothing. Choose another name.",
            reason="exists",
            subject=place,
        )
    try:
        _copy(path, place)
    except (OSError, sqlite3.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise StorageError(
            f"The backup {place} cannot be written: {reason}. Choose another place.",
            reason="not_writable",
            subject=place,
        ) from error
    return place


def _copy(path: Path, place: Path) -> None:
    """Copy page by page from one state of the database: a writer does not make it begin anew.

    The copy is written aside, looked at and on the disk before it gets its name: whatever ends this process leaves
    either the whole copy or none.

    Raises:
        OSError, sqlite3.Error: If it cannot be written; then nothing is left of it.
    """
    _remove_abandoned(place)
    beside = place.with_name(f"{_ASIDE}{socket.gethostname()}.{os.getpid()}.{place.name}")
    try:
        os.close(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE))
        _copy_pages(path, beside)
        _sync(beside)
        try:
            os.link(beside, place)  # unlike a renaming, it replaces nothing that has come there meanwhile
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            beside.rename(place)
        _sync(place.parent)
    finally:
        beside.unlink(missing_ok=True)


def _copy_pages(path: Path, place: Path) -> None:
    with (
        closing(address.connect(path, wait_s=_WAIT_S, writes=False)) as source,  # its own disk may be full
        closing(sqlite3.connect(place)) as target,
    ):
        source.isolation_level = None
        target.execute("PRAGMA journal_mode=OFF")  # nobody reads it before it is whole
        source.execute("BEGIN")
        source.execute("SELECT count(*) FROM sqlite_master").fetchone()
        source.backup(target, pages=_PAGES_AT_ONCE)
        target.execute("PRAGMA journal_mode=DELETE")  # one file, which can be moved
        for (line,) in target.execute("PRAGMA quick_check(1)"):
            if line != "ok":
                raise sqlite3.DatabaseError(f"the copy is damaged: {line}")


def _remove_abandoned(place: Path) -> None:
    """Remove what processes of this machine that are no more have begun beside a place."""
    begun = re.compile(re.escape(f"{_ASIDE}{socket.gethostname()}.") + r"(\d+)\..*")
    for other in place.parent.iterdir():
        if (found := begun.fullmatch(other.name)) and not psutil.pid_exists(int(found[1])):
            other.unlink(missing_ok=True)


def _sync(place: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    with suppress(PermissionError):  # folders cannot be opened everywhere
        descriptor = os.open(place, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _free_place(path: Path, label: str) -> Path:
    stem = f"{path.stem}.{label}"
    names = [f"{stem}.db", *(f"{stem}-{number}.db" for number in range(2, 1000))]
    return next(place for name in names if not os.path.lexists(place := path.with_name(name)))
