"""A database from somebody else is data: nothing in it acts, leads out of its folder or stops a reader for long."""

import shutil
import stat
from pathlib import Path

import pytest

from emtc_core.errors import StorageError
from storage.engine import open_database, sweep_folder
from storage.files import run_folder
from storage.queries.runs import list_runs
from storage.runs.changes import create_run
from tests.hostile import tamper
from tests.storage.records import CONFIG, record_everything


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


def test_a_hostile_id_is_no_path_and_no_run(recorded: tuple[Path, str]) -> None:
    path, _ = recorded
    tamper(path, "update runs set id = '../victim'")
    db = open_database(f"sqlite:///{path}")
    with pytest.raises(StorageError, match=r"\.\./victim"):
        run_folder(db, "../victim")
    for name in ("", ".", "..", "a/b", "a\\b", "a" * 13, "a\n", "ä", "-a", "a b", "a\0"):
        with pytest.raises(StorageError):
            run_folder(db, name)
        with pytest.raises(StorageError):
            sweep_folder(db, name)
    db.dispose()


def test_what_is_made_is_private_to_its_user(tmp_path: Path) -> None:
    db = open_database(f"sqlite:///{tmp_path / 'a' / 'b' / 'x.db'}")
    run_id = create_run(db, CONFIG, target_steps=100, versions={})
    record_everything(db, run_id)
    modes = {place: stat.S_IMODE(place.stat().st_mode) for place in (tmp_path / "a").rglob("*")}
    assert modes[tmp_path / "a" / "b" / "x.db"] == 0o600
    assert {mode for place, mode in modes.items() if place.is_dir()} == {0o700}
    assert [oct(mode) for mode in modes.values() if mode & 0o077] == []
    db.dispose()


@pytest.mark.postgres
def test_a_reader_of_an_empty_server_is_told_the_command(postgres_url: str) -> None:
    with pytest.raises(StorageError, match="empty"):
        open_database(postgres_url, read_only=True)


def test_the_environment_forbids_every_write(recorded: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> None:
    path, _ = recorded
    monkeypatch.setenv("EMTC_READ_ONLY", "1")
    db = open_database(f"sqlite:///{path}")
    assert len(list_runs(db)) == 1
    with pytest.raises(StorageError, match="read-only"):
        create_run(db, CONFIG, target_steps=100, versions={})
    with pytest.raises(StorageError, match=f"{path}x"):
        open_database(f"sqlite:///{path}x")
    db.dispose()
