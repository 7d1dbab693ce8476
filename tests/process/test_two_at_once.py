"""Two processes do the same at the same moment, as two apps or an app and a command do: one does it, the other says so.

The processes start no trainers: they note the runs that they would train, and stay until both are through.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from storage.engine import Database, open_database
from storage.runs.changes import create_run, finish_run, start_run
from storage.runs.sweeps import PlannedRun, save_sweep
from tests.storage.records import CONFIG, ME

pytestmark = pytest.mark.ci

ACT = """
import json, sys
import psutil
from app.jobs import launch, resume
from app.jobs.sweeps.worker import LeaveRequest, WorkerLoop
from emtc_core.config.resolve import resolve
from emtc_core.errors import EmtcError
from storage.engine import open_database

url, role, ids = sys.argv[1], sys.argv[2], sys.argv[3:]
started, said = [], []


def note(arguments, log, *, db):
    started.append(arguments[2])
    return psutil.Process()


launch.spawn = note
db = open_database(url)
config = resolve(preset="demo")
ACTS = {
    "app": lambda run_id: resume.resume_run(db, run_id),
    "command": lambda run_id: (resume.claim_to_resume(db, run_id), started.append(run_id)),
    "launch": lambda token: said.append(launch.launch_run(db, config, launch_token=token)),
}
print("ready", flush=True)
sys.stdin.readline()
if role == "worker":
    WorkerLoop(db, jobs=3, leave=LeaveRequest(), announce=said.append, sweep_id=ids[0], max_active=3)._claim_runs()
for each in ids if role in ACTS else []:
    try:
        ACTS[role](each)
    except EmtcError as error:
        said.append(str(error))
print(json.dumps({"started": started, "said": said}), flush=True)
sys.stdin.readline()
"""


def act_at_once(db: Database, roles: Sequence[str], names: Sequence[str]) -> list[dict[str, Any]]:
    """Let one process per role act on runs, sweeps or launch tokens, all at the same moment."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", ACT, db.url, role, *names],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for role in roles
    ]  # fmt: skip
    try:
        for process in processes:
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            process.stdin.write("go\n")
            process.stdin.flush()
        return [json.loads(process.stdout.readline()) for process in processes]
    finally:
        for process in processes:
            process.communicate("end\n")


@pytest.fixture
def db(sqlite_template: Path, tmp_path: Path) -> Database:
    return open_database(f"sqlite:///{shutil.copy(sqlite_template, tmp_path)}")


def test_a_run_that_the_app_and_a_command_resume_is_resumed_once(db: Database) -> None:
    ids = [create_run(db, CONFIG, target_steps=10, versions={}) for _ in range(6)]
    for run_id in ids:
        start_run(db, run_id, **ME)
        finish_run(db, run_id, "stopped")
    app, command = act_at_once(db, ("app", "command"), ids)
    assert sorted(app["started"] + command["started"]) == sorted(ids)
    for each, other in ((app, command), (command, app)):
        assert len(each["said"]) == len(other["started"])
        for said in each["said"]:
            assert "can be resumed. See: emtc show" in said


def test_one_click_in_two_apps_starts_one_run(db: Database) -> None:
    tokens = [f"click {i}" for i in range(4)]
    first, second = act_at_once(db, ("launch", "launch"), tokens)
    assert first["said"] == second["said"], "both show the same runs"
    assert sorted(first["started"] + second["started"]) == sorted(first["said"])


def test_two_workers_of_a_sweep_start_no_run_twice_and_no_more_than_fit(db: Database) -> None:
    plan = [PlannedRun(f"k{i}", f"run {i}", {**CONFIG, "seed": i}, 1000) for i in range(8)]
    save_sweep(db, "aaaa0000", name="s", plan={"runs": []}, runs=plan, versions={}, jobs=3)
    first, second = act_at_once(db, ("worker", "worker"), ["aaaa0000"])
    started = first["started"] + second["started"]
    assert len(started) == len(set(started)) == 3
