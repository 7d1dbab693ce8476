"""Opening a database: pragmas, refusals that leave nothing behind, the version of the schema."""

import contextlib
import shutil
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import text

from emtc_core.errors import StorageError
from storage import engine
from storage.engine import Database, open_database
from storage.files import run_folder
from storage.runs.changes import create_run
from storage.runs.rows import find_run
from tests.storage.records import CONFIG


def test_a_database_and_its_folder_are_made_on_demand(tmp_path: Path) -> None:
    database = open_database(f"sqlite:///{tmp_path / 'a' / 'b' / 'x.db'}")
    with database.read() as connection:
        assert connection.execute(text("SELECT count(*) FROM runs")).scalar_one() == 0
    database.dispose()


def test_sqlite_is_opened_with_the_agreed_pragmas(sqlite_url: str) -> None:
    database = open_database(sqlite_url)
    with database.transaction() as connection:
        pragmas = ("journal_mode", "synchronous", "busy_timeout", "foreign_keys")
        values = [connection.execute(text(f"PRAGMA {name}")).scalar_one() for name in pragmas]
    assert values == ["wal", 1, 10_000, 1]
    database.dispose()


def test_two_connections_stay_open_after_many_reads_at_once(db: Database) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(6):
            stack.enter_context(db.read()).execute(text("SELECT 1"))
    if db.dialect == "sqlite":  # each has a page cache of up to 32 MiB
        assert db.reader.pool.checkedin() == 2


def test_a_reader_cannot_write(db: Database) -> None:
    with pytest.raises(StorageError, match=r"readonly|read-only"), db.read() as connection:
        connection.execute(text("DELETE FROM runs"))


def test_an_exception_undoes_the_whole_transaction(db: Database) -> None:
    with pytest.raises(StorageError, match="nonsense"), db.transaction() as connection:
        connection.execute(text("CREATE TABLE extra (id INTEGER)")).connection.exec_driver_sql("nonsense")
    with pytest.raises(StorageError), db.read() as connection:
        connection.execute(text("SELECT * FROM extra"))


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:////proc/nowhere/x.db",
        "sqlite:////dev/null/x.db",
        "mysql://h/x",
        "nonsense",
        "nonsense://x",
        "sqlite:x.db",
        "sqlite://",
        "sqlite:///:memory:",
    ],
)
def test_an_unusable_place_is_refused_with_one_sentence(url: str) -> None:
    with pytest.raises(StorageError) as caught:
        open_database(url)
    assert "\n" not in str(caught.value)


def test_a_refused_place_is_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file, not a folder")
    for path in (tmp_path / "taken" / "deep" / "x.db", tmp_path / "taken"):
        with pytest.raises(StorageError):
            open_database(f"sqlite:///{path}")
    assert [place.name for place in tmp_path.rglob("*")] == ["taken"]
    assert (tmp_path / "taken").read_text() == "a file, not a folder"


def test_a_folder_is_no_database(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="file"):
        open_database(f"sqlite:///{tmp_path}")


def test_reading_only_creates_nothing(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=str(tmp_path / "a" / "x.db")):
        open_database(f"sqlite:///{tmp_path / 'a' / 'x.db'}", read_only=True)
    assert list(tmp_path.iterdir()) == []


def test_a_read_only_database_refuses_to_write(sqlite_url: str) -> None:
    open_database(sqlite_url).dispose()
    database = open_database(sqlite_url, read_only=True)
    with pytest.raises(StorageError, match="read-only"), database.transaction():
        pass
    database.dispose()


def test_a_text_file_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "x.db").write_text("dear diary, " * 100)
    with pytest.raises(StorageError, match="not a database"):
        open_database(f"sqlite:///{tmp_path / 'x.db'}")
    assert [place.name for place in tmp_path.iterdir()] == ["x.db"]


def test_a_foreign_database_is_refused(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "x.db") as connection:
        connection.execute("CREATE TABLE recipes (id INTEGER)")
    connection.close()
    with pytest.raises(StorageError, match=f"sqlite:///{tmp_path / 'x.db'}"):
        open_database(f"sqlite:///{tmp_path / 'x.db'}")


@pytest.mark.parametrize(
    "statements",
    [
        ("UPDATE schema_version SET version = 9999",),
        ("UPDATE schema_version SET version = 0",),
        ("DELETE FROM schema_version",),
        ("INSERT INTO schema_version VALUES (2)",),
        ("DROP TABLE schema_version", "CREATE TABLE alembic_version (version_num VARCHAR(32))"),
    ],
)
def test_a_database_of_another_version_is_refused_in_one_sentence(url: str, statements: tuple[str, ...]) -> None:
    database = open_database(url)
    with database.transaction() as connection:
        for statement in statements:
            connection.execute(text(statement))
    database.dispose()
    for read_only in (True, False):
        with pytest.raises(StorageError, match="version") as refusal:
            open_database(url, read_only=read_only)
        assert "this version reads 1). Use that version, or start a new database" in str(refusal.value)


@pytest.mark.parametrize(
    ("column", "value", "read"),
    [
        ("config", "{", find_run),
        ("config", 7, find_run),
        ("created_at", "yesterday", find_run),
        ("tags", "[", find_run),
    ],
)
def test_a_stored_value_that_cannot_be_read_gives_one_sentence(sqlite_url: str, column: str, value, read) -> None:
    database = open_database(sqlite_url)
    run_id = create_run(database, CONFIG, target_steps=1, versions={})
    with database.transaction() as connection:
        connection.execute(text(f"UPDATE runs SET {column} = :value"), {"value": value})
    with pytest.raises(StorageError, match="cannot be read") as refusal:
        read(database, run_id)
    assert str(refusal.value).startswith("This data cannot be read: ")
    assert "\n" not in str(refusal.value)
    database.dispose()


def test_the_status_of_a_run_is_one_of_six_words(db: Database) -> None:
    create_run(db, CONFIG, target_steps=1, versions={})
    with pytest.raises(StorageError, match="status_is_known"), db.transaction() as connection:
        connection.execute(text("UPDATE runs SET status = 'lost'"))


def test_several_processes_may_open_a_new_database_at_once(url: str) -> None:
    failures: list[Exception] = []

    def open_it() -> None:
        try:
            open_database(url).dispose()
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=open_it) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_who_cannot_open_a_new_database_does_not_remove_it_under_another(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "x.db"
    monkeypatch.setattr(engine, "_OPENING_S", 0.0)

    def fails_after_another_has_begun(database: Database) -> None:
        with sqlite3.connect(path) as other:
            other.execute("CREATE TABLE runs (id TEXT)")
        other.close()
        raise StorageError("The database failed: database is locked.")

    monkeypatch.setattr(engine, "_prepare_tables", fails_after_another_has_begun)
    with pytest.raises(StorageError, match="locked"):
        open_database(f"sqlite:///{path}")
    assert sqlite3.connect(path).execute("SELECT count(*) FROM runs").fetchall() == [(0,)]


def test_a_file_that_somebody_is_making_is_opened_once_it_is_made(tmp_path: Path, monkeypatch) -> None:
    tries: list[Database] = []
    prepare = engine._prepare_tables

    def fails_at_first(database: Database) -> None:
        tries.append(database)
        if len(tries) < 3:
            cause = sqlite3.OperationalError("disk I/O error")
            cause.sqlite_errorname = "SQLITE_IOERR_READ"
            raise StorageError("The database failed: disk I/O error.") from cause
        prepare(database)

    monkeypatch.setattr(engine, "_prepare_tables", fails_at_first)
    open_database(f"sqlite:///{tmp_path / 'x.db'}").dispose()
    assert len(tries) == 3


def test_a_run_folder_stands_beside_the_database(tmp_path: Path) -> None:
    database = open_database(f"sqlite:///{tmp_path / 'x.db'}")
    assert run_folder(database, "abc") == tmp_path / "x.files" / "abc"
    database.dispose()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_json_with_nan_or_infinity_is_not_stored(db: Database, value: float) -> None:
    with pytest.raises(StorageError, match="JSON"):
        create_run(db, CONFIG | {"train": {"gamma": value}}, target_steps=1, versions={})
    with db.read() as connection:
        assert connection.execute(text("SELECT count(*) FROM runs")).scalar_one() == 0


def test_the_file_of_a_new_database_has_the_tables_without_its_log(sqlite_url: str, tmp_path: Path) -> None:
    database = open_database(sqlite_url)
    assert database.path is not None
    copy = shutil.copy(database.path, tmp_path / "copy.db")
    with closing(sqlite3.connect(copy)) as connection:
        assert connection.execute("SELECT count(*) FROM runs").fetchall() == [(0,)]
    database.dispose()


def test_only_a_durable_commit_waits_for_the_disk(sqlite_url: str) -> None:
    database, levels = open_database(sqlite_url), list[int]()
    for durable in (True, False):
        with database.transaction(durable=durable) as connection:
            levels.append(connection.execute(text("PRAGMA synchronous")).scalar_one())
    assert levels == [2, 1], "FULL, then NORMAL"
    database.dispose()
