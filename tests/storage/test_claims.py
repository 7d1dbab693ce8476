"""Runs taken by workers of several machines and given back, on both databases: never twice, nobody's wish undone."""

import threading
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import select, update

from emtc_core.errors import RunStateError
from storage import clock
from storage.engine import Database, open_database
from storage.models import Run
from storage.process_id import ProcessId, get_process_id
from storage.runs import claims, lifecycle
from storage.runs.changes import create_run, finish_run, start_run
from storage.runs.claims import ClaimedRun, claim_next_run, claim_run, count_claimable_and_active, return_to_queue
from storage.runs.control import request_stop, send_command
from storage.runs.lifecycle import State, check_owned
from storage.runs.rows import find_run
from storage.runs.sweeps import PlannedRun, save_sweep, stop_sweep
from tests.errors import raises
from tests.storage.records import CONFIG


def save(db: Database, sweep_id: str, n: int) -> None:
    runs = [PlannedRun(f"{sweep_id}-{i}", f"{sweep_id} {i}", {**CONFIG, "seed": i}, 1000) for i in range(n)]
    save_sweep(db, sweep_id, name=sweep_id, plan={"runs": []}, runs=runs, versions={}, jobs=1)


@pytest.fixture(autouse=True)
def unwatched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take what seems lost at once, but in the tests about watching."""
    monkeypatch.setattr(claims, "LOST_AFTER_S", 0.0)
    monkeypatch.setattr(claims, "_SILENCE", claims._SilenceTimer())
    monkeypatch.setattr(clock._server, "last", None)


@pytest.fixture
def me() -> ProcessId:
    return replace(get_process_id(), host="this-machine")


def begin(db: Database, claim: ClaimedRun, worker: ProcessId) -> None:
    start_run(db, claim.run_id, worker, device="cpu", token=claim.token)


def claim_one(db: Database, worker: ProcessId) -> ClaimedRun:
    claim = claim_next_run(db, worker)
    assert claim is not None
    return claim


def silence(db: Database, run_id: str) -> None:
    with db.transaction() as connection:
        past = datetime.now(UTC) - timedelta(hours=1)
        connection.execute(update(Run).where(Run.id == run_id).values(heartbeat_at=past, host="far-away"))


def test_of_many_workers_and_schedulers_each_run_has_one(url: str, me: ProcessId) -> None:
    db = open_database(url)
    for sweep_id in ("aaaa0000", "bbbb1111"):
        save(db, sweep_id, 8)
    alone = [create_run(db, CONFIG, target_steps=10, versions={}) for _ in range(4)]
    claimed: list[str] = []

    def take_all(scheduler: bool) -> None:
        own = open_database(url)
        while claim := claim_run(own, "aaaa0000", me, jobs=99) if scheduler else claim_next_run(own, me):
            claimed.append(claim.run_id)
        own.dispose()

    threads = [threading.Thread(target=take_all, args=(i == 0,)) for i in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    while claim := claim_next_run(db, me):  # one that two reached for at once was left for the next look
        claimed.append(claim.run_id)
    assert len(claimed) == len(set(claimed)) == 20
    assert set(alone) < set(claimed)
    db.dispose()


def test_what_could_be_claimed_is_told_from_what_is_worked_on(db: Database, me: ProcessId) -> None:
    save(db, "aaaa0000", 4)
    save(db, "bbbb1111", 2)
    assert count_claimable_and_active(db, "aaaa0000") == (4, 0)
    claims = [claim for _ in range(3) if (claim := claim_run(db, "aaaa0000", me, jobs=3))]
    assert claim_run(db, "aaaa0000", me, jobs=3) is None
    assert count_claimable_and_active(db, "aaaa0000") == (1, 3)
    for claim in claims:
        begin(db, claim, me)
    silence(db, claims[0].run_id)
    finish_run(db, claims[1].run_id, "finished", token=claims[1].token)
    assert count_claimable_and_active(db, "aaaa0000") == (2, 1)
    assert count_claimable_and_active(db, "bbbb1111") == (2, 0)


def test_a_run_given_back_waits_and_its_earlier_owner_writes_nothing(db: Database, me: ProcessId) -> None:
    save(db, "aaaa0000", 1)
    claim = claim_one(db, me)
    begin(db, claim, me)
    send_command(db, claim.run_id, "pause")  # not heard yet: it is void for the next trainer
    assert return_to_queue(db, claim.run_id, token=claim.token) == "queued"
    row = find_run(db, claim.run_id)
    assert (row.state, row.pid, row.host) == (State.CREATED, None, me.host)
    with raises(RunStateError, reason="other_owner", subject=claim.run_id), db.transaction() as connection:
        check_owned(connection, claim.run_id, claim.token)
    with raises(RunStateError, reason="other_owner", subject=claim.run_id):
        finish_run(db, claim.run_id, "stopped", token=claim.token)
    again = claim_one(db, me)
    assert (again.run_id, again.resume, again.host) == (claim.run_id, True, me.host)
    with db.read() as connection:
        waiting = connection.exec_driver_sql("SELECT count(*) FROM commands WHERE acknowledged_at IS NULL").scalar()
    assert waiting == 0


def test_a_run_given_back_leaves_the_queue_when_a_person_stops_it(db: Database, me: ProcessId) -> None:
    save(db, "aaaa0000", 1)
    claim = claim_one(db, me)
    begin(db, claim, me)
    return_to_queue(db, claim.run_id, token=claim.token)
    assert "removed from the queue" in request_stop(db, claim.run_id)
    assert claim_next_run(db, me) is None


@pytest.mark.parametrize("wish", ["stop", "stop heard", "pause", "stop the sweep"])
def test_what_a_person_wanted_is_not_undone(db: Database, me: ProcessId, wish: str) -> None:
    save(db, "aaaa0000", 1)
    claim = claim_one(db, me)
    begin(db, claim, me)
    if wish == "pause":
        with db.transaction() as connection:
            connection.execute(update(Run).values(status="paused"))
    elif wish == "stop the sweep":
        assert stop_sweep(db, "aaaa0000") == (0, [claim.run_id])
    else:
        send_command(db, claim.run_id, "stop")
    if wish == "stop heard":
        with db.transaction() as connection:
            connection.exec_driver_sql("UPDATE commands SET acknowledged_at = requested_at")
    assert return_to_queue(db, claim.run_id, token=claim.token) == "stopped"
    row = find_run(db, claim.run_id)
    assert row.state == State.STOPPED
    assert ("paused" in (row.error or "")) == (wish == "pause")
    assert claim_next_run(db, me) is None


def test_a_trainer_leaves_a_run_that_it_has_not_begun_to_its_launcher(db: Database, me: ProcessId) -> None:
    save(db, "aaaa0000", 1)
    first = claim_one(db, me)
    begin(db, first, me)
    silence(db, first.run_id)
    claim = claim_one(db, me)
    assert (claim.resume, claim.host) == (True, "far-away")
    assert return_to_queue(db, claim.run_id, token=claim.token) is None
    assert return_to_queue(db, claim.run_id, token=claim.token, claim=claim) == "queued"
    assert find_run(db, claim.run_id).host == "far-away", "where its checkpoints lie stays known"


def test_a_run_that_has_ended_cannot_be_given_back(db: Database, me: ProcessId) -> None:
    save(db, "aaaa0000", 1)
    claim = claim_one(db, me)
    begin(db, claim, me)
    finish_run(db, claim.run_id, "finished", token=claim.token)
    with raises(RunStateError, reason="finished", subject=claim.run_id):
        return_to_queue(db, claim.run_id, token=claim.token, claim=claim)


def test_runs_of_stopped_sweeps_and_lost_runs_of_people_are_left_alone(db: Database, me: ProcessId) -> None:
    save(db, "aaaa0000", 2)
    stop_sweep(db, "aaaa0000")
    alone = create_run(db, CONFIG, target_steps=10, versions={})
    claim = claim_next_run(db, me, excluded_ids={alone})
    assert claim is None
    claim = claim_one(db, me)
    assert (claim.run_id, claim.resume) == (alone, False)
    begin(db, claim, me)
    silence(db, alone)
    assert find_run(db, alone).state == State.LOST
    assert claim_next_run(db, me) is None


class Ahead(datetime):
    """A machine's clock that is ten minutes fast."""

    @classmethod
    def now(cls, tz: Any = None) -> datetime:
        return datetime.now(tz) + timedelta(minutes=10)


@pytest.fixture
def elsewhere(db: Database) -> tuple[str, ClaimedRun]:
    """A run that another machine trains, which beat a moment ago."""
    run_id = create_run(db, CONFIG, target_steps=100, versions={})
    claim = claim_one(db, ProcessId(1, "far-away", 1.0))
    begin(db, claim, ProcessId(1, "far-away", 1.0))
    with db.transaction() as connection:  # so that a worker takes it once it is lost
        connection.execute(update(Run).where(Run.id == run_id).values(sweep_id=None))
    return run_id, claim


def is_free(db: Database, run_id: str) -> bool:
    with db.read() as connection:
        row = connection.execute(select(*claims._COLUMNS).where(Run.id == run_id)).one()
    return claims._is_free(row, lambda run_id: False)


def test_a_living_run_is_not_taken_by_a_worker_whose_clock_is_ahead(db: Database, elsewhere, monkeypatch) -> None:
    monkeypatch.setattr(claims, "LOST_AFTER_S", lifecycle.LOST_AFTER_S)
    monkeypatch.setattr(clock, "datetime", Ahead)
    run_id, _ = elsewhere
    if db.dialect == "postgresql":
        assert find_run(db, run_id).live_status == "running", "the server's clock says when it beat"
    for _ in range(3):
        assert not is_free(db, run_id)
        assert claims.has_pending_lost_run() == (db.dialect == "sqlite"), "a file has no clock: it is watched"
        with db.transaction() as connection:
            beat = clock.now() if db.dialect == "postgresql" else datetime.now(UTC)
            connection.execute(update(Run).where(Run.id == run_id).values(heartbeat_at=beat))


def test_a_dead_run_whose_clock_was_ahead_is_taken_in_the_end(db: Database, elsewhere, monkeypatch) -> None:
    run_id, _ = elsewhere
    with db.transaction() as connection:
        connection.execute(update(Run).where(Run.id == run_id).values(heartbeat_at=Ahead.now(UTC)))
    assert not is_free(db, run_id)
    monkeypatch.setattr(claims, "_REMOTE_SILENCE_S", 0.0)
    assert is_free(db, run_id)


def test_what_seems_lost_is_free_once_it_did_not_stir_for_a_moment(db: Database, elsewhere, monkeypatch) -> None:
    run_id, _ = elsewhere
    monkeypatch.setattr(claims, "LOST_AFTER_S", 0.2)
    silence(db, run_id)
    assert not is_free(db, run_id)
    assert claims.has_pending_lost_run()
    time.sleep(0.3)
    assert is_free(db, run_id)


def test_a_starting_run_is_left_to_a_machine_whose_clock_is_behind(db: Database, monkeypatch) -> None:
    monkeypatch.setattr(claims, "LOST_AFTER_S", lifecycle.LOST_AFTER_S)
    run_id = create_run(db, CONFIG, target_steps=100, versions={})
    claim_one(db, ProcessId(1, "far-away", 1.0))
    monkeypatch.setattr(clock, "datetime", Ahead)  # by which the claim is ten minutes old
    assert not is_free(db, run_id)
    assert claims.has_pending_lost_run() == (db.dialect == "sqlite")
    monkeypatch.setattr(claims, "START_LIMIT_S", 0.2)
    time.sleep(0.3)
    assert is_free(db, run_id), "it has not begun while it was watched"
