"""Delete for good: counted first, then rows and folder; nothing while somebody works on the run."""

import pytest

from emtc_core.errors import RunNotFoundError, RunStateError
from storage.engine import Database
from storage.files import run_folder
from storage.recording.writer import DatabaseRecorder
from storage.runs.changes import start_again, start_run
from storage.runs.removal import count_run_contents, remove_run
from storage.runs.rows import find_run
from tests.storage.records import ME, make_evaluation, make_snapshot, record_episodes


@pytest.fixture
def recorded(db: Database, run_id: str) -> str:
    recorder = DatabaseRecorder(db, run_id)
    record_episodes(recorder, 3)
    recorder.record_evaluation(make_evaluation(30))
    recorder.record_snapshot(make_snapshot(30, 3))
    recorder.close()
    folder = run_folder(db, run_id)
    (folder / "deep").mkdir(parents=True)
    (folder / "log.txt").write_text("log")
    (folder / "deep" / "checkpoint.pt").write_bytes(b"12345")
    return run_id


def test_what_goes_is_named_and_counted_first(db: Database, recorded: str) -> None:
    start_again(db, recorded, versions={})
    found = count_run_contents(db, recorded)
    assert (found.transitions, found.episodes, found.evaluations, found.snapshots) == (30, 3, 1, 1)
    assert (found.entries, found.children, found.files, found.size_bytes) == (0, 1, 2, 8)
    assert str(run_folder(db, recorded)) in str(found)
    assert "30 transitions in 3 episodes" in str(found)


def test_the_folder_goes_with_the_rows(db: Database, recorded: str) -> None:
    child = start_again(db, recorded, versions={})
    remove_run(db, recorded)
    assert not run_folder(db, recorded).exists()
    with pytest.raises(RunNotFoundError):
        find_run(db, recorded)
    assert find_run(db, child).parent_id == recorded


def test_nothing_goes_while_somebody_works(db: Database, recorded: str) -> None:
    start_run(db, recorded, **ME)
    with pytest.raises(RunStateError, match=recorded):
        remove_run(db, recorded)
    assert (run_folder(db, recorded) / "log.txt").exists()
    assert find_run(db, recorded).env_steps == 30
