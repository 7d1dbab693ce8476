"""Check the invariants of each run of a bundle's database."""

from sqlalchemy import text

from emtc_core.errors import StorageError
from storage.engine import Database
from storage.maintenance.check import check_run
from storage.runs.rows import find_run, imported_label


def check_study(db: Database) -> None:
    """Check all rows of a bundle's database, which must have the current schema.

    Raises:
        StorageError: At the first error. The message names the row or the run.
    """
    with db.read() as connection:
        run_ids = list(connection.execute(text("SELECT id FROM runs ORDER BY id")).scalars())
    for run_id in run_ids:
        _check_run(db, run_id)


def _check_run(db: Database, run_id: str) -> None:
    try:
        if not _has_steps(db, run_id):
            return
        if imported_label(find_run(db, run_id).config) is not None:  # `check_run` does not check such a run
            raise StorageError("it is marked as imported from another program, but it has episodes", reason="unsound")
        errors = check_run(db, run_id)
    except StorageError as error:
        raise StorageError(f"run {run_id}: {error}", reason=error.reason, subject=error.subject) from error
    except Exception as error:  # the settings of another version can make any equation fail
        raise StorageError(f"run {run_id}: its rows cannot be checked with its config") from error
    if errors:
        raise StorageError(errors[0], reason="unsound", subject=run_id)


def _has_steps(db: Database, run_id: str) -> bool:
    """Does a run have episodes or transitions? A run that was imported from another program has only curves."""
    tables = ("episodes", "transitions", "transition_summary")
    condition = " OR ".join(f"EXISTS (SELECT 1 FROM {table} WHERE run_id = :run)" for table in tables)
    with db.read() as connection:
        return bool(connection.execute(text(f"SELECT {condition}"), {"run": run_id}).scalar_one())
