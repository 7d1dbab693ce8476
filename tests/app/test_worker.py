"""Which claimed runs a worker leaves to another machine, and in which words."""

import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import update

from app.jobs.sweeps.worker import MAX_RESTARTS, EligibilityCheck, LeaveRequest, StartedTrainer, WorkerLoop
from emtc_core.config.resolve import resolve
from emtc_core.errors import FileMissingError, StorageError
from storage.engine import Database, open_database
from storage.models import Run
from storage.runs.claims import ClaimedRun, RunClaimer
from storage.runs.rows import find_run
from storage.runs.sweeps import PlannedRun, save_sweep, sweep_runs


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    database = open_database(f"sqlite:///{tmp_path / 'x.db'}")
    yield database
    database.dispose()


def queue_run_of(db: Database, **env: str) -> str:
    config = resolve(map="3m").model_dump(mode="json")
    config["env"] |= env
    runs = [PlannedRun("k", "a run", config, 1000)]
    save_sweep(db, "aaaa0000", name="s", plan={"runs": []}, runs=runs, versions={}, jobs=1)
    return sweep_runs(db, "aaaa0000")[0].id


def claim_run_of(db: Database, **env: str) -> ClaimedRun:
    queue_run_of(db, **env)
    claim = RunClaimer(db).claim_next()
    assert claim is not None
    return claim


def test_the_checkpoint_of_another_machine_is_left_to_it(db: Database) -> None:
    queued = claim_run_of(db)
    assert EligibilityCheck(db).requeue_if_unsuitable(queued) is None
    with db.transaction() as connection:
        started = find_run(db, queued.run_id).created_at
        connection.execute(update(Run).values(env_steps=100, started_at=started, host="far-away", owner_token=None))
    claim = RunClaimer(db).claim_next()
    assert claim is not None
    sentence = EligibilityCheck(db).requeue_if_unsuitable(claim)
    assert sentence is not None
    assert f"Run {claim.run_id} is left in the queue: it was trained on far-away" in sentence
    row = find_run(db, claim.run_id)
    assert (row.live_status, row.host, row.env_steps) == ("queued", "far-away", 100)


def test_an_environment_that_is_not_here_is_left_to_a_machine_that_has_it(db: Database) -> None:
    claim = claim_run_of(db, map="no_such_map")
    sentence = EligibilityCheck(db).requeue_if_unsuitable(claim)
    assert sentence is not None
    assert "no_such_map" in sentence
    row = find_run(db, claim.run_id)
    assert (row.live_status, row.host) == ("queued", None)


def test_a_run_waits_while_the_place_of_files_does_not_answer(
    db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = claim_run_of(db)
    monkeypatch.setenv("EMTC_FILES", str(tmp_path / "unmounted"))
    eligibility = EligibilityCheck(db)
    with pytest.raises(StorageError, match="EMTC_FILES"):
        eligibility.requeue_if_unsuitable(claim)
    assert find_run(db, claim.run_id).live_status == "queued"
    (tmp_path / "mounted").mkdir()
    monkeypatch.setenv("EMTC_FILES", str(tmp_path / "mounted"))
    again = RunClaimer(db).claim_next()
    assert again is not None
    assert eligibility.requeue_if_unsuitable(again) is None


def test_a_database_that_does_not_answer_says_nothing_of_a_run_and_ends_no_worker(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = claim_run_of(db)
    work = WorkerLoop(db, jobs=1, leave=LeaveRequest(), announce=(messages := list[str]()).append)
    work._trainers[claim.run_id] = StartedTrainer(claim, subprocess.Popen(["true"]))
    work._trainers[claim.run_id].process.wait()

    def locked(*_: object, **__: object) -> None:
        raise StorageError("The database failed: database is locked.") from sqlite3.OperationalError("locked")

    with monkeypatch.context() as patch:
        patch.setattr("app.jobs.sweeps.worker.return_to_queue", locked)
        patch.setattr("app.jobs.sweeps.worker.retry_transient", lambda db, act: act())
        work._collect_ended()
    assert (list(work._trainers), find_run(db, claim.run_id).live_status) == ([claim.run_id], "starting")
    assert messages == ["The database failed: database is locked."]
    work._collect_ended()
    assert (work._trainers, find_run(db, claim.run_id).live_status) == ({}, "queued")


@pytest.mark.timeout(60)
def test_a_worker_ends_if_the_database_file_does_not_come_back(
    db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = WorkerLoop(db, jobs=1, leave=LeaveRequest(), announce=lambda message: None)
    (tmp_path / "x.db").rename(tmp_path / "moved.db")
    monkeypatch.setattr("app.jobs.sweeps.worker.MISSING_FILE_PATIENCE_S", 0.0)
    with pytest.raises(FileMissingError, match=r"x\.db"):
        work.run(once=True)


def test_a_trainer_that_ends_without_a_message_is_started_again_three_times(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new checkpoint resets the count. Afterwards the run has failed."""
    run_id = queue_run_of(db)
    n_started = 0

    def spawn(arguments: list[str], log: Path, *, db: Database) -> subprocess.Popen[bytes]:
        nonlocal n_started
        n_started += 1
        process = subprocess.Popen(["true"])
        process.wait()
        return process

    monkeypatch.setattr("app.jobs.launch.spawn", spawn)
    monkeypatch.setattr("app.jobs.sweeps.worker.POLL_S", 0)
    work = WorkerLoop(db, jobs=1, leave=LeaveRequest(), announce=(messages := list[str]()).append)
    (*_, last) = work.run(once=True)
    assert (last.run_id, last.status, n_started) == (run_id, "failed", 1 + MAX_RESTARTS)
    assert "ended 4 times without a message" in messages[-1]
    n_started = 0
    with db.transaction() as connection:
        connection.execute(update(Run).values(status="queued"))

    def examine(*_: object) -> Any:
        return SimpleNamespace(usable=SimpleNamespace(env_step=100 * min(n_started, 3)))

    monkeypatch.setattr("app.jobs.sweeps.worker.examine_checkpoints", examine)
    work = WorkerLoop(db, jobs=1, leave=LeaveRequest(), announce=messages.append)
    work.run(once=True)
    assert n_started == 3 + MAX_RESTARTS
