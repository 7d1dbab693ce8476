"""Opening a database: pragmas, refusals that leave nothing behind, migrations."""

import contextlib
import shutil
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import text

import storage.migrations
from emtc_core.errors import NewerDatabaseError, StorageError
from storage import engine
from storage.engine import Database, open_database
from storage.files import run_folder
from storage.models import SCHEMA_VERSION, Base
from storage.runs.changes import create_run
from tests.errors import raises
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
    with raises(StorageError, reason="not_a_database", subject=tmp_path):
        open_database(f"sqlite:///{tmp_path}")


def test_reading_only_creates_nothing(tmp_path: Path) -> None:
    with raises(StorageError, reason="not_found", subject=tmp_path / "a" / "x.db"):
        open_database(f"sqlite:///{tmp_path / 'a' / 'x.db'}", read_only=True)
    assert list(tmp_path.iterdir()) == []


def test_a_read_only_database_refuses_to_write(sqlite_url: str) -> None:
    open_database(sqlite_url).dispose()
    database = open_database(sqlite_url, read_only=True)
    with raises(StorageError, reason="opened_read_only", subject=sqlite_url), database.transaction():
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
    with raises(StorageError, reason="not_a_database", subject=f"sqlite:///{tmp_path / 'x.db'}"):
        open_database(f"sqlite:///{tmp_path / 'x.db'}")


def test_a_newer_database_is_refused_and_unchanged(url: str) -> None:
    database = open_database(url)
    with database.transaction() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    database.dispose()
    with raises(NewerDatabaseError, subject="9999"):
        open_database(url)


def test_the_migrations_build_exactly_the_models(db: Database) -> None:
    with db.transaction() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": False})
        differences = compare_metadata(context, Base.metadata)
    if db.dialect == "postgresql":  # asks for each statement instead (test_keys.py)
        ((kind, key),) = differences
        assert (kind, key.table.name, key.elements[0].target_fullname) == ("add_fk", "transitions", "runs.id")
    else:
        assert differences == []


def test_the_schema_version_is_the_newest_migration() -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(storage.migrations.__file__).parent))
    assert ScriptDirectory.from_config(config).get_current_head() == SCHEMA_VERSION


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

    def fails_after_another_has_begun(database: Database) -> Database:
        with sqlite3.connect(path) as other:
            other.execute("CREATE TABLE runs (id TEXT)")
        other.close()
        raise StorageError("The database failed: database is locked.")

    monkeypatch.setattr(engine, "_upgrade", fails_after_another_has_begun)
    with pytest.raises(StorageError, match="locked"):
        open_database(f"sqlite:///{path}")
    assert sqlite3.connect(path).execute("SELECT count(*) FROM runs").fetchall() == [(0,)]


def test_a_file_that_somebody_is_making_is_opened_once_it_is_made(tmp_path: Path, monkeypatch) -> None:
    tries: list[Database] = []
    upgrade_it = engine._upgrade

    def fails_at_first(database: Database) -> Database:
        tries.append(database)
        if len(tries) < 3:
            cause = sqlite3.OperationalError("disk I/O error")
            cause.sqlite_errorname = "SQLITE_IOERR_READ"
            raise StorageError("The database failed: disk I/O error.") from cause
        return upgrade_it(database)

    monkeypatch.setattr(engine, "_upgrade", fails_at_first)
    open_database(f"sqlite:///{tmp_path / 'x.db'}").dispose()
    assert len(tries) == 3


def test_a_run_folder_stands_beside_the_database(tmp_path: Path) -> None:
    database = open_database(f"sqlite:///{tmp_path / 'x.db'}")
    assert run_folder(database, "abc") == tmp_path / "x.files" / "abc"
    database.dispose()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_json_with_nan_or_infinity_is_not_stored(db: Database, value: float) -> None:
    with raises(StorageError, reason="not_json"):
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
