"""A person's resume or deletion of another machine's run: her clock may be fast, so the run is watched before."""

import shutil
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from sqlalchemy import update

from app.jobs import resume
from emtc_core.errors import RunStateError
from storage import clock
from storage.engine import Database, open_database
from storage.maintenance.thin import Thinning, thin_run
from storage.models import Run
from storage.runs import claims
from storage.runs.changes import create_run, start_run
from storage.runs.claims import claim_to_train
from storage.runs.removal import remove_run
from storage.runs.rows import find_run
from storage.runs.status import LOST_AFTER_S
from tests.errors import raises
from tests.storage.records import CONFIG

MINUTES = timedelta(minutes=10)
GONE = replace(get_process_id(), pid=2**22 + 1)


@pytest.fixture
def lost(tmp_path: Path, sqlite_template: Path) -> tuple[Database, str]:
    """A run of another machine whose last heartbeat is ten minutes old by this machine's clock."""
    db = open_database(f"sqlite:///{shutil.copy(sqlite_template, tmp_path / 'x.db')}")
    return db, make_lost(db)


def make_lost(db: Database) -> str:
    run_id = create_run(db, CONFIG, target_steps=100, versions={})
    owner = Owner(ProcessId(1, "elsewhere", 1.0), "theirs")
    claim_to_train(db, run_id, owner)
    start_run(db, run_id, owner.process, device="cpu", token=owner.token)
    beat(db, run_id)
    return run_id


def beat(db: Database, run_id: str) -> None:
    with db.transaction() as connection:
        connection.execute(update(Run).where(Run.id == run_id).values(heartbeat_at=clock.now() - MINUTES))


def watch(monkeypatch: pytest.MonkeyPatch, *, then: object = None) -> list[float]:
    """Let time pass at once; `then` happens at the first look."""
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if then is not None and len(slept) == 1:
            then()

    monkeypatch.setattr(claims, "time", SimpleNamespace(sleep=sleep, monotonic=lambda: sum(slept)))
    return slept


def test_a_run_that_beats_by_a_slower_clock_is_not_taken(lost, monkeypatch) -> None:
    db, run_id = lost
    watch(monkeypatch, then=lambda: beat(db, run_id))
    with raises(RunStateError, reason="at_work", subject=run_id):
        resume.claim_to_resume(db, run_id)
    assert find_run(db, run_id).owner_token == "theirs"


def test_a_run_that_stays_silent_is_taken_after_a_watch(lost, monkeypatch) -> None:
    db, run_id = lost
    slept = watch(monkeypatch)
    owner = resume.claim_to_resume(db, run_id)
    assert sum(slept) >= LOST_AFTER_S
    assert find_run(db, run_id).owner_token == owner.token


def test_a_run_of_this_machine_is_taken_at_once(lost, monkeypatch) -> None:
    db, run_id = lost
    with db.transaction() as connection:
        connection.execute(update(Run).where(Run.id == run_id).values(**process_columns(GONE)))
    slept = watch(monkeypatch)
    resume.claim_to_resume(db, run_id)
    assert slept == []


@pytest.mark.parametrize("act", ["delete", "resume", "thin"])
def test_a_run_of_a_container_is_watched_although_the_container_has_the_name_of_this_machine(
    lost, monkeypatch, act: str
) -> None:
    db, run_id = lost
    in_container = replace(GONE, key="boot/1/100")
    with db.transaction() as connection:
        connection.execute(update(Run).where(Run.id == run_id).values(**process_columns(in_container)))
    watch(monkeypatch, then=lambda: beat(db, run_id))
    with raises(RunStateError, reason="at_work", subject=run_id) as told:
        if act == "resume":
            resume.claim_to_resume(db, run_id)
        elif act == "thin":
            thin_run(db, run_id, Thinning(checkpoints=True))
        else:
            remove_run(db, run_id)
    assert "clock of this machine" in str(told.value)


def test_a_run_that_beats_by_a_slower_clock_is_not_deleted(lost, monkeypatch) -> None:
    db, run_id = lost
    watch(monkeypatch, then=lambda: beat(db, run_id))
    outcome = resume.delete_runs(db, [run_id])
    assert outcome.done == ()
    assert "training on elsewhere: its trainer has just sent a heartbeat" in outcome.refused[0]
    assert find_run(db, run_id).owner_token == "theirs"


def test_runs_that_stay_silent_are_deleted_after_one_watch_for_all(lost, monkeypatch) -> None:
    db, run_id = lost
    other = make_lost(db)
    slept = watch(monkeypatch)
    assert resume.delete_runs(db, [run_id, "nosuchrun", other]).done == (run_id, "nosuchrun", other)
    assert LOST_AFTER_S <= sum(slept) < 2 * LOST_AFTER_S
