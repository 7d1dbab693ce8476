"""Rows that name a run: refused without it, gone with it, and it stays while they are being written.

On PostgreSQL triggers of ours do for `transitions` what a foreign key does elsewhere.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import Connection, create_engine, insert, text
from sqlalchemy.exc import IntegrityError, OperationalError

from emtc_core.errors import StorageError
from storage.engine import Database, open_database
from storage.models import EpisodeRow, Transition
from storage.runs.changes import create_run
from tests.storage.records import CONFIG


def write_transitions(connection: Connection, *run_ids: str, steps: range = range(1, 4)) -> None:
    rows = [
        {"run_id": run_id, "env_step": step, "episode": 1, "t": step, "reward": 0.0}
        for run_id in run_ids
        for step in steps
    ]
    connection.execute(insert(Transition), rows)


def count_transitions(db: Database, run_id: str) -> int:
    with db.read() as connection:
        counted = text("SELECT count(*) FROM transitions WHERE run_id = :run")
        return connection.execute(counted, {"run": run_id}).scalar_one()


def make_run(db: Database) -> str:
    return create_run(db, CONFIG, target_steps=1000, versions={})


def test_transitions_of_a_run_that_is_not_there_are_refused_with_all_beside_them(db: Database, run_id: str):
    def write() -> None:
        with db.transaction() as connection:
            write_transitions(connection, run_id)
            write_transitions(connection, run_id, "nowhere", steps=range(4, 6))

    with pytest.raises(StorageError, match=r"(?i)foreign key|not there: nowhere"):
        write()
    assert count_transitions(db, run_id) == 0


def test_transitions_go_with_their_run_and_no_others(db: Database, run_id: str):
    other = make_run(db)
    with db.transaction() as connection:
        write_transitions(connection, run_id, other)
        connection.execute(text("DELETE FROM runs WHERE id = :run"), {"run": run_id})
    assert (count_transitions(db, run_id), count_transitions(db, other)) == (0, 3)


@pytest.fixture
def server_db(ready_postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    database = open_database(ready_postgres_url)
    yield database
    database.dispose()


def write_episode(connection: Connection, run_id: str) -> None:
    """Write a row of a table that the server's own foreign key guards."""
    row = {"run_id": run_id, "episode": 1, "first_env_step": 1, "length": 1, "episode_return": 0.0, "won": False}
    connection.execute(insert(EpisodeRow), row | {"epsilon": 0.0, "trajectory": b""})


@pytest.mark.postgres
@pytest.mark.parametrize("write", [write_transitions, write_episode])
def test_a_run_is_not_deleted_while_its_rows_are_being_written(server_db: Database, write: Callable[..., None]):
    run_id, impatient = make_run(server_db), create_engine(server_db.url)
    with server_db.transaction() as writing:
        write(writing, run_id)
        with impatient.connect() as deleting:
            deleting.execute(text("SET lock_timeout = '200ms'"))
            with pytest.raises(OperationalError, match="lock timeout"):
                deleting.execute(text("DELETE FROM runs WHERE id = :run"), {"run": run_id})
    with server_db.transaction() as deleting:
        deleting.execute(text("DELETE FROM runs WHERE id = :run"), {"run": run_id})
    assert count_transitions(server_db, run_id) == 0


@pytest.mark.postgres
@pytest.mark.parametrize("write", [write_transitions, write_episode])
def test_rows_of_a_run_that_is_being_deleted_wait_and_are_refused(server_db: Database, write: Callable[..., None]):
    run_id = make_run(server_db)
    asked = threading.Event()

    def write_meanwhile() -> str:
        asked.set()
        with create_engine(server_db.url).begin() as writing, pytest.raises(IntegrityError) as refused:
            write(writing, run_id)
        return str(refused.value)

    with ThreadPoolExecutor(1) as pool:
        with server_db.transaction() as deleting:
            deleting.execute(text("DELETE FROM runs WHERE id = :run"), {"run": run_id})
            refusal = pool.submit(write_meanwhile)
            asked.wait()
        assert "is not present in table" in (said := refusal.result(timeout=60)) or f"not there: {run_id}" in said
    assert count_transitions(server_db, run_id) == 0
