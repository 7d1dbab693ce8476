"""The folders of runs: what EMTC_FILES may be, and what is read, measured and deleted there."""

import stat
from pathlib import Path

import pytest

from emtc_core.errors import StorageError
from storage.engine import Database
from storage.files import (
    FILES_VARIABLE,
    StateFile,
    check_files_folder,
    describe_files_folder,
    get_configured_folder,
    read_stall_reason,
    run_folder,
)
from storage.maintenance.sizes import measure_sizes
from storage.recording.writer import DatabaseRecorder
from storage.runs.removal import count_run_contents, remove_run
from tests.storage.records import record_episodes


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "shared"
    folder.mkdir()
    monkeypatch.setenv(FILES_VARIABLE, str(folder))
    return folder


@pytest.mark.parametrize(
    "text",
    [
        "s3://key:secret@bucket/emtc",
        "file:///tmp",
        "shared/emtc",
        "~nobody-of-this-name/emtc",
        "/no/such/folder",
        "/dev/null",
        "/" + "a" * 5000,
    ],
)
def test_an_unusable_setting_is_refused_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, sqlite_db: Database, text: str
) -> None:
    monkeypatch.setenv(FILES_VARIABLE, text)
    for act in (check_files_folder, get_configured_folder, lambda: run_folder(sqlite_db, "abc12345")):
        with pytest.raises(StorageError, match=FILES_VARIABLE) as caught:
            act()
        assert len(str(caught.value).splitlines()) == 1
        assert "secret" not in str(caught.value)
    assert describe_files_folder(sqlite_db) == str(caught.value)


@pytest.mark.parametrize("setting", ["", "{folder}/shared", "~/shared"])
def test_the_folder_of_a_run_is_next_to_the_database_or_in_the_configured_one(
    db: Database, run_id: str, shared: Path, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    monkeypatch.setenv("HOME", str(shared.parent))
    monkeypatch.setenv(FILES_VARIABLE, setting.format(folder=shared.parent))
    next_to_it = shared.parent / "emtc.files" if db.path else shared.parent / "data" / "emtc-lab"
    assert run_folder(db, run_id) == (shared if setting else next_to_it) / run_id


def test_files_in_the_configured_folder_are_measured_and_deleted(db: Database, run_id: str, shared: Path) -> None:
    check_files_folder()  # leaves no file
    recorder = DatabaseRecorder(db, run_id)
    record_episodes(recorder, 3)
    recorder.close()
    (shared / run_id / "checkpoint-000000000030.pt").write_bytes(bytes(5000))
    (shared / "another1").mkdir()
    (shared / "another1" / "log.txt").write_text("of another database")
    sizes = measure_sizes(db)
    assert (sizes.runs[0].checkpoints, sizes.left_behind, sizes.unmeasured) == (5000, 0, "")
    contents = count_run_contents(db, run_id)
    assert (contents.files, contents.size_bytes, contents.folder) == (1, 5000, str(shared / run_id))
    remove_run(db, run_id)
    assert [folder.name for folder in shared.iterdir()] == ["another1"]


def test_an_unusable_folder_is_named_by_the_sizes_and_stops_a_deletion(db: Database, run_id: str, shared: Path) -> None:
    shared.rmdir()
    assert "is not a folder on this machine" in measure_sizes(db).unmeasured
    with pytest.raises(StorageError, match=FILES_VARIABLE):
        remove_run(db, run_id)
    assert [run.run_id for run in measure_sizes(db).runs] == [run_id]


def test_the_state_file_is_private_and_keeps_its_size(db: Database, run_id: str, shared: Path) -> None:
    state = StateFile(db, run_id)
    state.prepare()
    (path,) = (shared / run_id).iterdir()
    assert [stat.S_IMODE(each.stat().st_mode) for each in (path, path.parent)] == [0o600, 0o700]
    for text in ("the disk is full", "ü" * 1000, ""):
        state.write(text)
        assert path.stat().st_size == 512
        assert (read_stall_reason(db, run_id, max_age_s=60) or "")[:200] == text[:200]
    state.remove()
    assert read_stall_reason(db, run_id, max_age_s=60) is None
