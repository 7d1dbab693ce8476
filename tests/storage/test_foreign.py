"""A database from somebody else is data: nothing in it acts, leads out of its folder or stops a reader for long."""

import os
import shutil
import sqlite3
import stat
from pathlib import Path

import pytest

from emtc_core.errors import StorageError
from storage import engine
from storage.engine import Database, files_root, files_root_of, open_database, sweep_folder
from storage.files.places import run_folder
from storage.maintenance.check import check_run
from storage.private_files import read_tail
from storage.queries.runs import list_runs
from storage.runs.changes import create_run
from storage.runs.rows import find_run
from tests.errors import raises
from tests.hostile import ACTS, tamper
from tests.storage.records import CONFIG, record_everything

OLD = Path(__file__).parents[1] / "assets" / "schema_0010.db"


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
    shutil.copytree(files_root_of(original[0]), files_root_of(tmp_path / "emtc.db"))
    return Path(shutil.copy(original[0], tmp_path)), original[1]


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


@pytest.mark.parametrize("where", ["root", "run", "inside", "deep", "pipe"])
def test_a_folder_that_leads_out_of_itself_is_not_used(recorded: tuple[Path, str], tmp_path: Path, where: str) -> None:
    path, run_id = recorded
    victim = tmp_path / "victim"
    (victim / run_id).mkdir(parents=True)
    (victim / "secret").write_text("secret")
    db = open_database(f"sqlite:///{path}")
    root = files_root(db)
    shutil.rmtree(root)
    if where == "root":
        root.symlink_to(victim)
    elif where == "run":
        root.mkdir()
        (root / run_id).symlink_to(victim)
    else:
        folder = root / run_id / ("deep" if where == "deep" else ".")
        folder.mkdir(parents=True)
        if where == "pipe":
            os.mkfifo(folder / "log.txt")
        else:
            (folder / "log.txt").symlink_to(victim / "secret")
    with raises(StorageError, reason="link"):
        run_folder(db, run_id)
    assert read_tail(root / run_id / "log.txt", 100) == b""
    assert (victim / "secret").read_text() == "secret"
    db.dispose()


@pytest.mark.parametrize("act", ["two schemas", "a schema of nobody", "a schema that is a blob", "a trigger"])
def test_a_database_that_acts_or_is_of_no_schema_is_not_opened(recorded: tuple[Path, str], act: str) -> None:
    path, _ = recorded
    tamper(path, *ACTS[act])
    for read_only in (True, False):
        with pytest.raises(StorageError) as caught:
            open_database(f"sqlite:///{path}", read_only=read_only)
        assert "\n" not in str(caught.value)


def test_what_is_made_is_private_to_its_user(tmp_path: Path) -> None:
    db = open_database(f"sqlite:///{tmp_path / 'a' / 'b' / 'x.db'}")
    run_id = create_run(db, CONFIG, target_steps=100, versions={})
    record_everything(db, run_id)
    modes = {place: stat.S_IMODE(place.stat().st_mode) for place in (tmp_path / "a").rglob("*")}
    inside = run_folder(db, run_id)
    assert modes[tmp_path / "a" / "b" / "x.db"] == 0o600
    assert {mode for place, mode in modes.items() if place.is_dir()} == {0o700}
    assert [oct(mode) for place, mode in modes.items() if mode & 0o077 and inside not in place.parents] == []
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
