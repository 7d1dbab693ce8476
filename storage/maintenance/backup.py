"""A whole database: copied as it is while others write, and rewritten without what is empty."""

import shutil
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import select

from emtc_core.errors import RunStateError, StorageError
from storage.engine import BUSY_TIMEOUT_S, Database, refuse_when_read_only
from storage.maintenance.sizes import file_sizes
from storage.migrations.upgrade import copy_database
from storage.models import Run
from storage.runs.lifecycle import Event, allows
from storage.runs.rows import RUN_COLUMNS, state_now


@dataclass(frozen=True)
class Vacuumed:
    """The size of the database before and after [bytes]."""

    before: int
    after: int

    def __str__(self) -> str:
        return f"{self.before / 1e6:,.1f} MB before, {self.after / 1e6:,.1f} MB after"


def back_up_now(db: Database, place: Path | None = None) -> Path:
    """Copy a SQLite database while others write, beside itself or to a place that is not there yet.

    Raises:
        StorageError: If it is a server's, the copy cannot be written, or EMTC_READ_ONLY=1 forbids it.
    """
    refuse_when_read_only("back up a database")
    if db.path is None:
        raise StorageError(
            "A server's database is not copied here. Use its own tool, as: pg_dump --format=custom", reason="server"
        )
    return copy_database(db.path, place)


def vacuum(db: Database) -> Vacuumed:
    """Rewrite a database without its empty pages.

    Raises:
        RunStateError: If a run is being written: the rewriting would lock its trainer out for long.
        StorageError: If there is not room for a second copy meanwhile, or the database fails.
    """
    refuse_when_read_only("vacuum a database")
    _refuse_at_work(db)
    with db.read() as connection:
        before, _ = file_sizes(connection, db)
    if db.path is None:
        _vacuum_server(db)
    else:
        if (free := shutil.disk_usage(db.path.parent).free) < 2 * before:
            raise StorageError(
                f"A vacuum needs room for a copy and its log beside {db.path}: {2 * before / 1e6:,.0f} MB, "
                f"and {free / 1e6:,.0f} MB are free. Make room first."
            )
        _vacuum_file(db)
    with db.read() as connection:
        after, _ = file_sizes(connection, db)
    return Vacuumed(before, after)


def list_at_work(db: Database) -> list[str]:
    """List the runs that are being written, or may wake up and write."""
    alive = select(*RUN_COLUMNS).where(Run.status.in_(("queued", "running", "paused")))
    with db.read() as connection:
        rows = connection.execute(alive.order_by(Run.id)).all()
    states = {row.id: state_now(row) for row in rows}
    return [run_id for run_id, state in states.items() if not allows(state, Event.DELETE)]


def _refuse_at_work(db: Database) -> None:
    if busy := list_at_work(db):
        shown = ", ".join(busy[:5]) + (" …" if len(busy) > 5 else "")
        raise RunStateError(
            f"A vacuum must wait until nobody writes; at work: {shown}. Stop them with: emtc stop RUN",
            reason="at_work",
            subject=shown,
        )


def _vacuum_file(db: Database) -> None:
    try:
        with closing(sqlite3.connect(str(db.path), timeout=BUSY_TIMEOUT_S, isolation_level=None)) as connection:
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except sqlite3.Error as error:
        raise StorageError(f"The vacuum failed and nothing changed: {error}. Try again when nobody reads.") from error


def _vacuum_server(db: Database) -> None:
    if db.writer is None:
        raise StorageError(f"{db.shown} was opened for reading only.")
    engine = db.writer.execution_options(isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql("VACUUM (ANALYZE)")
