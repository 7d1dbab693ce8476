"""What Live says a run stands on, and what it offers: never a resume that costs rows unsaid."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

from sqlalchemy import insert, update

from app.jobs.resume import CheckpointStatus, examine_checkpoints
from app.ui import run_data
from app.ui.live.controls import EVENTS, describe_checkpoints, describe_resumes
from app.ui.page_url import OPENED_BOX
from app.ui.run_data import LiveCurves
from emtc_core.checkpoint_file import CheckpointCheck, name_checkpoint, write_checkpoint
from storage.engine import Database
from storage.files import run_folder
from storage.models import CommandRow, Run
from storage.queries.runs import list_resumes, list_runs
from storage.runs.changes import start_again
from storage.runs.removal import rewind_run
from storage.runs.rows import find_run
from tests.pages.seed import seed_run
from tests.pages.test_pages import open_page, said


def lose(db: Database, run_id: str) -> int:
    """Let the run send no heartbeat; returns how far it came."""
    with db.transaction() as connection:
        connection.execute(
            update(Run).where(Run.id == run_id).values(heartbeat_at=datetime.now(UTC) - timedelta(hours=1))
        )
    return find_run(db, run_id).env_steps


def leave_checkpoint(db: Database, run_id: str, env_step: int, *, of: str | None = None) -> Path:
    folder = run_folder(db, run_id)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name_checkpoint(env_step)
    write_checkpoint(path, run_id=of or run_id, env_step=env_step, parts=[("state", lambda sink: sink.write(b"x"))])
    return path


def test_a_lost_run_is_resumed_from_its_checkpoint_and_starts_again_without_one(empty):
    run_id = seed_run(empty, status="running")
    steps = lose(empty, run_id)
    app = open_page("live", run=run_id)
    assert not app.exception
    keys = {button.key for button in app.button}
    assert keys & {"start-again", "resume-ended"} == {"start-again"}
    assert "this one keeps its rows" in said(app)
    leave_checkpoint(empty, run_id, 0)
    app = open_page("live", run=run_id)
    assert not app.exception
    keys = {button.key for button in app.button}
    assert keys & {"start-again", "resume-ended"} == {"resume-ended"}
    assert f"the {steps:,} steps recorded after it are superseded" in said(app)
    app.session_state[OPENED_BOX] = EVENTS
    assert str(run_folder(empty, run_id)) in said(app.run()).replace("\\", "")


def test_checkpoints_that_cannot_be_used_say_why(empty):
    run_id = seed_run(empty, status="running")
    steps = lose(empty, run_id)
    leave_checkpoint(empty, run_id, steps + 1)
    leave_checkpoint(empty, run_id, 0, of="zzzz9999")
    status = examine_checkpoints(empty, find_run(empty, run_id))
    assert not status.can_resume
    assert "cannot go back" in status.faults[0]
    assert "belongs to run zzzz9999" in status.faults[1]


def test_what_was_superseded_is_counted(empty):
    run_id = seed_run(empty)
    steps = find_run(empty, run_id).env_steps
    assert describe_resumes(list_resumes(empty, run_id)) == ""
    rewind_run(empty, run_id, 0, checkpoint=name_checkpoint(0), passed_over=["checkpoint-7.pt is damaged."])
    told = describe_resumes(list_resumes(empty, run_id))
    assert f"{steps:,} recorded steps in " in told
    assert "checkpoint-7.pt is damaged." in told


def test_fewer_than_two_good_checkpoints_are_told():
    good, bad = CheckpointCheck("a", 400, None), CheckpointCheck("b", 800, "b is damaged.")
    told = [
        describe_checkpoints(CheckpointStatus(900, found, "folder", None), first_step=400)
        for found in ((), (bad,), (bad, good), (good, good))
    ]
    assert "The first one is due at step 400" in told[0]
    assert told[1].startswith("No usable checkpoint here. If")
    assert told[2].startswith("Only one good checkpoint, at step 400")
    assert told[3] == "Good checkpoints at steps 400 and 400."
    ended = describe_checkpoints(CheckpointStatus(900, (), "folder", None), first_step=400, has_ended=True)
    assert "If the trainer ends now" not in ended


def test_a_run_started_again_leaves_its_parent_as_it_was(empty):
    run_id = seed_run(empty)
    before = find_run(empty, run_id)
    child = find_run(empty, start_again(empty, run_id, versions={}))
    assert (child.parent_id, child.config, child.env_steps, child.name) == (run_id, before.config, 0, before.name)
    assert find_run(empty, run_id) == before
    assert set(list_runs(empty)["parent_id"].dropna()) == {run_id}


def test_a_paused_run_shows_no_speed_and_no_time_left_and_its_pause_is_not_elapsed_time(empty):
    run_id = seed_run(empty, status="running")
    started = find_run(empty, run_id).started_at
    with empty.transaction() as connection:
        now = started + timedelta(hours=2)
        connection.execute(update(Run).where(Run.id == run_id).values(status="paused", heartbeat_at=now))
        times = dict.fromkeys(("requested_at", "acknowledged_at"), started + timedelta(minutes=1))
        connection.execute(insert(CommandRow), {"run_id": run_id, "command": "pause", **times})
    app = open_page("live", run=run_id)
    metrics = {metric.label: metric.value for metric in app.metric}
    assert metrics.keys() & {"Speed [steps/s]", "Time left", "Elapsed"} == {"Elapsed"}
    assert metrics["Elapsed"] == "1 min 00 s"


def test_the_speed_is_of_the_last_minute_and_starts_with_the_first_step_after_a_pause_and_after_a_gap(monkeypatch):
    now, curves, speeds = 1000.0, LiveCurves("r", ()), []
    monkeypatch.setattr(run_data.time, "monotonic", lambda: now)
    for seconds, env_steps, status in (
        (0, 0, "running"),
        (5, 0, "running"),  # the trainer prepares
        (5, 500, "running"),
        *((5, 500 + 50 * i, "running") for i in range(1, 14)),  # slower: the first seconds leave the window
        (5, 1150, "paused"),
        (5, 1150, "paused"),
        (5, 1250, "running"),
        (3600, 1350, "running"),
        (5, 1450, "running"),
    ):
        now += seconds
        curves.record_progress(SimpleNamespace(env_steps=env_steps, live_status=status))
        speeds.append(curves.steps_per_second())
    assert (speeds[2], speeds[15]) == (100.0, 10.0)
    assert speeds[16:] == [None, None, 20.0, None, 20.0]
