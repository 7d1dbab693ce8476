"""Detached trainers and background jobs: really started, once per press, and cancellable."""

import shutil
from datetime import UTC, datetime

import psutil
import pytest
from sqlalchemy import update

from app.analysis.projections.snapshots import make_projection_params
from app.jobs.estimate import TYPICAL_SPEED_SOURCE, estimate
from app.jobs.launch import TRAINER_NICENESS, kill_run, launch_run
from app.jobs.projections import cancel_job, run_job, start_job
from emtc_core.config.resolve import resolve
from emtc_core.errors import RunStateError
from storage.engine import open_database
from storage.files import run_folder
from storage.models import Run
from storage.projections import create_job, get_job
from storage.queries.memory import get_snapshot, list_snapshots
from storage.queries.projections import find_projection
from storage.queries.runs import list_runs
from storage.runs.changes import create_run, start_run
from storage.runs.rows import find_run
from tests.pages.seed import seed_run
from tests.process.trainers import wait_until


@pytest.fixture
def db(tmp_path, sqlite_template):
    return open_database(f"sqlite:///{shutil.copy(sqlite_template, tmp_path / 'emtc.db')}")


@pytest.fixture(scope="module")
def seeded(tmp_path_factory):
    db = open_database(f"sqlite:///{tmp_path_factory.mktemp('seeded') / 'emtc.db'}")
    return db, seed_run(db)


@pytest.mark.ci
def test_a_launched_run_trains_in_another_process_with_low_priority_that_can_be_killed(db):
    config = resolve(preset="demo", steps=20_000)
    run_id = launch_run(db, config, name="twice", launch_token="token")
    assert launch_run(db, config, name="twice", launch_token="token") == run_id
    assert len(list_runs(db)) == 1
    wait_until(lambda: find_run(db, run_id).live_status == "running", what="the start of the run")
    process = psutil.Process(find_run(db, run_id).pid)
    try:
        assert process.pid != psutil.Process().pid
        assert process.nice() >= TRAINER_NICENESS, "the app and the browser run first"
        kill_run(db, run_id)
        wait_until(lambda: not process.is_running(), what="the end of the process")
    finally:
        if process.is_running():
            process.kill()
    assert (run_folder(db, run_id) / "log.txt").exists()


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"host": "elsewhere"}, "elsewhere"),
        ({"pid": 2**22 + 1}, "ended"),
        ({"claimed_at": datetime(2000, 1, 1, tzinfo=UTC)}, "ended"),  # the pid of a process that is not its trainer
        ({"status": "stopped"}, "stopped"),
    ],
)
def test_only_the_process_of_the_run_is_killed(db, values, word):
    run_id = create_run(db, resolve(preset="demo").model_dump(mode="json"), target_steps=10, versions={}, token="a")
    start_run(db, run_id, device="cpu", token="a")
    with db.transaction() as connection:
        connection.execute(update(Run).where(Run.id == run_id).values(**values))
    with pytest.raises(RunStateError, match=word):
        kill_run(db, run_id)


def test_an_estimate_uses_the_speed_of_finished_runs(seeded):
    known = estimate(seeded[0], resolve(preset="demo"))
    assert "1 run of this map and algorithm" in known.speed_source
    assert known.seconds > 0
    assert known.disk_bytes > 1e6


def test_an_estimate_without_finished_runs_counts_the_start_and_the_evaluations(db):
    task = {"env": "grf", "map": "academy_3_vs_1_with_keeper", "preset": "demo", "steps": 6000}
    frequent = estimate(db, resolve(**task))
    assert frequent.speed_source == TYPICAL_SPEED_SOURCE
    assert 150 < frequent.seconds < 250, "202 s were measured"
    assert estimate(db, resolve(**task, overrides=["eval.interval=100000"])).seconds < frequent.seconds / 2


def test_background_job_finishes_and_a_second_request_joins_it(seeded):
    db, run_id = seeded
    snapshot = get_snapshot(db, int(list_snapshots(db, run_id)["id"].iloc[-1]))
    job = start_job(db, snapshot, method="umap", n=60, seed=0)
    again = start_job(db, snapshot, method="umap", n=60, seed=0)
    assert again.id == job.id
    wait_until(lambda: get_job(db, job.id).status not in ("queued", "running"), what="the end of the job")
    assert get_job(db, job.id).status == "finished"
    assert find_projection(db, snapshot.id, "umap", make_projection_params("umap", n=60, seed=0)) is not None


def test_cancelled_job_stores_nothing(seeded, monkeypatch):
    db, run_id = seeded
    monkeypatch.setattr("app.jobs.projections.REPORT_EVERY_S", 0.0)
    snapshot_id = int(list_snapshots(db, run_id)["id"].iloc[-1])
    params = make_projection_params("umap", n=50, seed=9)
    job = create_job(db, snapshot_id, method="umap", params=params)
    cancel_job(db, job.id)
    run_job(db, job.id)
    assert get_job(db, job.id).status == "cancelled"
    assert find_projection(db, snapshot_id, "umap", params) is None
