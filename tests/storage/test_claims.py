"""Runs are claimed by workers of several machines and returned, on both databases: never by two, and no wish undone."""

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import func, update

from emtc_core.errors import RunStateError, StorageError
from storage.engine import Database, open_database
from storage.files import StateFile
from storage.models import Run
from storage.recording.writer import DatabaseRecorder
from storage.runs.changes import create_run, finish_run, start_run
from storage.runs.claims import (
    TAKEOVER_AFTER_S,
    ClaimedRun,
    RunClaimer,
    check_owned,
    claim_run,
    claim_to_train,
    make_token,
    return_to_queue,
)
from storage.runs.control import DatabaseControl, send_command, write_heartbeat
from storage.runs.rows import find_run
from storage.runs.status import LOST_AFTER_S, START_LIMIT_S
from storage.runs.sweeps import PlannedRun, save_sweep, stop_sweep, sweep_runs
from tests.storage.records import CONFIG, record_episodes


def save(db: Database, sweep_id: str, n: int) -> None:
    runs = [PlannedRun(f"{sweep_id}-{i}", f"{sweep_id} {i}", {**CONFIG, "seed": i}, 1000) for i in range(n)]
    save_sweep(db, sweep_id, name=sweep_id, plan={"runs": []}, runs=runs, versions={}, jobs=1)


@pytest.fixture
def claimer(db: Database) -> RunClaimer:
    return RunClaimer(db)


def start(db: Database, claim: ClaimedRun) -> None:
    start_run(db, claim.run_id, device="cpu", token=claim.token)


def claim_one(claimer: RunClaimer) -> ClaimedRun:
    claim = claimer.claim_next()
    assert claim is not None
    return claim


def silence(db: Database, run_id: str, *, seconds: float = 3600.0) -> None:
    """Set the last heartbeat of a run to so many seconds ago."""
    past = datetime.now(UTC) - timedelta(seconds=seconds)
    with db.transaction() as connection:
        connection.execute(update(Run).where(Run.id == run_id).values(heartbeat_at=past))


def test_of_many_workers_each_run_has_one(url: str) -> None:
    db = open_database(url)
    for sweep_id in ("aaaa0000", "bbbb1111"):
        save(db, sweep_id, 8)
    alone = [create_run(db, CONFIG, target_steps=10, versions={}) for _ in range(4)]
    claimed: list[str] = []

    def claim_all(is_of_sweep: bool) -> None:
        own = open_database(url)
        claimer = RunClaimer(own)
        while claim := claimer.claim_in_sweep("aaaa0000", jobs=99) if is_of_sweep else claimer.claim_next():
            claimed.append(claim.run_id)
        own.dispose()

    threads = [threading.Thread(target=claim_all, args=(i == 0,)) for i in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(claimed) == len(set(claimed)) == 20
    assert set(alone) < set(claimed)
    db.dispose()


def test_runs_of_a_sweep_are_claimed_in_the_order_of_the_plan_and_no_more_than_may_train_at_once(
    db: Database, claimer: RunClaimer
) -> None:
    save(db, "aaaa0000", 6)
    claims = [claim for _ in range(4) if (claim := claimer.claim_in_sweep("aaaa0000", jobs=3))]
    assert [find_run(db, claim.run_id).name for claim in claims] == [f"aaaa0000 {i}" for i in range(3)]
    assert not any(claim.resume for claim in claims)
    start(db, claims[0])
    assert claimer.claim_in_sweep("aaaa0000", jobs=3) is None
    finish_run(db, claims[0].run_id, "finished", token=claims[0].token)
    assert claimer.claim_in_sweep("aaaa0000", jobs=3) is not None
    with db.transaction() as connection:
        connection.execute(
            update(Run).where(Run.id == claims[1].run_id).values(status="paused", heartbeat_at=func.now())
        )
    assert claimer.claim_in_sweep("aaaa0000", jobs=3) is not None, "a paused run does not count"
    assert claimer.claim_in_sweep("aaaa0000", jobs=3) is None


def test_a_returned_run_waits_and_its_former_owner_writes_nothing(db: Database, claimer: RunClaimer) -> None:
    save(db, "aaaa0000", 1)
    claim = claim_one(claimer)
    start(db, claim)
    send_command(db, claim.run_id, "pause")  # the trainer has not read it, and the next one must not
    assert return_to_queue(db, claim.run_id, token=claim.token) == "queued"
    row = find_run(db, claim.run_id)
    assert (row.live_status, row.owner_token, row.pid) == ("queued", None, None)
    with pytest.raises(RunStateError, match=claim.run_id), db.transaction() as connection:
        check_owned(connection, claim.run_id, claim.token)
    for write in (
        lambda: finish_run(db, claim.run_id, "stopped", token=claim.token),
        lambda: return_to_queue(db, claim.run_id, token=claim.token, is_launcher=True),
    ):
        with pytest.raises(RunStateError, match=claim.run_id):
            write()
    with db.read() as connection:
        waiting = connection.exec_driver_sql("SELECT count(*) FROM commands WHERE acknowledged_at IS NULL").scalar()
    assert waiting == 0
    again = claim_one(claimer)
    assert (again.run_id, again.resume) == (claim.run_id, True)


@pytest.mark.parametrize("wish", ["stop", "acknowledged stop", "pause", "stop the sweep"])
def test_the_wish_of_a_user_is_not_undone(db: Database, claimer: RunClaimer, wish: str) -> None:
    save(db, "aaaa0000", 1)
    claim = claim_one(claimer)
    start(db, claim)
    if wish == "pause":
        with db.transaction() as connection:
            connection.execute(update(Run).values(status="paused"))
    elif wish == "stop the sweep":
        assert stop_sweep(db, "aaaa0000") == (0, [claim.run_id])
    else:
        send_command(db, claim.run_id, "stop")
    if wish == "acknowledged stop":
        with db.transaction() as connection:
            connection.exec_driver_sql("UPDATE commands SET acknowledged_at = requested_at")
    assert return_to_queue(db, claim.run_id, token=claim.token) == "stopped"
    row = find_run(db, claim.run_id)
    assert row.live_status == "stopped"
    assert ("paused" in (row.error or "")) == (wish == "pause")
    assert claimer.claim_next() is None


def test_a_trainer_does_not_return_a_run_that_it_has_not_started(db: Database, claimer: RunClaimer) -> None:
    save(db, "aaaa0000", 1)
    first = claim_one(claimer)
    start(db, first)
    silence(db, first.run_id)
    host = find_run(db, first.run_id).host
    claim = claim_one(claimer)
    assert claim.resume
    assert return_to_queue(db, claim.run_id, token=claim.token) is None
    assert return_to_queue(db, claim.run_id, token=claim.token, is_launcher=True) == "queued"
    assert find_run(db, claim.run_id).host == host, "the machine that has its checkpoints"


def test_runs_of_stopped_sweeps_and_lost_runs_without_a_sweep_are_not_claimed(
    db: Database, claimer: RunClaimer
) -> None:
    save(db, "aaaa0000", 2)
    stop_sweep(db, "aaaa0000")
    assert claimer.claim_in_sweep("aaaa0000", jobs=2) is None
    alone = create_run(db, CONFIG, target_steps=10, versions={})
    claim = claim_one(claimer)
    assert (claim.run_id, claim.resume) == (alone, False)
    start(db, claim)
    silence(db, alone)
    assert find_run(db, alone).live_status == "lost"
    assert claimer.claim_next() is None


def test_a_worker_claims_no_run_that_it_excludes(db: Database, claimer: RunClaimer) -> None:
    save(db, "aaaa0000", 1)
    excluded = [run.id for run in sweep_runs(db, "aaaa0000")]
    assert claimer.claim_next(excluded_ids=excluded) is None
    assert claimer.claim_in_sweep("aaaa0000", jobs=1, excluded_ids=excluded) is None


def test_a_worker_takes_over_a_lost_run_only_after_a_longer_silence(db: Database, claimer: RunClaimer) -> None:
    save(db, "aaaa0000", 1)
    claim = claim_one(claimer)
    start(db, claim)
    assert claimer.claim_next() is None
    assert not claimer.has_pending_lost_run
    silence(db, claim.run_id, seconds=(LOST_AFTER_S + TAKEOVER_AFTER_S) / 2)
    assert find_run(db, claim.run_id).live_status == "lost"
    assert claimer.claim_next() is None
    assert claimer.has_pending_lost_run
    silence(db, claim.run_id, seconds=TAKEOVER_AFTER_S + 10)
    assert claim_one(claimer).run_id == claim.run_id


def fail_to_read(claimer: RunClaimer, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise StorageError("The server does not answer.")

    with monkeypatch.context() as patch:
        patch.setattr(Database, "read", fail)
        with pytest.raises(StorageError):
            claimer.check_database()


def suspend(claimer: RunClaimer, monkeypatch: pytest.MonkeyPatch) -> None:
    claimer._looked_at = datetime.now(UTC) - timedelta(hours=1)


@pytest.mark.parametrize("interrupt", [fail_to_read, suspend])
def test_a_worker_takes_over_no_run_soon_after_an_outage_or_a_suspension_of_its_machine(
    db: Database, monkeypatch: pytest.MonkeyPatch, interrupt: Callable[[RunClaimer, pytest.MonkeyPatch], None]
) -> None:
    time_s = 1000.0
    claimer = RunClaimer(db, monotonic=lambda: time_s)
    save(db, "aaaa0000", 2)
    claim = claim_one(claimer)
    start(db, claim)
    silence(db, claim.run_id)
    interrupt(claimer, monkeypatch)
    assert claim_one(claimer).run_id != claim.run_id, "a queued run can be claimed at once"
    time_s += TAKEOVER_AFTER_S - 0.1
    assert claimer.claim_next() is None
    assert claimer.has_pending_lost_run
    time_s += 0.1
    assert claim_one(claimer).run_id == claim.run_id


def test_a_start_that_is_overdue_is_claimed_and_its_trainer_is_too_late(db: Database, claimer: RunClaimer) -> None:
    save(db, "aaaa0000", 1)
    late = claim_one(claimer)
    past = datetime.now(UTC) - timedelta(seconds=START_LIMIT_S + 1)
    with db.transaction() as connection:
        connection.execute(update(Run).values(claimed_at=past))
    assert find_run(db, late.run_id).live_status == "lost"
    claim = claim_one(claimer)
    with pytest.raises(RunStateError, match=late.run_id):
        start(db, late)
    start(db, claim)
    assert find_run(db, late.run_id).live_status == "running"


def test_a_heartbeat_between_the_read_and_the_claim_keeps_the_run(db: Database, claimer: RunClaimer) -> None:
    run_id = create_run(db, CONFIG, target_steps=10, versions={})
    claim_to_train(db, run_id, "owner")
    start_run(db, run_id, device="cpu", token="owner")
    silence(db, run_id)
    row = find_run(db, run_id)
    assert row.live_status == "lost"
    assert write_heartbeat(db, run_id, "owner")
    with db.transaction() as connection:
        assert not claim_run(connection, row, "other")
    assert find_run(db, run_id).owner_token == "owner"


def test_a_trainer_that_waits_for_a_full_disk_is_paused_and_keeps_its_run(db: Database, claimer: RunClaimer) -> None:
    save(db, "aaaa0000", 1)
    claim = claim_one(claimer)
    start(db, claim)
    silence(db, claim.run_id)
    state_file = StateFile(db, claim.run_id)
    state_file.prepare()
    state_file.write("the disk is full")
    try:
        row = find_run(db, claim.run_id)
        assert (row.live_status, row.stall) == ("paused", "the disk is full")
        assert claimer.claim_next() is None
        with pytest.raises(RunStateError, match=claim.run_id):
            claim_to_train(db, claim.run_id, make_token())
    finally:
        state_file.remove()
    assert find_run(db, claim.run_id).live_status == "lost"


def test_a_former_owner_reads_no_commands_of_the_new_one(db: Database) -> None:
    run_id = create_run(db, CONFIG, target_steps=10, versions={}, token="former")
    start_run(db, run_id, device="cpu", token="former")
    control = DatabaseControl(db, run_id, token="former", poll_s=0.01)
    silence(db, run_id)
    claim_to_train(db, run_id, "owner")
    start_run(db, run_id, device="cpu", token="owner")
    control._thread.join(timeout=30)
    send_command(db, run_id, "stop")
    with pytest.raises(RunStateError, match=run_id):
        control.poll()
    control.close()
    with db.read() as connection:
        waiting = connection.exec_driver_sql("SELECT count(*) FROM commands WHERE acknowledged_at IS NULL").scalar()
    assert waiting == 1


def test_of_two_owners_one_writes(db: Database, run_id: str) -> None:
    claim_to_train(db, run_id, "first")
    start_run(db, run_id, device="cpu", token="first")
    former = DatabaseRecorder(db, run_id, token="first")
    record_episodes(former, 2)
    former.flush()
    silence(db, run_id)
    claim_to_train(db, run_id, "second")
    record_episodes(former, 1, start=3)
    with pytest.raises(StorageError, match=run_id):
        former.close()
    assert find_run(db, run_id).env_steps == 20
    with pytest.raises(RunStateError, match=run_id):
        finish_run(db, run_id, "finished", token="first")
    assert find_run(db, run_id).live_status == "starting"
