"""A lost run is deleted or thinned at once, and its former trainer cannot write afterwards."""

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import update

from app.jobs import resume
from emtc_core.errors import StorageError
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
    run_id = create_run(db, CONFIG, target_steps=100, versions={})
    claim_to_train(db, run_id, TOKEN)
    start_run(db, run_id, device="cpu", token=TOKEN)
    with db.transaction() as connection:
        past = datetime.now(UTC) - timedelta(minutes=10)
        connection.execute(update(Run).where(Run.id == run_id).values(heartbeat_at=past, host="elsewhere"))
    assert find_run(db, run_id).live_status == "lost"
    return db, run_id


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
