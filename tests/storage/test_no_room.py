"""A disk without one free byte: a deletion frees space, and all other writes fail with a clear sentence."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from emtc_core.errors import StorageError
from storage.engine import Database, open_database
from storage.files import run_folder
from storage.maintenance.backup import back_up_database
from storage.maintenance.check import check_run
from storage.maintenance.sizes import measure_sizes
from storage.maintenance.thin import Thinning, thin_run
from storage.queries.runs import list_runs
from storage.runs.changes import create_run, finish_run, start_run
from storage.runs.removal import remove_run
from tests.require import require
from tests.storage.records import CONFIG, ME, record_everything

DISK_MB = 24


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system of its own."""
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", place], check=False)
    require("a file system of one's own", made.returncode == 0, "this user may not mount one")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


@pytest.fixture
def full(disk: Path) -> Iterator[tuple[Database, str]]:
    """A finished run on a full disk, whose database is open."""
    db = open_database(f"sqlite:///{disk / 'x.db'}")
    run_id = create_run(db, CONFIG, target_steps=100, versions={})
    start_run(db, run_id, **ME)
    record_everything(db, run_id)
    finish_run(db, run_id, "finished")
    (run_folder(db, run_id) / "checkpoint-000000000030.pt").write_bytes(bytes(3 << 20))
    fill(disk)
    yield db, run_id
    db.dispose()


def fill(disk: Path) -> None:
    with (disk / "film.mkv").open("ab", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            assert os.statvfs(disk).f_bfree == 0


def test_everything_is_read_and_copied_to_another_disk(full: tuple[Database, str], tmp_path: Path) -> None:
    db, run_id = full
    assert list_runs(db)["id"].tolist() == [run_id]
    assert check_run(db, run_id) == []
    assert measure_sizes(db).runs[0].run_id == run_id
    copy = open_database(f"sqlite:///{back_up_database(db, tmp_path / 'copy.db')}")
    assert list_runs(copy)["id"].tolist() == [run_id]
    assert check_run(copy, run_id) == []
    copy.dispose()


def create(db: Database) -> None:
    create_run(db, {**CONFIG, "filler": "x" * 8_000_000}, target_steps=1, versions={})  # more than the free log


def open_again(db: Database) -> None:
    db.dispose()
    assert db.path is not None
    fill(db.path.parent)
    open_database(db.url)


@pytest.mark.parametrize("write", [create, open_again])
def test_an_action_that_writes_reports_that_the_disk_is_full(
    full: tuple[Database, str], write: Callable[[Database], None]
) -> None:
    with pytest.raises(StorageError, match="full"):
        write(full[0])


def thin(db: Database, run_id: str) -> None:
    everything = Thinning(trajectories=True, transitions=True, checkpoints=True)
    assert str(thin_run(db, run_id, everything)) != "nothing"
    assert str(thin_run(db, run_id, everything)) == "nothing"
    assert check_run(db, run_id) == []


@pytest.mark.parametrize("remove", [thin, remove_run])
def test_a_removal_makes_room(full: tuple[Database, str], remove: Callable[[Database, str], None]) -> None:
    db, run_id = full
    remove(db, run_id)
    create_run(db, CONFIG, target_steps=1, versions={})
