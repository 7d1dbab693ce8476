"""Delete for good: counted first, then rows and folder; nothing while somebody works on the run."""

import pytest

from storage.engine import Database
from storage.files import run_folder
from storage.recording.writer import DatabaseRecorder
from storage.runs.changes import start_again
from storage.runs.removal import count_run_contents
from tests.storage.records import make_evaluation, make_snapshot, record_episodes


@pytest.fixture
def db(sqlite_db: Database) -> Database:
    """SQLite alone: `test_runs` deletes on both databases."""
    return sqlite_db


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
