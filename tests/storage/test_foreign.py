"""A database from somebody else is data: nothing in it acts, leads out of its folder or stops a reader for long."""

import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from emtc_core.errors import StorageError
from storage.bundles.contents import THIN
from storage.bundles.import_bundle import import_bundle
from storage.bundles.write import write_bundle
from storage.engine import Database, open_database, sweep_folder
from storage.files import run_folder
from storage.maintenance.backup import back_up_database, vacuum
from storage.maintenance.thin import Thinning, thin_run
from storage.queries.episodes import get_trajectory
from storage.queries.runs import list_runs
from storage.runs.changes import create_run, finish_run
from storage.runs.removal import remove_run
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


def create_other(db: Database, run_id: str, folder: Path) -> object:
    return open_database(f"sqlite:///{folder / 'other.db'}")


WRITES: dict[str, Callable[[Database, str, Path], object]] = {
    "create a run": lambda db, run_id, folder: create_run(db, CONFIG, target_steps=100, versions={}),
    "thin a run": lambda db, run_id, folder: thin_run(db, run_id, Thinning(trajectories=True, checkpoints=True)),
    "delete a run": lambda db, run_id, folder: remove_run(db, run_id),
    "vacuum": lambda db, run_id, folder: vacuum(db),
    "back up": lambda db, run_id, folder: back_up_database(db),
    "make a bundle": lambda db, run_id, folder: write_bundle(db, [run_id], folder / "s.emtc", THIN, made_by="test"),
    "import a bundle": lambda db, run_id, folder: import_bundle(db, folder / "first.emtc"),
    "create a database": create_other,
}


@pytest.mark.parametrize("write", WRITES)
def test_the_environment_forbids_every_write(
    recorded: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: str
) -> None:
    path, run_id = recorded
    writable = open_database(f"sqlite:///{path}")
    finish_run(writable, run_id, "finished")
    write_bundle(writable, [run_id], tmp_path / "first.emtc", THIN, made_by="test")
    writable.dispose()
    checkpoint = path.with_suffix(".files") / run_id / "checkpoint-000000000030.pt"
    checkpoint.write_bytes(b"x")
    monkeypatch.setenv("EMTC_READ_ONLY", "1")
    db = open_database(f"sqlite:///{path}")
    places = {place.name for place in tmp_path.iterdir()}
    with pytest.raises(StorageError, match="EMTC_READ_ONLY" if write != "create a database" else r"other\.db"):
        WRITES[write](db, run_id, tmp_path)
    assert [(row["id"], row["env_steps"]) for _, row in list_runs(db).iterrows()] == [(run_id, 30)]
    assert get_trajectory(db, run_id, 1).length == 10
    assert checkpoint.exists()
    assert {place.name for place in tmp_path.iterdir()} == places
    db.dispose()
