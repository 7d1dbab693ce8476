"""Open and create a database; read connections and write transactions.

`open_database` is the only public way to open a database that is trusted. A read connection cannot write. A write
transaction is committed as a whole or rolled back. The tables are in `models`; `schema` creates them. A stored value
that cannot be read raises a StorageError "This data cannot be read: …".
"""

import json
import os
import sqlite3
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from platformdirs import user_data_path
from sqlalchemy import URL, Connection, Engine, create_engine, event, text
from sqlalchemy.exc import DBAPIError, StatementError
from sqlalchemy.pool import ConnectionPoolEntry

from emtc_core.errors import FileMissingError, StorageError
from emtc_core.install import get_install_command
from storage import address
from storage.guards import check_identifier, hide_passwords, make_unreadable_error, shorten
from storage.schema import create_tables, has_tables

READ_ONLY_VARIABLE = "EMTC_READ_ONLY"
BUSY_TIMEOUT_S = 10.0
"""Maximum time that SQLite waits for a lock."""
PAGE_BYTES = 8192
"""Page size of new SQLite files."""
_OPEN_CONNECTIONS = 2
"""Number of connections of an engine that stay open without a use."""
_OPENING_S = 20.0
"""Maximum time to retry while another process creates the file."""
_RETRY_S = 0.05
_DISK_FULL_ERRORS: Final = frozenset(
    {"SQLITE_FULL", "SQLITE_IOERR_WRITE", "SQLITE_IOERR_FSYNC", "SQLITE_IOERR_SHMSIZE", "SQLITE_IOERR_SHMMAP"}
)


@dataclass(frozen=True)
class Database:
    """An open database. Threads can share it, but processes created by a fork cannot."""

    url: str = field(repr=False)
    """Absolute URL, for other processes. It may contain a password; show `safe_url` to users instead."""
    path: Path | None
    """The SQLite file; None for a server."""
    reader: Engine
    writer: Engine | None
    """None if the database was opened read-only."""
    shared_connection: Connection | None = field(default=None, repr=False)
    """The connection that all reads share, see `read_snapshot`; None opens one per read."""

    @property
    def safe_url(self) -> str:
        """The URL without passwords."""
        return hide_passwords(self.url)

    @property
    def dialect(self) -> str:
        """`sqlite` or `postgresql`."""
        return self.reader.dialect.name

    @contextmanager
    def read(self) -> Generator[Connection]:
        """Open a read-only connection. Its statements see the same state of the database.

        Raises:
            StorageError: If the database cannot be read.
        """
        if self.shared_connection is not None:
            with _convert_errors(self.reader):
                yield self.shared_connection
            return
        self.check_file()
        with read_safely(self.reader) as connection:
            yield connection

    @contextmanager
    def read_snapshot(self) -> Generator["Database"]:
        """Return this database with one shared read connection: all reads see the same state. For one thread only.

        Raises:
            StorageError: If the database cannot be read.
        """
        with self.read() as connection:
            yield replace(self, shared_connection=connection)

    @contextmanager
    def transaction(self, *, durable: bool = False) -> Generator[Connection]:
        """Open a write transaction. It is committed at the end, and rolled back on an exception.

        Args:
            durable: The commit waits for the disk. Then this transaction and all transactions before it, also those of
                other processes, survive a power failure, because the log of a database is written in order. The
                transaction must change at least one row: an empty one is not written to the log.

        Raises:
            StorageError: If the database was opened read-only or cannot be written.
        """
        if self.writer is None:
            reason = f" {READ_ONLY_VARIABLE}=1 is set." if is_read_only() else ""
            raise StorageError(f"{self.safe_url} was opened read-only.{reason}")
        self.check_file()
        with _convert_errors(self.writer), self.writer.connect() as connection:
            connection.execution_options(durable=durable)  # SQLite: read by `_begin`
            with connection.begin():
                if durable and self.path is None:
                    connection.execute(text("SET LOCAL synchronous_commit = on"))
                yield connection

    def check_file(self) -> None:
        """Raise if the SQLite file was moved or deleted. An open connection would still write to it.

        Raises:
            FileMissingError: If no file is at the path.
        """
        if self.path is not None and not self.path.exists():
            raise FileMissingError(
                f"The database file {self.path} was moved or deleted while it was in use. Move it back."
            )

    def dispose(self) -> None:
        """Close every pooled connection."""
        self.reader.dispose()
        if self.writer is not None:
            self.writer.dispose()


def open_database(url: str, *, read_only: bool = False, create: bool = True) -> Database:
    """Open a database. A missing SQLite file is created, and an empty database gets its tables.

    Args:
        url: A path, `sqlite:///folder/file.db`, whose path is not decoded, or `postgresql://…`. A relative path starts
            at the working directory.
        read_only: Open without write access. The database must exist and have tables. EMTC_READ_ONLY=1 in the
            environment sets this for all databases.
        create: Create a missing SQLite file. If False, a missing file is an error.

    Returns:
        The open database.

    Raises:
        StorageError: If the URL is invalid, the file cannot be opened or written, or the database has another schema.
            Then nothing is created.
    """
    parsed = address.parse_address(url)
    read_only = read_only or is_read_only()
    if isinstance(parsed, Path):
        return _open_sqlite(parsed, read_only=read_only, create=create and not read_only)
    full_url = parsed.render_as_string(hide_password=False)
    engine = _server_engine(parsed)
    reader = engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
    database = Database(full_url, None, reader, None if read_only else engine)
    try:
        _prepare_tables(database)
        return database
    except BaseException:
        database.dispose()
        raise


def is_read_only() -> bool:
    """Return whether EMTC_READ_ONLY=1 is set, so that this process must not start, change or delete anything."""
    return os.environ.get(READ_ONLY_VARIABLE, "") not in ("", "0")


def check_not_read_only(what: str) -> None:
    """Raise if EMTC_READ_ONLY=1 is set. `what` completes "cannot …", for example "start a run".

    Raises:
        StorageError: If it is set.
    """
    if is_read_only():
        raise StorageError(f"This process cannot {what}: {READ_ONLY_VARIABLE}=1 makes it read-only.")


def sweep_folder(database: Database, sweep_id: str) -> Path:
    """Return the folder for the log of a sweep in the background, without creating it.

    Raises:
        StorageError: If the id is invalid.
    """
    return files_root(database) / f"sweep-{check_identifier(sweep_id, 'The id of a sweep')}"


def files_root(database: Database) -> Path:
    """Return the folder for a database's files: next to a SQLite file, or in the user's data folder for a server."""
    if database.path is None:
        return user_data_path("emtc-lab")
    file = database.path.resolve()
    return file.with_name(f"{file.stem}.files")


def _open_sqlite(path: Path, *, read_only: bool, create: bool) -> Database:
    if not create:
        address.check_exists(path, ", or start a run: emtc train")
    created = [] if read_only else address.create_file(path)
    deadline = time.monotonic() + _OPENING_S
    while True:
        reader = _sqlite_engine(path, writes=False)
        writer = None if read_only else _sqlite_engine(path, writes=True)
        database = Database(address.sqlite_address(path), path, reader, writer)
        try:
            _prepare_tables(database)
            return database
        except BaseException as error:
            database.dispose()
            if read_only or time.monotonic() > deadline or not _is_busy(error):
                address.remove_created(created)
                raise
        time.sleep(_RETRY_S)


def _is_busy(error: BaseException) -> bool:
    """Return whether another process may be creating the SQLite file.

    SQLite does not wait for a lock while another process changes the journal mode, so the busy timeout is not enough.
    """
    name = getattr(error.__cause__, "sqlite_errorname", "") if isinstance(error, StorageError) else ""
    is_busy = name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_IOERR", "SQLITE_CANTOPEN"))
    return is_busy and name not in _DISK_FULL_ERRORS


def _sqlite_engine(path: Path, *, writes: bool) -> Engine:
    engine = create_engine(
        URL.create("sqlite", database=str(path)),
        creator=partial(address.connect, path, wait_s=BUSY_TIMEOUT_S, writes=writes),
        json_serializer=_serialize_json,
        json_deserializer=_parse_json,
        # each open connection has a page cache of up to 32 MiB, so that idle ones are closed and the last one is used
        pool_size=_OPEN_CONNECTIONS,
        max_overflow=15 - _OPEN_CONNECTIONS,
        pool_use_lifo=True,
    )

    @event.listens_for(engine, "connect")
    def _configure(connection: sqlite3.Connection, _record: object) -> None:
        connection.isolation_level = None  # `_begin` starts transactions, not the driver
        pragmas = [f"busy_timeout={int(BUSY_TIMEOUT_S * 1000)}", "foreign_keys=ON", "cache_size=-32768"]
        pragmas.append("trusted_schema=OFF")  # foreign views and checks must not call functions with effects
        if writes:
            pragmas += [f"page_size={PAGE_BYTES}", "journal_mode=WAL"]
        else:
            pragmas += ["query_only=ON"]
        for pragma in pragmas:
            connection.execute(f"PRAGMA {pragma}").close()

    @event.listens_for(engine, "checkin")
    def _close_immutable(connection: sqlite3.Connection | None, record: ConnectionPoolEntry) -> None:
        if isinstance(connection, address.ImmutableConnection):
            record.invalidate()  # it does not see the writes of other processes

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        if writes:  # before BEGIN, because it cannot be changed inside a transaction
            is_durable = connection.get_execution_options().get("durable", False)
            connection.exec_driver_sql(f"PRAGMA synchronous={'FULL' if is_durable else 'NORMAL'}")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _server_engine(url: URL) -> Engine:
    try:
        engine = create_engine(url, pool_pre_ping=True, json_serializer=_serialize_json)
    except ModuleNotFoundError as error:
        raise StorageError(f"PostgreSQL needs psycopg. Install it with: {get_install_command('postgres')}") from error
    return engine


def _serialize_json(value: Any) -> str:
    try:
        return json.dumps(value, allow_nan=False)
    except ValueError as error:  # the JSON functions of a database cannot read NaN
        raise StorageError("NaN and infinity cannot be stored in a JSON column. Replace them by null.") from error


def _parse_json(stored: Any) -> Any:
    try:
        return json.loads(stored)
    except (ValueError, TypeError, RecursionError) as error:
        raise make_unreadable_error(f"{shorten(stored)} is not JSON") from error


def _prepare_tables(database: Database) -> None:
    """Create the tables of an empty database, and refuse a database with another schema."""
    with database.read() as connection:
        if has_tables(connection, database.safe_url):
            return
    if database.writer is None:
        raise StorageError(
            f"{database.safe_url} is empty: it has no tables yet.",
            hint="Start a run in it first, without read-only access: emtc train",
        )
    with database.transaction() as connection:
        create_tables(connection, database.safe_url)
    if database.path is not None:
        _move_log_to_file(database.writer)


def _move_log_to_file(engine: Engine) -> None:
    """Write the log of a SQLite file to the file and to the disk, so that the file alone has the new tables."""
    connection = engine.raw_connection()
    try:
        with suppress(sqlite3.Error):  # the disk is full, and the tables stay in the log
            connection.cursor().execute("PRAGMA wal_checkpoint(PASSIVE)").close()
    finally:
        connection.close()


@contextmanager
def read_safely(engine: Engine) -> Generator[Connection]:
    """Open a connection for reading and convert errors of the driver to StorageError.

    Raises:
        StorageError: If the database cannot be read.
    """
    with _convert_errors(engine), engine.connect() as connection:
        yield connection


@contextmanager
def _convert_errors(engine: Engine) -> Generator[None]:
    """Convert errors of the database driver to StorageError, with the original error as the cause."""
    driver = engine.dialect.loaded_dbapi
    try:
        yield
    except DBAPIError as error:
        raise _make_failure(error.orig) from error.orig
    except StatementError as error:
        if isinstance(error.orig, StorageError):
            raise error.orig from None
        raise StorageError(f"A value cannot be stored: {_first_line(error.orig)}.") from error
    except driver.Error as error:
        raise _make_failure(error) from error
    except UnicodeError as error:  # for example half of a surrogate pair
        if "idna" in str(error):
            raise StorageError("The host name in the database's URL is invalid.") from error
        raise StorageError("A text must be valid Unicode to be stored in the database.") from error
    except OverflowError as error:  # SQLite has 64-bit integers
        raise StorageError("A number must be below 2^63 to be stored in the database.") from error


def _is_full(error: BaseException | None) -> bool:
    return getattr(error, "sqlite_errorname", "") in _DISK_FULL_ERRORS


def _make_failure(error: BaseException | None) -> StorageError:
    return StorageError(f"The database failed: {_first_line(error)}.")


def _first_line(error: BaseException | None) -> str:
    lines = hide_passwords(str(error)).strip().splitlines()
    message = lines[0].rstrip(".") if lines else type(error).__name__
    if _is_full(error):
        return f"{message}. The disk is full: delete files on it, or checkpoints with: emtc db thin RUN --checkpoints"
    if "readonly database" in message:
        return f"{message}. The file, its folder or its disk has become read-only: make it writable"
    return message
