"""Copy a whole database while other processes write, and vacuum it."""

import os
import shutil
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from sqlalchemy import select

from emtc_core.atomic_file import replace_atomically
from emtc_core.errors import RunStateError, StorageError
from storage.address import connect
from storage.engine import BUSY_TIMEOUT_S, Database, check_not_read_only, read_safely
from storage.maintenance.sizes import file_sizes
from storage.models import Run
from storage.private_files import parent_folder
from storage.runs.rows import read_live_status
from storage.runs.status import NOT_ENDED, STATUS_COLUMNS, allows, read_clock

_MAX_LISTED_RUNS: Final = 5


@dataclass(frozen=True)
class VacuumResult:
    """Size of the database before and after a vacuum [bytes]."""

    before: int
    after: int

    def __str__(self) -> str:
        return f"{self.before / 1e6:,.1f} MB before, {self.after / 1e6:,.1f} MB after"


def back_up_database(db: Database, place: Path | None = None) -> Path:
    """Copy a SQLite database while other processes write to it. The folders of its runs are not copied.

    Args:
        db: The database.
        place: Path of the copy, which must not exist; its folder is created. By default the copy is in the folder of
            the database, named by the time.

    Returns:
        The path of the copy.

    Raises:
        StorageError: If the database is on a server, the copy cannot be written, or EMTC_READ_ONLY=1 is set.
    """
    check_not_read_only("back up a database")
    if db.path is None:
        raise StorageError("Only SQLite databases can be copied. For PostgreSQL use: pg_dump --format=custom")
    place = place or db.path.with_name(f"{db.path.stem}.backup-{datetime.now(UTC):%Y%m%d-%H%M%S}.db")
    if os.path.lexists(place):
        raise StorageError(f"{place} already exists, and a backup does not replace files. Choose another name.")
    try:
        with parent_folder(place), replace_atomically(place, durable=True, private=True) as file:
            _copy_pages(db.path, Path(file.name))
    except (OSError, sqlite3.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise StorageError(f"The backup {place} cannot be written: {reason}. Choose another path.") from error
    return place


def vacuum(db: Database) -> VacuumResult:
    """Rewrite a database without its free pages. On PostgreSQL also update the statistics of the query planner.

    Raises:
        RunStateError: If a run is active. A vacuum locks the database for a long time, so its trainer could not write.
        StorageError: If the database was opened read-only, the disk has less free space than twice the database's
            size, or the database reports an error.
    """
    check_not_read_only("vacuum a database")
    if db.writer is None:
        raise StorageError(f"{db.safe_url} was opened read-only and cannot be vacuumed.")
    if active := list_active_runs(db):
        listed = ", ".join(active[:_MAX_LISTED_RUNS]) + (" …" if len(active) > _MAX_LISTED_RUNS else "")
        raise RunStateError(
            f"A vacuum must wait until no run is active. Active runs: {listed}. Stop them with: emtc stop RUN"
        )
    with db.read() as connection:
        before, _ = file_sizes(connection, db)
    if db.path is None:
        with read_safely(db.writer.execution_options(isolation_level="AUTOCOMMIT")) as connection:
            connection.exec_driver_sql("VACUUM (ANALYZE)")
    else:
        free = shutil.disk_usage(db.path.parent).free
        if free < 2 * before:
            raise StorageError(
                f"A vacuum writes a copy and a log to {db.path.parent}. It needs {2 * before / 1e6:,.0f} MB, "
                f"and {free / 1e6:,.0f} MB are free. Free disk space first."
            )
        try:
            with closing(sqlite3.connect(str(db.path), timeout=BUSY_TIMEOUT_S, isolation_level=None)) as sqlite:
                sqlite.execute("VACUUM")
                sqlite.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except sqlite3.Error as error:
            raise StorageError(
                f"The vacuum failed and nothing changed: {error}. Try again when no other process reads the database."
            ) from error
    with db.read() as connection:
        after, _ = file_sizes(connection, db)
    return VacuumResult(before, after)


def list_active_runs(db: Database) -> list[str]:
    """List the ids of the runs that a trainer writes or may still write. Such a run cannot be deleted."""
    unfinished = select(*STATUS_COLUMNS).where(Run.status.in_(NOT_ENDED))
    with db.read() as connection:
        rows = connection.execute(unfinished.order_by(Run.id)).all()
        now = read_clock(connection)
    return [row.id for row in rows if not allows(read_live_status(db, row, now)[0], "delete")]


def _copy_pages(path: Path, target_path: Path) -> None:
    """Copy one state of a database by SQLite's online backup, so that other processes can write meanwhile."""
    with (
        closing(connect(path, wait_s=BUSY_TIMEOUT_S, writes=False)) as source,
        closing(sqlite3.connect(target_path)) as target,
    ):
        source.backup(target)
        target.execute("PRAGMA journal_mode=DELETE")  # one file without a write-ahead log
