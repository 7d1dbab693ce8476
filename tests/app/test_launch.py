"""Detached trainers and background jobs: really started, once per press, and cancellable."""

import shutil
import time
from datetime import UTC, datetime

import numpy as np
import psutil
import pytest
from sqlalchemy import update

from app.analysis.projections.snapshots import make_projection_params, project_snapshot
from app.jobs.estimate import TYPICAL_SPEED_SOURCE, estimate
from app.jobs.launch import TRAINER_NICENESS, kill_run, launch_run
from app.jobs.projections import cancel_job, run_job, start_job
from app.jobs.resume import resume_run
from emtc_core.config.resolve import resolve
from emtc_core.errors import ConfigError, EnvUnavailableError, RunStateError
from storage.engine import open_database
from storage.files import run_folder
from storage.models import Run
from storage.projections import create_job, get_job
from storage.queries.memory import get_snapshot, list_snapshots
from storage.queries.projections import find_projection
from storage.queries.runs import list_runs
from storage.runs.changes import create_run, start_run
from storage.runs.rows import find_run
from tests.errors import raises
from tests.pages.seed import seed_run

PATIENCE_S = 120


@pytest.fixture
def db(tmp_path, sqlite_template):
    return open_database(f"sqlite:///{shutil.copy(sqlite_template, tmp_path / 'emtc.db')}")


@pytest.fixture(scope="module")
def seeded(tmp_path_factory):
    db = open_database(f"sqlite:///{tmp_path_factory.mktemp('seeded') / 'emtc.db'}")
    return db, seed_run(db)


def wait_until(true, what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline, f"{what} did not happen within {PATIENCE_S} s"
        time.sleep(0.1)


def test_one_press_makes_one_run_that_trains_in_a_process_of_its_own(db):
    config = resolve(preset="demo", steps=20_000)
    first = launch_run(db, config, name="twice", launch_token="token")
    assert launch_run(db, config, name="twice", launch_token="token") == first
    assert len(list_runs(db)) == 1
    wait_until(lambda: find_run(db, first).live_status == "running", "the start of the run")
    process = psutil.Process(find_run(db, first).pid)
    try:
        assert process.pid != psutil.Process().pid
        assert process.nice() >= TRAINER_NICENESS, "the app and the browser run first"
        kill_run(db, first)
        wait_until(lambda: find_run(db, first).live_status == "lost", "the notice of its death")
    finally:
        if process.is_running():
            process.kill()
    assert (run_folder(db, first) / "log.txt").exists()


def test_unavailable_environment_creates_nothing(db):
    config = resolve(preset="demo", overrides={"env.map": "nowhere"})
    with pytest.raises(EnvUnavailableError):
        launch_run(db, config)
    assert len(list_runs(db)) == 0


def test_only_a_run_that_ended_is_resumed(seeded):
    db, run_id = seeded
    with pytest.raises(RunStateError, match=run_id):
        resume_run(db, run_id)


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


def test_estimate_learns_from_finished_runs(seeded, db):
    config = resolve(preset="demo")
    assert estimate(db, config).speed_source == TYPICAL_SPEED_SOURCE
    known = estimate(seeded[0], config)
    assert "1 run of this map and algorithm" in known.speed_source
    assert known.seconds > 0
    assert known.disk_bytes > 1e6


def test_an_estimate_without_finished_runs_counts_the_start_and_the_evaluations(db):
    short = {"env": "grf", "map": "academy_3_vs_1_with_keeper", "preset": "demo", "steps": 6000}
    duration = estimate(db, resolve(**short)).seconds
    assert 150 < duration < 250, "202 s were measured"
    rare = estimate(db, resolve(**short, overrides=["eval.interval=100000"])).seconds
    assert rare < duration / 2


def test_projection_is_stored_once_and_found_again(seeded):
    db, run_id = seeded
    snapshot_id = int(list_snapshots(db, run_id)["id"].iloc[-1])
    first = project_snapshot(db, snapshot_id, method="pca", n=100, seed=1)
    assert project_snapshot(db, snapshot_id, method="pca", n=100, seed=1).id == first.id
    assert project_snapshot(db, snapshot_id, method="pca", n=100, seed=2).id != first.id
    assert len(first.coordinates) > 100
    assert np.isfinite(first.coordinates).all(), "every node has a place, not only the landmarks"


def test_unknown_method_is_a_sentence(seeded):
    db, run_id = seeded
    with raises(ConfigError, key="method", value="magic"):
        project_snapshot(db, int(list_snapshots(db, run_id)["id"].iloc[-1]), method="magic")


def test_background_job_finishes_and_a_second_request_joins_it(seeded):
    db, run_id = seeded
    snapshot = get_snapshot(db, int(list_snapshots(db, run_id)["id"].iloc[-1]))
    job = start_job(db, snapshot, method="umap", n=60, seed=0)
    again = start_job(db, snapshot, method="umap", n=60, seed=0)
    assert again.id == job.id
    wait_until(lambda: get_job(db, job.id).status not in ("queued", "running"), "the end of the job")
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
