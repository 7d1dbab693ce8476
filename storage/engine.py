"""Open, create and upgrade a database; read connections and write transactions.

`open_database` is the only public way to open a database that is trusted. A read connection cannot write. A write
transaction is committed as a whole or rolled back. The tables are in `models`. `migrations` upgrades an older database
and makes a backup of it before. `guards` and `column_types` check the values of a database.
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

from emtc_core.atomic_file import sync_to_disk
from emtc_core.errors import StorageError
from emtc_core.install import get_install_command
from storage import address
from storage.guards import check_identifier, hide_passwords
from storage.migrations import upgrade
from storage.migrations.upgrade import back_up_before_upgrade
from storage.private_files import find_folder

READ_ONLY_VARIABLE = "EMTC_READ_ONLY"
FILE_CHANGED: Final = frozenset({"file_missing", "file_replaced"})
"""The `reason` of an error if the file of an open SQLite database is no longer at its path."""
BUSY_TIMEOUT_S = 10.0
"""Maximum time that SQLite waits for a lock."""
PAGE_BYTES = 8192
"""Page size of new SQLite files."""
_OPEN_CONNECTIONS = 2
"""Number of connections of an engine that stay open without a use."""
_OPENING_S = 20.0
"""Maximum time to retry while another process creates or upgrades the file."""
_RETRY_S = 0.05
_UPGRADE_TIMEOUT_S = 300.0
"""Maximum time to wait for a lock during an upgrade. Another process may copy and upgrade a large database."""
_DISK_FULL_ERRORS = address.SHARED_MEMORY_ERRORS | {"SQLITE_IOERR_WRITE", "SQLITE_IOERR_FSYNC"}


@dataclass(frozen=True)
class Database:
    """An open database. Threads can share it, but processes created by a fork cannot."""

    url: str = field(repr=False)
    """Absolute URL, for other processes. It may contain a password; show `shown` to users instead."""
    path: Path | None
    """The SQLite file; None for a server."""
    reader: Engine
    writer: Engine | None
    """None if the database was opened read-only."""
    server_id: str | None = None
    """Identity of a database on a server, see `_read_server_id`; None for a SQLite file."""
    backup: Path | None = None
    """The backup of an older database, if opening it has just upgraded it."""
    shared_connection: Connection | None = field(default=None, repr=False)
    """The connection that all reads share, see `read_snapshot`; None opens one per read."""
    file_id: tuple[int, int] | None = None
    """Device and inode of the SQLite file; None for a server."""

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
    def transaction(self) -> Generator[Connection]:
        """Open a write transaction. It is committed at the end, and rolled back on an exception.

        Raises:
            StorageError: If the database was opened read-only or cannot be written.
        """
        if self.writer is None:
            reason = f" {READ_ONLY_VARIABLE}=1 is set." if is_read_only() else ""
            raise StorageError(
                f"{self.safe_url} was opened read-only.{reason}", reason="opened_read_only", subject=self.safe_url
            )
        self.check_file()
        with _convert_errors(self.writer), self.writer.begin() as connection:
            yield connection

    def check_file(self) -> None:
        """Raise if the SQLite file was moved, deleted or replaced. A connection would still use the first file.

        Raises:
            StorageError: If another file, or none, is at the path. The reason is in FILE_CHANGED.
        """
        if self.file_id is None or self.path is None or (file_id := address.read_file_id(self.path)) == self.file_id:
            return
        if file_id is None:
            raise StorageError(
                f"The database file {self.path} was moved or deleted while it was in use. Move it back.",
                reason="file_missing",
                subject=self.path,
            )
        raise StorageError(
            f"The database file {self.path} was replaced by another one while it was in use. Move the first one back, "
            "or restart this program to use the other one.",
            reason="file_replaced",
            subject=self.path,
        )

    def sync(self) -> None:
        """Wait until every committed transaction is on the disk, so that a power failure loses none of them.

        SQLite writes a transaction to the write-ahead log and does not wait for the disk (`synchronous=NORMAL`). Before
        it overwrites the log, it writes all of it to the database file and waits for both. So one sync of the log is
        enough, for the transactions of all processes. No lock is needed. A server waits for the disk by itself, unless
        `synchronous_commit` is off. Then one transaction that waits is enough, because the log is written in order.

        Raises:
            StorageError: If the disk or the server reports an error, or the SQLite file was moved.
        """
        if self.path is None:
            self._sync_server()
            return
        self.check_file()
        log = address.get_log_path(self.path)
        try:
            sync_to_disk(log)
            sync_to_disk(log.parent)  # the log may be new
        except FileNotFoundError:  # no connection is open, so SQLite has written all of it to the database file
            return
        except OSError as error:
            raise StorageError(
                f"The disk did not store {log}: {(error.strerror or str(error)).lower()}.",
                reason="not_synced",
                subject=log,
            ) from error

    def _sync_server(self) -> None:
        with self.transaction() as connection:
            if connection.execute(text("SHOW synchronous_commit")).scalar_one() == "off":
                connection.execute(text("SET LOCAL synchronous_commit = on"))
                message = text("SELECT pg_logical_emit_message(true, 'emtc-lab', '')")
                connection.execute(message)  # a commit waits only if its transaction has written something

    def dispose(self) -> None:
        """Close every pooled connection."""
        self.reader.dispose()
        if self.writer is not None:
            self.writer.dispose()


def open_database(url: str, *, read_only: bool = False, create: bool = True) -> Database:
    """Open a database. A missing SQLite file is created and an older database is upgraded.

    Args:
        url: A path, `sqlite:///folder/file.db`, whose path is not decoded, or `postgresql://…`. A relative path starts
            at the working directory.
        read_only: Open without write access. The database must exist and have the current version. EMTC_READ_ONLY=1
            in the environment sets this for all databases.
        create: Create a missing SQLite file. If False, a missing file is an error.

    Returns:
        The open database.

    Raises:
        StorageError: If the URL is invalid, or the file cannot be opened or written. Then nothing is created.
        NewerDatabaseError: If a newer version of EMTC Lab wrote it.
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
        return replace(_upgrade(database), server_id=_read_server_id(database))
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
        raise StorageError(
            f"This process cannot {what}: {READ_ONLY_VARIABLE}=1 makes it read-only.", reason="read_only", subject=what
        )


def sweep_folder(database: Database, sweep_id: str) -> Path:
    """Return the folder for the log of a sweep's scheduler, without creating it.

    Raises:
        StorageError: If the id is invalid, or the folder is or contains a link or a special file.
    """
    return find_folder(files_root(database), f"sweep-{check_identifier(sweep_id, 'The id of a sweep')}")


def files_root(database: Database) -> Path:
    """Return the folder for a database's files: next to a SQLite file, or in the user's data folder for a server."""
    return files_root_of(database.path)


def files_root_of(path: Path | None) -> Path:
    """Return the folder for the files of the SQLite database at `path` (links are resolved), or of a server (None)."""
    if path is None:
        return user_data_path("emtc-lab")
    file = path.resolve()
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
            return replace(_upgrade(database), file_id=address.read_file_id(path))
        except BaseException as error:
            database.dispose()
            if read_only or time.monotonic() > deadline or not _is_busy(error):
                address.remove_created(created)
                raise
        time.sleep(_RETRY_S)


def _is_busy(error: BaseException) -> bool:
    """Return whether another process may be creating or upgrading the SQLite file.

    SQLite does not wait for a lock while another process changes the journal mode, so the busy timeout is not enough.
    """
    name = getattr(error.__cause__, "sqlite_errorname", "") if isinstance(error, StorageError) else ""
    is_busy = name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_IOERR", "SQLITE_CANTOPEN"))
    return is_busy and name not in _DISK_FULL_ERRORS


def open_untrusted(url: str) -> tuple[Engine, Path | None]:
    """Open a database for reading without any check, for code that checks it. All other code calls `open_database`.

    Returns:
        The engine, and the path of a SQLite file or None.

    Raises:
        StorageError: If the URL is invalid or the file does not exist.
    """
    parsed = address.parse_address(url)
    if isinstance(parsed, URL):
        return _server_engine(parsed).execution_options(postgresql_readonly=True), None
    address.check_exists(parsed, ".")
    return _sqlite_engine(parsed, writes=False), parsed


def find_schema(url: str) -> tuple[str | None, bool]:
    """Return the schema version of a database (None if it has no tables), and whether it is a SQLite file.

    Raises:
        StorageError: If there is no database, or another program created its tables.
    """
    engine, path = open_untrusted(url)
    try:
        with read_safely(engine) as connection:
            return upgrade.read_version(connection, hide_passwords(url)), path is not None
    finally:
        engine.dispose()


def _sqlite_engine(path: Path, *, writes: bool, is_upgrade: bool = False) -> Engine:
    wait_s = _UPGRADE_TIMEOUT_S if is_upgrade else BUSY_TIMEOUT_S
    engine = create_engine(
        URL.create("sqlite", database=str(path)),
        creator=partial(address.connect, path, wait_s=wait_s, writes=writes),
        json_serializer=_serialize_json,
        # each open connection has a page cache of up to 32 MiB, so that idle ones are closed and the last one is used
        pool_size=_OPEN_CONNECTIONS,
        max_overflow=15 - _OPEN_CONNECTIONS,
        pool_use_lifo=True,
    )

    @event.listens_for(engine, "connect")
    def _configure(connection: sqlite3.Connection, _record: object) -> None:
        connection.isolation_level = None  # `_begin` starts transactions, not the driver
        pragmas = [f"busy_timeout={int(wait_s * 1000)}", f"foreign_keys={not is_upgrade:d}", "cache_size=-32768"]
        pragmas.append("trusted_schema=OFF")  # foreign views and checks must not call functions with effects
        if writes:
            pragmas += [f"page_size={PAGE_BYTES}", "journal_mode=WAL", "synchronous=NORMAL"]
        else:
            pragmas += ["query_only=ON"]
        for pragma in pragmas:
            connection.execute(f"PRAGMA {pragma}").close()

    @event.listens_for(engine, "checkin")
    def _close_exclusive(connection: sqlite3.Connection | None, record: ConnectionPoolEntry) -> None:
        if isinstance(connection, address.ExclusiveConnection):
            record.invalidate()  # it locks out other processes, or does not see their writes

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
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
        raise StorageError(
            "NaN and infinity cannot be stored in a JSON column. Replace them by null.", reason="not_json"
        ) from error


def _read_server_id(database: Database) -> str:
    """Read what identifies a database in PostgreSQL: the system identifier of its cluster and its own oid.

    A copy by CREATE DATABASE … TEMPLATE, or by dump and restore, has another oid or another cluster. A renamed
    database keeps both. If the role may not read the identifier, the address of the server takes its place.
    """
    with database.read() as connection:
        oid, may_ask = connection.execute(
            text(
                "SELECT oid, has_function_privilege('pg_control_system()', 'EXECUTE') FROM pg_database "
                "WHERE datname = current_database()"
            )
        ).one()
        cluster = f"{database.reader.url.host}:{database.reader.url.port}"
        if may_ask:
            cluster = connection.execute(text("SELECT system_identifier FROM pg_control_system()")).scalar_one()
    return f"postgresql/{cluster}/{oid}"


def _upgrade(database: Database) -> Database:
    with database.read() as connection:
        if upgrade.is_current(connection, database.safe_url):
            return database
        version = upgrade.read_version(connection, database.safe_url)
    if database.writer is None:
        raise StorageError(
            _explain_unreadable(database, version),
            reason="older_version" if version else "empty",
            subject=database.safe_url,
        )
    migrator, backup = database, None
    if database.path is not None:  # SQLite alters a table by a copy; dropping the original must not cascade
        engine = _sqlite_engine(database.path, writes=True, is_upgrade=True)
        migrator = replace(database, writer=engine)
    try:
        with migrator.transaction() as connection:
            if database.path is not None and upgrade.read_version(connection, database.safe_url) is not None:
                backup = back_up_before_upgrade(database.path, version)
            upgrade.upgrade_to_head(connection, database.safe_url)
        if database.path is not None and migrator.writer is not None:
            _move_log_to_file(migrator.writer)
    finally:
        if migrator.writer is not database.writer and migrator.writer is not None:
            migrator.writer.dispose()
    return replace(database, backup=backup)


def _move_log_to_file(engine: Engine) -> None:
    """Write the log of a SQLite file to the file and to the disk, so that the file alone has the new tables."""
    connection = engine.raw_connection()
    try:
        with suppress(sqlite3.Error):  # the disk is full, and the tables stay in the log
            connection.cursor().execute("PRAGMA wal_checkpoint(PASSIVE)").close()
    finally:
        connection.close()


def _explain_unreadable(database: Database, version: str | None) -> str:
    """Return why a read-only database cannot be used, and the command that fixes it."""
    place = database.path or (database.url if database.url == database.safe_url else "--db URL")
    if version is None:
        return f"{database.safe_url} is empty: it has no tables yet. Create them with: emtc db upgrade {place}"
    return (
        f"{database.safe_url} is of an older version: it has schema {version}, and this program needs "
        f"{upgrade.SCHEMA_VERSION}. Upgrade it (a backup is made first): emtc db upgrade {place}"
    )


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
        raise
    except driver.Error as error:
        raise _make_failure(error) from error
    except UnicodeError as error:  # for example half of a surrogate pair
        if "idna" in str(error):
            raise StorageError("The host name in the database's URL is invalid.") from error
        raise StorageError("A text must be valid Unicode to be stored in the database.") from error
    except OverflowError as error:  # SQLite has 64-bit integers
        raise StorageError("A number must be below 2^63 to be stored in the database.") from error


def is_disk_full(error: StorageError) -> bool:
    """Return whether a database failed because its disk is full."""
    return _is_full(error.__cause__)


def _is_full(error: BaseException | None) -> bool:
    return getattr(error, "sqlite_errorname", "") in _DISK_FULL_ERRORS


def _make_failure(error: BaseException | None) -> StorageError:
    reason = "disk_full" if _is_full(error) else "failed"
    return StorageError(f"The database failed: {_first_line(error)}.", reason=reason, subject=type(error).__name__)


def _first_line(error: BaseException | None) -> str:
    lines = hide_passwords(str(error)).strip().splitlines()
    message = lines[0].rstrip(".") if lines else type(error).__name__
    if _is_full(error):
        return f"{message}. The disk is full: delete files on it, or thin runs with: emtc db thin"
    if "readonly database" in message:
        return f"{message}. The file, its folder or its disk has become read-only: make it writable"
    return message
