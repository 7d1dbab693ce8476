"""A lost run is resumed or deleted at once, and its former trainer cannot write afterwards."""

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import update

from app.jobs import resume
from emtc_core.errors import RunStateError, StorageError
from storage.engine import Database, open_database
from storage.maintenance.thin import Thinning, thin_run
from storage.models import Run
from storage.recording.writer import DatabaseRecorder
from storage.runs.changes import create_run, start_run
from storage.runs.claims import claim_to_train
from storage.runs.control import write_heartbeat
from storage.runs.rows import find_run
from tests.storage.records import CONFIG, record_episodes

TOKEN = "of the former owner"


@pytest.fixture
def lost(tmp_path: Path, sqlite_template: Path) -> tuple[Database, str]:
    """A run whose trainer has sent no heartbeat for ten minutes."""
    db = open_database(f"sqlite:///{shutil.copy(sqlite_template, tmp_path / 'x.db')}")
    return db, make_lost(db)


def make_lost(db: Database) -> str:
    run_id = create_run(db, CONFIG, target_steps=100, versions={})
    claim_to_train(db, run_id, TOKEN)
    start_run(db, run_id, device="cpu", token=TOKEN)
    with db.transaction() as connection:
        past = datetime.now(UTC) - timedelta(minutes=10)
        connection.execute(update(Run).where(Run.id == run_id).values(heartbeat_at=past, host="elsewhere"))
    assert find_run(db, run_id).live_status == "lost"
    return run_id


def test_a_lost_run_is_taken_over_at_once_and_only_once(lost: tuple[Database, str]) -> None:
    db, run_id = lost
    token = resume.claim_to_resume(db, run_id)
    assert find_run(db, run_id).owner_token == token
    with pytest.raises(RunStateError, match=run_id):
        resume.claim_to_resume(db, run_id)


def test_the_former_trainer_writes_nothing_after_a_takeover(lost: tuple[Database, str]) -> None:
    db, run_id = lost
    recorder = DatabaseRecorder(db, run_id, token=TOKEN)
    resume.claim_to_resume(db, run_id)
    assert not write_heartbeat(db, run_id, TOKEN)
    record_episodes(recorder, 1)
    with pytest.raises(StorageError, match=run_id):
        recorder.close()
    assert find_run(db, run_id).env_steps == 0


@pytest.mark.parametrize("act", ["delete", "thin"])
def test_the_former_trainer_writes_nothing_after_data_were_removed(lost: tuple[Database, str], act: str) -> None:
    db, run_id = lost
    recorder = DatabaseRecorder(db, run_id, token=TOKEN)
    if act == "delete":
        assert resume.delete_runs(db, [run_id, "nosuchrun"]).changed_ids == (run_id, "nosuchrun")
    else:
        thin_run(db, run_id, Thinning(checkpoints=True))
        assert find_run(db, run_id).live_status == "stopped"
    assert not write_heartbeat(db, run_id, TOKEN)
    record_episodes(recorder, 1)
    with pytest.raises(StorageError):
        recorder.close()
