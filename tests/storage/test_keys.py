"""Transitions of a run: they go with it, and they are not written while it is deleted.

On PostgreSQL `transitions` has no foreign key: the lock of the row of the run does this.
"""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.exc import OperationalError

from emtc_core.errors import RunNotFoundError
from storage.engine import Database, open_database
from storage.recording.batch import make_batch
from storage.recording.statements import write_batch
from storage.runs.changes import create_run
from tests.storage.records import CONFIG, make_episode

DELETE = text("DELETE FROM runs WHERE id = :run")


def write_episode(connection: Connection, run_id: str) -> None:
    write_batch(connection, run_id, make_batch(run_id, [make_episode(1, 1)]))


def count_transitions(db: Database, run_id: str) -> int:
    with db.read() as connection:
        counted = text("SELECT count(*) FROM transitions WHERE run_id = :run")
        return connection.execute(counted, {"run": run_id}).scalar_one()


def make_run(db: Database) -> str:
    return create_run(db, CONFIG, target_steps=1000, versions={})


@pytest.fixture
def server_db(ready_postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    database = open_database(ready_postgres_url)
    yield database
    database.dispose()


@pytest.mark.postgres
def test_a_run_is_not_deleted_while_its_rows_are_written(server_db: Database):
    run_id, impatient = make_run(server_db), create_engine(server_db.url)
    with server_db.transaction() as writing:
        write_episode(writing, run_id)
        with impatient.connect() as deleting:
            deleting.execute(text("SET lock_timeout = '200ms'"))
            with pytest.raises(OperationalError, match="lock timeout"):
                deleting.execute(DELETE, {"run": run_id})
    impatient.dispose()


@pytest.mark.postgres
def test_rows_of_a_run_that_is_being_deleted_wait_and_are_refused(server_db: Database):
    run_id = make_run(server_db)
    is_writing = threading.Event()

    def write_meanwhile() -> None:
        is_writing.set()
        with pytest.raises(RunNotFoundError), server_db.transaction() as writing:
            write_episode(writing, run_id)

    with ThreadPoolExecutor(1) as pool:
        with server_db.transaction() as deleting:
            deleting.execute(DELETE, {"run": run_id})
            refusal = pool.submit(write_meanwhile)
            is_writing.wait()
        refusal.result(timeout=60)
    assert count_transitions(server_db, run_id) == 0
