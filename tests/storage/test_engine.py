"""Opening a database: pragmas, refusals that leave nothing behind, the version of the schema."""

import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import text

from emtc_core.errors import StorageError
from storage import engine
from storage.engine import Database, open_database
from storage.runs.changes import create_run
from storage.runs.rows import find_run
from tests.storage.records import CONFIG


def test_a_reader_cannot_write(db: Database) -> None:
    with pytest.raises(StorageError, match=r"readonly|read-only"), db.read() as connection:
        connection.execute(text("DELETE FROM runs"))


def test_an_exception_undoes_the_whole_transaction(db: Database) -> None:
    with pytest.raises(StorageError, match="nonsense"), db.transaction() as connection:
        connection.execute(text("CREATE TABLE extra (id INTEGER)")).connection.exec_driver_sql("nonsense")
    with pytest.raises(StorageError), db.read() as connection:
        connection.execute(text("SELECT * FROM extra"))


@pytest.mark.parametrize("durable", [True, False])
def test_sqlite_checks_keys_and_waits_for_the_disk_only_in_a_durable_commit(sqlite_db: Database, durable: bool) -> None:
    with sqlite_db.transaction(durable=durable) as connection:
        pragmas = ("journal_mode", "synchronous", "busy_timeout", "foreign_keys")
        values = [connection.execute(text(f"PRAGMA {name}")).scalar_one() for name in pragmas]
    assert values == ["wal", 2 if durable else 1, 10_000, 1]


URLS = [
    "sqlite:////proc/nowhere/x.db",
    "sqlite:////dev/null/x.db",
    "mysql://h/x",
    "nonsense",
    "sqlite:x.db",
    "sqlite://",
    "sqlite:///:memory:",
    "sqlite:///{folder}",
    "sqlite:///{folder}/text.db",
    "sqlite:///{folder}/text.db/deep/x.db",
    "sqlite:///{folder}/other.db",
]


@pytest.mark.parametrize(
    ("url", "options"),
    [
        *((url, {}) for url in URLS),
        *(("sqlite:///{folder}/a/missing.db", options) for options in ({"read_only": True}, {"create": False})),
    ],
    ids=str,
)
def test_an_address_of_no_database_is_refused_in_one_sentence_and_nothing_is_created(
    tmp_path: Path, url: str, options: dict[str, bool]
) -> None:
    (tmp_path / "text.db").write_text("dear diary, " * 100)
    with closing(sqlite3.connect(tmp_path / "other.db")) as connection:
        connection.execute("CREATE TABLE recipes (id INTEGER)")
    before = {place.name: place.read_bytes() for place in tmp_path.iterdir()}
    with pytest.raises(StorageError) as refusal:
        open_database(url.format(folder=tmp_path), **options)
    assert "\n" not in str(refusal.value)
    assert {place.name: place.read_bytes() for place in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    "statements",
    [
        ("UPDATE schema_version SET version = 9999",),
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


@pytest.mark.parametrize(("column", "value"), [("config", "{"), ("created_at", "yesterday")])
def test_a_stored_value_that_cannot_be_read_gives_one_sentence(sqlite_db: Database, column: str, value: str) -> None:
    run_id = create_run(sqlite_db, CONFIG, target_steps=1, versions={})
    with sqlite_db.transaction() as connection:
        connection.execute(text(f"UPDATE runs SET {column} = :value"), {"value": value})
    with pytest.raises(StorageError, match=r"^This data cannot be read: ") as refusal:
        find_run(sqlite_db, run_id)
    assert "\n" not in str(refusal.value)


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


@pytest.mark.parametrize("is_begun_by_another", [True, False])
def test_a_new_database_that_cannot_be_opened_is_removed_unless_another_process_has_begun_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_begun_by_another: bool
) -> None:
    path = tmp_path / "a" / "x.db"
    monkeypatch.setattr(engine, "_OPENING_S", 0.0)

    def fails(database: Database) -> None:
        if is_begun_by_another:
            with closing(sqlite3.connect(path)) as other:
                other.execute("CREATE TABLE runs (id TEXT)")
        raise StorageError("The database failed: database is locked.")

    monkeypatch.setattr(engine, "_prepare_tables", fails)
    with pytest.raises(StorageError, match="locked"):
        open_database(f"sqlite:///{path}")
    assert [place.name for place in tmp_path.rglob("*.db")] == (["x.db"] if is_begun_by_another else [])
    assert path.parent.exists() == is_begun_by_another


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


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_json_with_nan_or_infinity_is_not_stored(sqlite_db: Database, value: float) -> None:
    with pytest.raises(StorageError, match="JSON"):
        create_run(sqlite_db, CONFIG | {"train": {"gamma": value}}, target_steps=1, versions={})
    with sqlite_db.read() as connection:
        assert connection.execute(text("SELECT count(*) FROM runs")).scalar_one() == 0
