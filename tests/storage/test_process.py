"""A real process that is killed while it records."""

import signal
import subprocess
import sys
import time

from storage.engine import Database, open_database
from storage.maintenance.check import check_run
from storage.recording.writer import DatabaseRecorder
from storage.runs.changes import create_run
from storage.runs.rows import find_run
from tests.storage.records import CONFIG, record_episodes

TRAINER = """
import sys
from storage.engine import open_database
from storage.recording.writer import DatabaseRecorder
from tests.storage.records import record_episodes
recorder = DatabaseRecorder(open_database(sys.argv[1]), sys.argv[2], batch_steps=500, linger_s=0.01)
record_episodes(recorder, int(sys.argv[3]))
recorder.close()
print(recorder.blocked)
"""


def start_trainer(url: str, run_id: str, episodes: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", TRAINER, url, run_id, str(episodes)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_killed_trainer_leaves_rows_without_a_gap_and_may_go_on(url: str) -> None:
    db = open_database(url)
    run_id = create_run(db, CONFIG, target_steps=1, versions={})
    with start_trainer(url, run_id, 1_000_000) as trainer:
        wait_for_steps(db, run_id, 2000)
        trainer.send_signal(signal.SIGKILL)
    assert check_run(db, run_id) == []
    reached = find_run(db, run_id).env_steps
    recorder = DatabaseRecorder(db, run_id)
    record_episodes(recorder, 10, start=reached // 10 + 1)
    recorder.close()
    assert check_run(db, run_id) == []
    assert find_run(db, run_id).env_steps == reached + 100
    db.dispose()


def wait_for_steps(db: Database, run_id: str, env_steps: int) -> None:
    ends = time.monotonic() + 120
    while find_run(db, run_id).env_steps < env_steps:
        assert time.monotonic() < ends, "the trainer records nothing"
        time.sleep(0.01)
