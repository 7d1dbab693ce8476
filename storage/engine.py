"""Engines, pragmas, opening and upgrading a database, and the one scope that commits.

`open_database` is the only way in. Readers get a connection that cannot write; writers get one transaction
that is entirely done or entirely undone. The tables are in `models`, their history in `migrations`, how an older
database is kept as it was before its upgrade, too, and what may stand in one in `guards`.
"""

import os
import sqlite3
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from platformdirs import user_data_path
from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import ConnectionPoolEntry

from emtc_core.errors import StorageError
from emtc_core.install import how_to_install
from storage import address, clock
from storage.guards import check_identifier, hide_passwords
from storage.migrations import upgrade
from storage.migrations.upgrade import back_up
from storage.private_files import find_folder

READ_ONLY_VARIABLE = "EMTC_READ_ONLY"
BUSY_TIMEOUT_S = 10.0
_OPENING_S, _LOOK_AGAIN_S = 20.0, 0.05
_DISK_FULL = address.NO_ROOM_TO_SHARE | {"SQLITE_IOERR_WRITE", "SQLITE_IOERR_FSYNC"}
_UPGRADE_TIMEOUT_S = 300.0  # another process may be copying and upgrading a big one
PAGE_BYTES = 8192


@dataclass(frozen=True)
class Database:
    """An open database. Share it between threads, never across a fork."""

    url: str = field(repr=False)  # absolute, for another process; may hold a password: `shown` is for people
    path: Path | None  # of the SQLite file; None for a server
    reader: Engine
    writer: Engine | None  # None when opened read-only
    backup: Path | None = None  # the copy that was made before an older database was upgraded just now
    moment: Connection | None = field(default=None, repr=False)  # what every read goes through, if they share one

    @property
    def shown(self) -> str:
        """The URL as people may see it."""
        return hide_passwords(self.url)

    @property
    def dialect(self) -> str:
        """`sqlite` or `postgresql`."""
        return self.reader.dialect.name

    @contextmanager
    def read(self) -> Generator[Connection]:
        """Open a connection that sees one state of the database and cannot change it.

        Raises:
            StorageError: If the database cannot be read.
        """
        if self.moment is not None:
            with _translated(self.reader):
                yield self.moment
            return
        with read_safely(self.reader) as connection:
            yield connection

    @contextmanager
    def at_one_moment(self) -> Generator["Database"]:
        """Open this database as it is now: all reads see one state, whatever others write. For one thread.

        Raises:
            StorageError: If the database cannot be read.
        """
        with self.read() as connection:
            yield replace(self, moment=connection)

    @contextmanager
    def transaction(self) -> Generator[Connection]:
        """Open the only scope that writes: committed at its end, rolled back on any exception.

        Raises:
            StorageError: If the database was opened read-only or cannot be written.
        """
        if self.writer is None:
            raise StorageError(
                f"{self.shown} was opened for reading only.{_why_read_only()}",
                reason="opened_read_only",
                subject=self.shown,
            )
        with _translated(self.writer), self.writer.begin() as connection:
            yield connection

    def dispose(self) -> None:
        """Close every pooled connection."""
        self.reader.dispose()
        if self.writer is not None:
            self.writer.dispose()


def open_database(url: str, *, read_only: bool = False, create: bool = True) -> Database:
    """Open a database, creating or upgrading it where needed.

    Args:
        url: `sqlite:///folder/file.db`, whose path is read as it stands, or `postgresql://…`. A relative path starts
            at the working directory.
        read_only: Never write; then the database must exist and be of this version. EMTC_READ_ONLY=1 in the
            environment makes every database so.
        create: Make a SQLite file that is not there yet; without it a missing one is refused.

    Returns:
        The open database.

    Raises:
        StorageError: If the URL is unusable or the place cannot be written; nothing is created then.
        NewerDatabaseError: If a newer version of EMTC Lab wrote it.
    """
    parsed = address.parse(url)
    read_only = read_only or is_read_only()
    if isinstance(parsed, Path):
        return _open_sqlite(parsed, read_only=read_only, create=create and not read_only)
    complete = parsed.render_as_string(hide_password=False)
    engine = _server_engine(parsed)
    reader = engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
    database = Database(complete, None, reader, None if read_only else engine)
    try:
        return _upgrade(database)
    except BaseException:
        database.dispose()
        raise


def is_read_only() -> bool:
    """Whether EMTC_READ_ONLY=1 forbids this process to start, change or delete anything."""
    return os.environ.get(READ_ONLY_VARIABLE, "") not in ("", "0")


def refuse_when_read_only(what: str) -> None:
    """Refuse to act where EMTC_READ_ONLY=1 forbids it; `what` is as in "start a run".

    Raises:
        StorageError: If it does.
    """
    if is_read_only():
        raise StorageError(
            f"Nobody can {what} here: {READ_ONLY_VARIABLE}=1 lets this process only read.",
            reason="read_only",
            subject=what,
        )


def sweep_folder(database: Database, sweep_id: str) -> Path:
    """The folder of the log of a sweep's scheduler; it is not created here.

    Raises:
        StorageError: If the id is none, or the folder is or holds a link or a special file.
    """
    return find_folder(files_root(database), f"sweep-{check_identifier(sweep_id, 'The id of a sweep')}")


def files_root(database: Database) -> Path:
    """The folder beside a SQLite file, or in the user's data folder for a server, for what belongs to it."""
    return files_root_of(database.path)


def files_root_of(path: Path | None) -> Path:
    """The folder of all files of the SQLite database at `path`, be it a link to it, or of a server's databases."""
    if path is None:
        return user_data_path("emtc-lab")
    file = path.resolve()
    return file.with_name(f"{file.stem}.files")


def _why_read_only() -> str:
    return f" {READ_ONLY_VARIABLE}=1 is set." if is_read_only() else ""


def _open_sqlite(path: Path, *, read_only: bool, create: bool) -> Database:
    if not create:
        address.refuse_missing(path, ", or start a run: emtc train")
    created = [] if read_only else address.prepare(path)
    until = time.monotonic() + _OPENING_S
    while True:
        reader = _sqlite_engine(path, writes=False)
        writer = None if read_only else _sqlite_engine(path, writes=True)
        database = Database(address.sqlite_address(path), path, reader, writer)
        try:
            return _upgrade(database)
        except BaseException as error:
            database.dispose()
            if read_only or time.monotonic() > until or not _is_in_the_making(error):
                address.remove(created)
                raise
        time.sleep(_LOOK_AGAIN_S)


def _is_in_the_making(error: BaseException) -> bool:
    """Whether somebody else makes or upgrades the file: while it turns to a log of its own, SQLite does not wait."""
    name = getattr(error.__cause__, "sqlite_errorname", "") if isinstance(error, StorageError) else ""
    return name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_IOERR", "SQLITE_CANTOPEN")) and not _is_full(
        error.__cause__
    )


def open_unchecked(url: str) -> tuple[Engine, Path | None]:
    """Open a database for reading as it is, whoever made it, with the path of a SQLite file.

    For those who look at a database before anything else trusts it; everybody else calls `open_database`.

    Raises:
        StorageError: If the URL is unusable or no such file exists.
    """
    parsed = address.parse(url)
    if isinstance(parsed, URL):
        return _server_engine(parsed).execution_options(postgresql_readonly=True), None
    address.refuse_missing(parsed, ".")
    return _sqlite_engine(parsed, writes=False), parsed


def find_schema(url: str) -> tuple[str | None, bool]:
    """Read the schema of a database, None where it has no tables yet, and whether it is a SQLite file.

    Raises:
        StorageError: If there is no database, or it is somebody else's.
    """
    engine, path = open_unchecked(url)
    try:
        with read_safely(engine) as connection:
            return upgrade.read_version(connection, hide_passwords(url)), path is not None
    finally:
        engine.dispose()


def _sqlite_engine(path: Path, *, writes: bool, is_upgrade: bool = False) -> Engine:
    wait_s = _UPGRADE_TIMEOUT_S if is_upgrade else BUSY_TIMEOUT_S
    engine = create_engine(
        URL.create("sqlite", database=str(path)), creator=partial(address.connect, path, wait_s=wait_s, writes=writes)
    )

    @event.listens_for(engine, "connect")
    def _configure(connection: sqlite3.Connection, _record: object) -> None:
        connection.isolation_level = None  # transactions are begun below, not guessed by the driver
        pragmas = [f"busy_timeout={int(wait_s * 1000)}", f"foreign_keys={not is_upgrade:d}", "cache_size=-32768"]
        pragmas.append("trusted_schema=OFF")  # a foreign file's views and checks call no function with effects
        if writes:
            pragmas += [f"page_size={PAGE_BYTES}", "journal_mode=WAL", "synchronous=NORMAL"]
        else:
            pragmas += ["query_only=ON"]
        for pragma in pragmas:
            connection.execute(f"PRAGMA {pragma}").close()

    @event.listens_for(engine, "checkin")
    def _let_go(connection: sqlite3.Connection | None, record: ConnectionPoolEntry) -> None:
        if isinstance(connection, address.AloneConnection):
            record.invalidate()  # it keeps others out, or sees nothing that they write

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _server_engine(url: URL) -> Engine:
    try:
        engine = create_engine(url, pool_pre_ping=True)
    except ModuleNotFoundError as error:
        raise StorageError(f"PostgreSQL needs psycopg. Install it with: {how_to_install('postgres')}") from error

    @event.listens_for(engine, "checkout")
    def _set_clock(connection: Any, *_: object) -> None:
        if clock.is_due():
            (server,) = connection.execute("SELECT clock_timestamp()").fetchone()
            connection.rollback()
            clock.set_by(server)

    return engine


def _upgrade(database: Database) -> Database:
    with database.read() as connection:
        if upgrade.is_current(connection, database.shown):
            return database
        version = upgrade.read_version(connection, database.shown)
    if database.writer is None:
        raise StorageError(
            _why_not_readable(database, version), reason="older_version" if version else "empty", subject=database.shown
        )
    migrator, backup = database, None
    if database.path is not None:  # SQLite rebuilds altered tables: dropping the old one must not cascade
        engine = _sqlite_engine(database.path, writes=True, is_upgrade=True)
        migrator = replace(database, writer=engine)
    try:
        with migrator.transaction() as connection:
            if database.path is not None and upgrade.read_version(connection, database.shown) is not None:
                backup = back_up(database.path, version)
            upgrade.to_head(connection, database.shown)
    finally:
        if migrator.writer is not database.writer and migrator.writer is not None:
            migrator.writer.dispose()
    return replace(database, backup=backup)


def _why_not_readable(database: Database, version: str | None) -> str:
    """What a reader finds instead of this version's tables, and the command that makes them."""
    place = database.path or (database.url if database.url == database.shown else "--db URL")
    if version is None:
        return f"{database.shown} is empty: it holds no tables yet. Make them with: emtc db upgrade {place}"
    return (
        f"{database.shown} is of an older version: it has schema {version}, this program reads "
        f"{upgrade.SCHEMA_VERSION}. Upgrade it, with a backup first: emtc db upgrade {place}"
    )


@contextmanager
def read_safely(engine: Engine) -> Generator[Connection]:
    """Open a connection for reading whose faults are one sentence.

    Raises:
        StorageError: If the database cannot be read.
    """
    with _translated(engine), engine.connect() as connection:
        yield connection


@contextmanager
def _translated(engine: Engine) -> Generator[None]:
    """Raise a driver's error as one sentence, keeping it as the cause."""
    driver = engine.dialect.loaded_dbapi
    try:
        yield
    except DBAPIError as error:
        raise _database_failed(error.orig) from error.orig
    except driver.Error as error:
        raise _database_failed(error) from error
    except UnicodeError as error:  # half a character, which no encoding has
        if "idna" in str(error):
            raise StorageError("The database's URL names a host that cannot be a name in a network.") from error
        raise StorageError("A text must be valid Unicode to stand in the database.") from error
    except OverflowError as error:  # SQLite's driver binds 64 bits
        raise StorageError("A number must be below 2^63 to stand in the database.") from error


def is_disk_full(error: StorageError) -> bool:
    """Whether a database failed because its disk is full."""
    return _is_full(error.__cause__)


def _is_full(error: BaseException | None) -> bool:
    return getattr(error, "sqlite_errorname", "") in _DISK_FULL


def _database_failed(error: BaseException | None) -> StorageError:
    reason = "disk_full" if _is_full(error) else "failed"
    return StorageError(f"The database failed: {_first_line(error)}.", reason=reason, subject=type(error).__name__)


def _first_line(error: BaseException | None) -> str:
    lines = hide_passwords(str(error)).strip().splitlines()
    said = lines[0].rstrip(".") if lines else type(error).__name__
    if _is_full(error):
        return f"{said}. The disk is full: delete something on it, or thin runs with: emtc db thin"
    return said
