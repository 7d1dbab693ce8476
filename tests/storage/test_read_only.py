"""A disk that becomes read-only, as Linux makes it after an error: it is said, everything is kept and can be read."""

import json
import os
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import event

from storage.engine import open_database
from storage.maintenance.check import check_run
from storage.recording import writer
from storage.recording.writer import DatabaseRecorder
from storage.runs.changes import create_run
from storage.runs.rows import find_run
from tests.process.trainers import wait_until
from tests.storage.records import CONFIG, record_episodes

ON_A_DISK = """
import json, os, subprocess, sys
from pathlib import Path
from sqlalchemy import select
from emtc_core.errors import StorageError
from storage.engine import open_database
from storage.models import Run
from storage.runs.changes import create_run
from tests.storage.records import CONFIG

folder = Path(sys.argv[1])
subprocess.run(["mount", "-t", "tmpfs", "none", folder], check=True)
url = f"sqlite:///{folder}/x.db"
child = os.fork()  # a process that is killed leaves a write-ahead log
if child == 0:
    db = open_database(url)
    db.dispose()
    if sys.argv[2] == "log":
        db = open_database(url)
        create_run(db, CONFIG, target_steps=10, versions={})
    os._exit(0)
os.waitpid(child, 0)
(folder / "x.db-shm").unlink(missing_ok=True)
subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
answers = {}
for act, options in {"read": {"read_only": True}, "write": {"create": False}}.items():
    try:
        db = open_database(url, **options)
        with db.read() as connection:
            answers[act] = len(connection.execute(select(Run.id)).all())
    except StorageError as error:
        answers[act] = str(error)
print(json.dumps(answers))
"""


def act_on_a_read_only_disk(folder: Path, case: str) -> dict[str, object]:
    """Open a database on a disk of its own that is mounted read-only, in a mount namespace."""
    namespace = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]
    command = [*namespace, sys.executable, "-c", ON_A_DISK, str(folder), case]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("case", "read"),
    [("whole", "0"), ("log", r".*the last records are still in x\.db-wal.*")],
    ids=["closed", "with records in the log"],
)
def test_a_database_on_a_read_only_disk_is_read_unless_records_are_missing_in_it(
    tmp_path: Path, case: str, read: str
) -> None:
    answers = act_on_a_read_only_disk(tmp_path, case)
    assert re.fullmatch(read, str(answers["read"]))
    assert "read-only file system" in str(answers["write"])


def test_a_recorder_waits_until_the_disk_is_writable_again(
    ready_sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "_MIN_RETRY_S", 0.01)
    db, is_read_only = open_database(ready_sqlite_url), False
    assert db.writer is not None

    @event.listens_for(db.writer, "checkout")
    def refuse_writes(connection: sqlite3.Connection, *_: object) -> None:  # with the error of a read-only disk
        connection.execute(f"PRAGMA query_only={is_read_only:d}").close()

    run_id = create_run(db, CONFIG, target_steps=100, versions={})
    recorder = DatabaseRecorder(db, run_id, batch_steps=1, linger_s=0.0)
    record_episodes(recorder, 2)
    wait_until(lambda: find_run(db, run_id).env_steps == 20, what="the first records")
    is_read_only = True
    record_episodes(recorder, 3, start=3)
    wait_until(lambda: recorder.blocked is not None, what="the notice")
    assert "has become read-only: make it writable" in str(recorder.blocked)
    assert find_run(db, run_id).env_steps == 20
    is_read_only = False
    recorder.close()
    assert find_run(db, run_id).env_steps == 50
    assert check_run(db, run_id) == []
    db.dispose()
