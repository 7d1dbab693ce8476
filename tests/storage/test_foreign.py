"""A database from somebody else is data: nothing in it acts, leads out of its folder or stops a reader for long."""

import json
import shutil
import sqlite3
import stat
from pathlib import Path

import pytest

from emtc_core.errors import StorageError
from storage import engine
from storage.engine import Database, open_database, sweep_folder
from storage.files import run_folder
from storage.maintenance.check_database import check_database
from storage.maintenance.check_run import check_run
from storage.queries.runs import list_runs
from storage.runs.changes import create_run
from storage.runs.rows import find_run
from tests.errors import raises
from tests.hostile import ACTS, make_bomb, tamper
from tests.storage.records import CONFIG, record_everything

OLD = Path(__file__).parents[1] / "assets" / "schema_0010.db"
DANGERS = {
    "an id that climbs", "an id that is a path", "an id that is no text", "a sweep of such a name",
    "a bomb in an episode", "a bomb in a playback", "a bomb in a snapshot", "a module in the columns",
    "a module in the configuration", "a trigger", "a view for a table",
}  # fmt: skip
HARMLESS = {
    "an unknown environment", "a name that is a page", "a status of its own", "a pid of everybody", "a pid too long",
    "steps below zero", "a name that commands the terminal", "a configuration of other kinds", "words for numbers",
    "numbers beyond all", "episodes of another length", "snapshots of another size", "a blob of other arrays",
    "a deep configuration", "missing tables",
}  # fmt: skip


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    path = tmp_path_factory.mktemp("original") / "emtc.db"
    db = open_database(f"sqlite:///{path}")
    run_id = create_run(db, CONFIG, target_steps=100, versions={})
    record_everything(db, run_id)
    db.dispose()
    return path, run_id


@pytest.fixture
def recorded(original: tuple[Path, str], tmp_path: Path) -> tuple[Path, str]:
    shutil.copytree(original[0].with_suffix(".files"), tmp_path / "emtc.files")
    return Path(shutil.copy(original[0], tmp_path)), original[1]


def refuse(map: str) -> bool:
    return False


@pytest.mark.parametrize("act", ACTS)
def test_a_check_finds_what_was_done_and_changes_nothing(recorded: tuple[Path, str], act: str) -> None:
    path, _ = recorded
    tamper(path, *ACTS[act])
    before = path.read_bytes()
    try:
        findings = check_database(f"sqlite:///{path}", is_allowed=refuse).findings
    except StorageError:
        assert act in ("two schemas", "a schema that is a blob")
        return
    kinds = {finding.kind for finding in findings}
    if act in DANGERS:
        assert "danger" in kinds
    elif act not in HARMLESS:
        assert "damage" in kinds
    assert path.read_bytes() == before


def test_a_sound_database_has_no_finding(recorded: tuple[Path, str]) -> None:
    path, _ = recorded
    report = check_database(f"sqlite:///{path}", is_allowed=refuse)
    assert (report.findings, report.runs, report.is_valid) == ((), 1, True)


def test_a_hostile_id_is_no_path_and_no_run(recorded: tuple[Path, str]) -> None:
    path, _ = recorded
    tamper(path, "update runs set id = '../victim'")
    db = open_database(f"sqlite:///{path}")
    for read in (lambda: list_runs(db), lambda: find_run(db, "../victim")):
        with raises(StorageError, reason="damaged", subject="runs.id"):
            read()
    with raises(StorageError, reason="not_an_identifier", subject="../victim"):
        run_folder(db, "../victim")
    for name in ("", ".", "..", "a/b", "a\\b", "a" * 13, "a\n", "ä", "-a", "a b", "a\0"):
        with pytest.raises(StorageError):
            run_folder(db, name)
        with pytest.raises(StorageError):
            sweep_folder(db, name)
    db.dispose()


@pytest.mark.parametrize("act", ["two schemas", "a schema of nobody", "a schema that is a blob", "a trigger"])
def test_a_database_that_acts_or_is_of_no_schema_is_not_opened(recorded: tuple[Path, str], act: str) -> None:
    path, _ = recorded
    tamper(path, *ACTS[act])
    for read_only in (True, False):
        with pytest.raises(StorageError) as caught:
            open_database(f"sqlite:///{path}", read_only=read_only)
        assert "\n" not in str(caught.value)


def test_a_setting_that_is_not_json_is_reported(recorded: tuple[Path, str]) -> None:
    path, run_id = recorded
    tamper(path, """update runs set config = '{"clip": Infinity}'""")
    (finding,) = check_database(f"sqlite:///{path}", is_allowed=refuse).findings
    assert (finding.kind, finding.where) == ("damage", f"runs '{run_id}'")


def test_the_module_of_a_sweeps_file_is_reported(recorded: tuple[Path, str]) -> None:
    path, _ = recorded
    plan = json.dumps({"file": {"env": "pettingzoo", "map": ["os:getcwd"]}, "runs": []})
    values = ("abc12345", "x", "active", "2026-01-01 00:00:00", 1, plan)
    tamper(path, ("insert into sweeps (id, name, status, created_at, jobs, plan) values (?, ?, ?, ?, ?, ?)", values))
    (finding,) = check_database(f"sqlite:///{path}", is_allowed=refuse).findings
    assert (finding.kind, "os:getcwd" in finding.what) == ("danger", True)
    assert check_database(f"sqlite:///{path}", is_allowed=lambda map: map == "os:getcwd").findings == ()


def test_what_is_made_is_private_to_its_user(tmp_path: Path) -> None:
    db = open_database(f"sqlite:///{tmp_path / 'a' / 'b' / 'x.db'}")
    run_id = create_run(db, CONFIG, target_steps=100, versions={})
    record_everything(db, run_id)
    modes = {place: stat.S_IMODE(place.stat().st_mode) for place in (tmp_path / "a").rglob("*")}
    assert modes[tmp_path / "a" / "b" / "x.db"] == 0o600
    assert {mode for place, mode in modes.items() if place.is_dir()} == {0o700}
    assert [oct(mode) for mode in modes.values() if mode & 0o077] == []
    db.dispose()


def test_an_older_database_is_copied_before_it_is_upgraded(tmp_path: Path) -> None:
    path = Path(shutil.copy(OLD, tmp_path / "x.db"))
    with raises(StorageError, reason="older_version", subject=f"sqlite:///{path}"):
        open_database(f"sqlite:///{path}", read_only=True)
    db = open_database(f"sqlite:///{path}")
    assert db.backup == tmp_path / "x.schema-0010.db"
    assert stat.S_IMODE(db.backup.stat().st_mode) == 0o600
    with sqlite3.connect(db.backup) as kept:
        assert kept.execute("select version_num from alembic_version").fetchall() == [("0010",)]
    kept.close()
    run_id = list_runs(db)["id"].iloc[0]
    assert check_run(db, run_id) == []
    db.dispose()
    again = open_database(f"sqlite:///{path}")
    assert again.backup is None
    again.dispose()


def test_a_database_that_cannot_be_copied_is_not_upgraded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path(shutil.copy(OLD, tmp_path / "x.db"))
    monkeypatch.setattr(
        "storage.migrations.upgrade.os.open", lambda *args: (_ for _ in ()).throw(OSError(28, "No space left"))
    )
    monkeypatch.setattr(engine.address, "create_file", lambda path: [])
    with raises(StorageError, reason="not_copied", subject=path):
        open_database(f"sqlite:///{path}")
    assert [place.name for place in tmp_path.iterdir() if "schema" in place.name] == []
    with sqlite3.connect(path) as connection:
        assert connection.execute("select version_num from alembic_version").fetchall() == [("0010",)]
    connection.close()


@pytest.mark.postgres
def test_a_reader_of_an_empty_server_is_told_the_command(postgres_url: str) -> None:
    with raises(StorageError, reason="empty"):
        open_database(postgres_url, read_only=True)


@pytest.mark.postgres
def test_a_server_is_checked_like_a_file(ready_postgres_url: str) -> None:
    db = open_database(ready_postgres_url)
    run_id = create_run(db, CONFIG, target_steps=100, versions={})
    record_everything(db, run_id)
    assert check_database(db.url, is_allowed=refuse).findings == ()
    with db.transaction() as connection:
        connection.exec_driver_sql("update runs set env = 'pettingzoo', map = 'os:getcwd', config = '[]'")
        connection.exec_driver_sql("update snapshots set embedding = %s", (make_bomb(),))
    kinds = [finding.kind for finding in check_database(db.url, is_allowed=refuse).findings]
    assert sorted(kinds) == ["damage", "danger", "danger"]
    db.dispose()


@pytest.mark.parametrize("url", ["sqlite:///x.db", "postgresql://u:hunter2@h/d"])
def test_nothing_that_shows_a_database_shows_its_password(url: str) -> None:
    shown = Database(url, None, None, None)  # pyright: ignore[reportArgumentType] - only its texts are looked at
    assert "hunter2" not in repr(shown) + shown.safe_url


def test_the_environment_forbids_every_write(recorded: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> None:
    path, _ = recorded
    monkeypatch.setenv("EMTC_READ_ONLY", "1")
    db = open_database(f"sqlite:///{path}")
    assert len(list_runs(db)) == 1
    with raises(StorageError, reason="opened_read_only"):
        create_run(db, CONFIG, target_steps=100, versions={})
    with raises(StorageError, reason="not_found", subject=f"{path}x"):
        open_database(f"sqlite:///{path}x")
    db.dispose()
