"""Checkpoints carried to a URL and back: two trainers with folders of their own, as two machines have."""

import logging
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.jobs.checkpoint_stores import CheckpointUploader
from app.jobs.resume import examine_checkpoints
from emtc_core.checkpoint_file import name_best, name_checkpoint, rename_newer, verify, write_checkpoint
from emtc_core.errors import StorageError
from storage.engine import Database, open_database
from storage.files.places import run_folder
from storage.files.remote import Remote, RunFiles
from storage.files.trainer_files import LEASE
from storage.models import Run
from storage.runs.rows import find_run
from tests.errors import raises
from tests.pages.seed import seed_run
from tests.process.trainers import wait_until

RUN = "abc12345"


def fits(env_step: int) -> str | None:
    return None


@pytest.fixture(params=["file", "memory"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> RunFiles:
    url = f"file://{tmp_path / 'place'}" if request.param == "file" else f"memory://{tmp_path.name}"
    return Remote(url).files_of(RUN)


@pytest.fixture
def begin(files: RunFiles, tmp_path: Path) -> Iterator[Callable[..., tuple[CheckpointUploader, Path]]]:
    """A trainer on a machine, whose uploader is closed in the end."""
    begun: list[CheckpointUploader] = []

    def begin(machine: str, why_not: Callable[[int], str | None] = fits) -> tuple[CheckpointUploader, Path]:
        uploader = CheckpointUploader(files, tmp_path / machine, keep=2, lease=secrets.token_bytes(8))
        uploader.start(why_not)
        begun.append(uploader)
        return uploader, tmp_path / machine

    yield begin
    for uploader in begun:
        uploader.close()


def save(folder: Path, env_step: int, content: bytes = b"state") -> Path:
    path = folder / name_checkpoint(env_step)
    write_checkpoint(path, run_id=RUN, env_step=env_step, parts=[("state", lambda sink: sink.write(content))])
    return path


def steps(files: RunFiles) -> list[int]:
    return [int(found.name[11:-3]) for found in files.list_checkpoints()]


def carried(
    uploader: CheckpointUploader, files: RunFiles, folder: Path, env_step: int, content: bytes = b"state"
) -> Path:
    path = save(folder, env_step, content)
    uploader.queue_checkpoint(path)
    wait_until(lambda: env_step in steps(files), what="the checkpoint's arrival")
    return path


def test_another_machine_fetches_the_newest_and_as_many_are_kept(files, begin):
    uploader, folder = begin("a")
    for env_step in (100, 200, 300):
        carried(uploader, files, folder, env_step)
    uploader.close()
    assert steps(files) == [200, 300]
    _, elsewhere = begin("b")
    assert [path.name for path in elsewhere.glob("*.pt")] == [name_checkpoint(300)]
    assert verify(elsewhere / name_checkpoint(300)).env_step == 300
    assert {found.name for found in files.list_files()} == {name_checkpoint(200), name_checkpoint(300), LEASE}


def save_best(folder: Path, env_step: int) -> None:
    path = folder / name_best(env_step)
    write_checkpoint(path, run_id=RUN, env_step=env_step, parts=[("learner", lambda sink: sink.write(b"weights"))])
    for old in folder.glob("best-*.pt"):
        if old != path:
            old.unlink()


def test_the_best_policy_is_carried_and_what_no_return_needs_is_dropped(files, begin):
    uploader, folder = begin("a")
    carried(uploader, files, folder, 100)
    for env_step in (150, 160):
        save_best(folder, env_step)
        uploader.queue_best()
        wait_until(lambda at=env_step: [int(each.name[5:-3]) for each in files.list_best()] == [at], what="the policy")
    carried(uploader, files, folder, 200)
    rename_newer(folder, 100)
    uploader.rename_newer(100)
    uploader.close()
    assert files.list_best() == []
    assert "best-000000000160.aside" in {found.name for found in files.list_files()}


def test_the_last_checkpoint_has_arrived_when_a_trainer_leaves(files, begin):
    uploader, folder = begin("a")
    for env_step in (100, 200, 300, 400):
        uploader.queue_checkpoint(save(folder, env_step, bytes(2_000_000)))
    uploader.close()
    assert steps(files)[-1] == 400


def test_a_damaged_one_is_passed_over_for_the_one_before(files, begin):
    uploader, folder = begin("a")
    carried(uploader, files, folder, 100)
    carried(uploader, files, folder, 200)
    uploader.close()
    whole = (folder / name_checkpoint(200)).read_bytes()
    damaged = folder.parent / name_checkpoint(200)
    damaged.write_bytes(whole.replace(b"state", b"stale", 1))
    files.upload(damaged)
    _, elsewhere = begin("b")
    assert sorted(path.name for path in elsewhere.glob("*.pt")) == [name_checkpoint(100), name_checkpoint(200)]
    assert verify(elsewhere / name_checkpoint(100)).env_step == 100


def test_one_that_does_not_fit_the_rows_is_passed_over(files, begin):
    uploader, folder = begin("a")
    carried(uploader, files, folder, 100)
    carried(uploader, files, folder, 200)
    uploader.close()
    _, elsewhere = begin("b", lambda env_step: "its rows are gone" if env_step > 100 else None)
    assert (elsewhere / name_checkpoint(100)).is_file()


def test_what_lies_beyond_the_step_gone_back_to_is_set_aside_there_too(files, begin):
    uploader, folder = begin("a")
    carried(uploader, files, folder, 100)
    carried(uploader, files, folder, 200)
    uploader.rename_newer(100)
    assert steps(files) == [100]
    assert f"{Path(name_checkpoint(200)).stem}.aside" in {found.name for found in files.list_files()}


def test_a_checkpoint_that_was_not_carried_counts_only_while_nobody_else_had_the_run(files, begin):
    uploader, folder = begin("a")
    carried(uploader, files, folder, 100)
    uploader.close()
    save(folder, 150)  # its machine lost the network, then power
    again, _ = begin("a")
    assert (folder / name_checkpoint(150)).is_file(), "this machine goes on from it"
    again.close()
    other, elsewhere = begin("b")
    carried(other, files, elsewhere, 140, b"other")
    other.close()
    begin("a")
    assert sorted(path.name for path in folder.glob("checkpoint-*")) == [
        name_checkpoint(100), name_checkpoint(140), f"{Path(name_checkpoint(150)).stem}.aside",
    ]  # fmt: skip


def test_a_file_of_equal_name_and_size_is_not_taken_for_the_same(files, begin):
    uploader, folder = begin("a")
    carried(uploader, files, folder, 100)
    uploader.close()
    save(folder, 200, b"stale")
    other, elsewhere = begin("b")
    path = carried(other, files, elsewhere, 200, b"fresh")
    other.close()
    begin("a")
    assert (folder / name_checkpoint(200)).read_bytes() == path.read_bytes()


def test_a_trainer_that_lost_its_run_writes_nothing_more_there(files, begin, caplog):
    first, folder = begin("a")
    carried(first, files, folder, 100)
    second, elsewhere = begin("b")
    carried(second, files, elsewhere, 200)
    with caplog.at_level(logging.WARNING):
        first.queue_checkpoint(save(folder, 9000))
        first.close()
    assert steps(files) == [100, 200]
    assert ".begun" not in " ".join(found.name for found in files.list_files())
    assert [record.message for record in caplog.records] == [
        f"run {RUN}: another trainer has taken the run; nothing more is uploaded to {files.url}"
    ]


def test_a_failed_copy_is_told_once_and_tried_again_with_the_next(tmp_path, caplog):
    place = tmp_path / "place"
    files = Remote(f"file://{place}").files_of(RUN)
    uploader, folder = CheckpointUploader(files, tmp_path / "a", keep=2, lease=b"a"), tmp_path / "a"
    uploader.start(fits)
    (place / RUN).rename(tmp_path / "away")
    (place / RUN).write_text("no folder")
    with caplog.at_level(logging.WARNING):
        for env_step in (100, 200):
            uploader.queue_checkpoint(save(folder, env_step))
            wait_until(lambda: not uploader._queue and bool(caplog.records), what="the warning")
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert "its checkpoints do not reach" in caplog.text
        (place / RUN).unlink()
        (tmp_path / "away").rename(place / RUN)
        uploader.close()
    assert steps(files) == [200], "the newest arrived in the end"


def test_a_log_goes_on_where_another_machine_left_it(files, begin):
    uploader, folder = begin("a")
    (folder / "log.txt").write_text("first line\n")
    carried(uploader, files, folder, 100)
    uploader.close()
    other, elsewhere = begin("b")
    (elsewhere / "log.txt").write_text("second line\n")
    other.close()
    assert files.read_tail("log.txt", 1000) == b"first line\nsecond line\n"
    assert files.read_tail("log.txt", 5) == b"line\n"


def test_a_place_that_cannot_be_written_ends_a_trainer_before_it_trains(tmp_path):
    (tmp_path / "place").write_text("no folder")
    uploader = CheckpointUploader(
        Remote(f"file://{tmp_path / 'place'}").files_of(RUN), tmp_path / "a", keep=2, lease=b"a"
    )
    with raises(StorageError, reason="unusable"):
        uploader.start(fits)


@pytest.fixture
def lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sqlite_template: Path) -> tuple[Database, str, RunFiles]:
    """A run that another machine has trained, its files at a URL."""
    db = open_database(f"sqlite:///{shutil.copy(sqlite_template, tmp_path / 'emtc.db')}")
    url = f"file://{tmp_path / 'place'}"
    monkeypatch.setenv("EMTC_FILES", url)
    run_id = seed_run(db, status="failed")
    with db.transaction() as connection:
        connection.execute(Run.__table__.update().values(files=url, host="elsewhere"))
    return db, run_id, Remote(url).files_of(run_id)


def test_what_lies_there_is_known_before_it_is_fetched(lost, tmp_path, monkeypatch):
    db, run_id, files = lost
    assert "It was trained on elsewhere" in examine_checkpoints(db, find_run(db, run_id)).reason
    for env_step, owner in ((0, run_id), (10**6, "zzzz9999")):
        path = tmp_path / name_checkpoint(env_step)
        write_checkpoint(path, run_id=owner, env_step=env_step, parts=[("state", lambda sink: sink.write(b"x"))])
        files.upload(path)
    status = examine_checkpoints(db, find_run(db, run_id))
    assert (status.usable and status.usable.env_step, status.folder) == (0, files.url)
    assert "belongs to run zzzz9999" in status.faults[0]
    assert list(run_folder(db, run_id).glob("*.pt")) == [], "nothing was fetched"
    monkeypatch.setenv("EMTC_FILES", str(tmp_path))
    refused = examine_checkpoints(db, find_run(db, run_id))
    assert not refused.can_resume
    assert f"Set EMTC_FILES={files.remote.url}" in refused.reason
    db.dispose()


def test_what_has_not_arrived_there_is_counted(lost, tmp_path):
    db, run_id, files = lost
    uploader, folder = CheckpointUploader(files, run_folder(db, run_id), keep=2, lease=b"mine"), run_folder(db, run_id)
    uploader.start(fits)
    uploader.close()
    write_checkpoint(folder / name_checkpoint(0), run_id=run_id, env_step=0, parts=[])
    status = examine_checkpoints(db, find_run(db, run_id))
    assert (status.can_resume, status.n_not_uploaded) == (True, 1)
    files.upload(folder / name_checkpoint(0))
    assert examine_checkpoints(db, find_run(db, run_id)).n_not_uploaded == 0
    db.dispose()


def test_a_place_of_no_answer_is_no_reason_to_start_again(lost, tmp_path):
    db, run_id, _ = lost
    (tmp_path / "place").write_text("no folder")
    status = examine_checkpoints(db, find_run(db, run_id))
    assert not status.can_resume
    assert "cannot be used" in status.reason
    db.dispose()
