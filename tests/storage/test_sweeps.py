"""Sweeps in the database: saved once, claimed once, freed by a death, stopped and continued."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from sqlalchemy import select, update

from storage.engine import Database
from storage.models import Run, SweepRow
from storage.runs.changes import finish_run, start_run
from storage.runs.claims import ClaimedRun, RunClaimer
from storage.runs.sweeps import (
    PlannedRun,
    Progress,
    Sweep,
    claim_search,
    clear_worker_heartbeat,
    get_sweep,
    list_sweeps,
    match_imported,
    release_search,
    requeue,
    save_sweep,
    stop_sweep,
    write_search_heartbeat,
    write_worker_heartbeat,
)
from tests.storage.records import CONFIG

SWEEP = "ab12cd34"


@pytest.fixture
def db(sqlite_db: Database) -> Database:
    """SQLite alone: the locks of claims are tested on both databases in `test_claims`."""
    return sqlite_db


def planned(n: int) -> list[PlannedRun]:
    return [PlannedRun(f"{SWEEP}-{i}", f"run {i}", {**CONFIG, "seed": i}, 1000) for i in range(n)]


def save(db: Database, n: int = 3) -> int:
    return save_sweep(db, SWEEP, name="A sweep", plan={"runs": []}, runs=planned(n), versions={}, jobs=2)


@pytest.fixture
def claimer(db: Database) -> RunClaimer:
    return RunClaimer(db)


def claim_one(claimer: RunClaimer) -> ClaimedRun:
    claim = claimer.claim_in_sweep(SWEEP, jobs=1)
    assert claim is not None
    return claim


def train(db: Database, claim: ClaimedRun) -> None:
    start_run(db, claim.run_id, device="cpu", token=claim.token)


def test_a_finished_run_out_of_a_bundle_is_not_trained_again(db: Database) -> None:
    assert save(db, 2) == 2
    with db.transaction() as connection:
        first = connection.execute(select(Run.id).order_by(Run.created_at)).first()
        assert first is not None
        connection.execute(update(Run).where(Run.id == first.id).values(launch_token=None, status="finished"))
    assert save(db, 3) == 1
    with db.transaction() as connection:
        connection.execute(update(Run).where(Run.id == first.id).values(status="stopped"))
    assert save(db, 3) == 1, "one that was cut off is no result"


def test_an_imported_run_takes_the_place_of_one_planned_run_by_the_settings_in_which_runs_differ() -> None:
    def plan(key: str, tau_end: float, seed: int) -> PlannedRun:
        settings = frozenset({"gate.tau_end", "seed"})
        return PlannedRun(key, key, {"gate": {"tau_end": tau_end, "on_miss": "block"}, "seed": seed}, 1000, settings)

    def run(tau_end: float, *, status: str = "finished", token: str | None = None) -> SimpleNamespace:
        config = {"gate": {"tau_end": tau_end, "on_miss": "pass"}, "seed": 1}
        return SimpleNamespace(launch_token=token, status=status, config=config)

    planned = [plan("a", 0.6, 1), plan("b", 0.3, 1), plan("c", 0.6, 2)]
    assert match_imported(planned, [run(0.6), run(0.6)]) == {"a"}
    assert match_imported(planned, [run(0.3), run(0.6)]) == {"a", "b"}
    assert match_imported(planned, [run(0.6, status="stopped"), run(0.3, token="b"), run(0.9)]) == set()


def test_a_worker_is_known_by_its_heartbeat(db: Database) -> None:
    save(db, 1)
    assert not get_sweep(db, SWEEP).has_worker
    write_worker_heartbeat(db)
    assert get_sweep(db, SWEEP).has_worker, "a worker of all sweeps is one of each sweep with open runs"
    with db.transaction() as connection:
        connection.execute(update(SweepRow).values(heartbeat_at=datetime.now(UTC) - timedelta(minutes=1)))
    assert not get_sweep(db, SWEEP).has_worker
    write_worker_heartbeat(db, SWEEP)
    assert get_sweep(db, SWEEP).has_worker
    clear_worker_heartbeat(db, SWEEP)
    assert not get_sweep(db, SWEEP).has_worker


def test_one_process_at_a_time_owns_a_search(db: Database) -> None:
    save_sweep(db, SWEEP, name="s", plan={"file": {"optuna": {"trials": 9}}}, runs=[], versions={}, jobs=1)
    write_worker_heartbeat(db, SWEEP)
    assert not get_sweep(db, SWEEP).has_worker, "a worker queues no trials"
    assert claim_search(db, SWEEP, "first")
    assert get_sweep(db, SWEEP).has_worker
    assert not claim_search(db, SWEEP, "second")
    with db.transaction() as connection:
        connection.execute(update(SweepRow).values(heartbeat_at=datetime.now(UTC) - timedelta(minutes=1)))
    write_worker_heartbeat(db, SWEEP)
    assert claim_search(db, SWEEP, "second"), "a worker's heartbeat is not that of the owner"
    assert not write_search_heartbeat(db, SWEEP, "first")
    release_search(db, SWEEP, "first")
    assert write_search_heartbeat(db, SWEEP, "second")
    release_search(db, SWEEP, "second")
    assert not get_sweep(db, SWEEP).has_worker


def test_stopping_empties_the_queue_and_what_did_not_finish_can_be_queued_again(
    db: Database, claimer: RunClaimer
) -> None:
    save(db, 3)
    claim = claim_one(claimer)
    train(db, claim)
    assert stop_sweep(db, SWEEP) == (2, [claim.run_id])
    assert claimer.claim_in_sweep(SWEEP, jobs=5) is None
    finish_run(db, claim.run_id, "failed", error="no", token=claim.token)
    assert get_sweep(db, SWEEP).counts == {"stopped": 2, "failed": 1}
    assert requeue(db, SWEEP, ("stopped", "failed")) == 3
    assert get_sweep(db, SWEEP).counts == {"queued": 3}
    claims = [claimer.claim_in_sweep(SWEEP, jobs=3) for _ in range(3)]
    assert {claim.run_id: claim.resume for claim in claims if claim}[claim.run_id]
    assert [claim.resume for claim in claims if claim].count(True) == 1


def test_progress_names_the_state_and_what_is_left(db: Database, claimer: RunClaimer) -> None:
    save(db, 2)
    assert get_sweep(db, SWEEP[:4]).state == "waiting"
    write_worker_heartbeat(db, SWEEP)
    sweep = list_sweeps(db)[0]
    assert (sweep.state, sweep.progress, sweep.seconds_left(), sweep.has_worker) == ("running", 0.0, None, True)
    for _ in range(2):
        claim = claimer.claim_in_sweep(SWEEP, jobs=2)
        assert claim is not None
        train(db, claim)
        finish_run(db, claim.run_id, "finished", token=claim.token)
    clear_worker_heartbeat(db, SWEEP)
    sweep = get_sweep(db, SWEEP)
    assert (sweep.state, sweep.progress, sweep.seconds_left(), sweep.has_worker) == ("finished", 1.0, 0.0, False)


def test_the_time_left_is_shared_among_the_runs_that_can_still_go_on() -> None:
    """Two of five runs took 100 s for 1000 steps each; the third is at 500 after 50 s; four trainers at once."""
    began = datetime(2026, 1, 1, tzinfo=UTC)

    def progress(status: str, steps: int, seconds: float = 0.0) -> Progress:
        return Progress(f"{status}-{steps}", status, steps, 1000, seconds)  # type: ignore[arg-type]

    done = [progress("finished", 1000, 100), progress("finished", 1000, 100)]
    running = [progress("running", 500, 50)]
    queued = [progress("queued", 0), progress("queued", 0)]

    def left(*runs: Progress, jobs: int = 4) -> float | None:
        return Sweep("s", "s", "running", began, jobs, True, {}, runs).seconds_left()

    # 0.1 s a step; 2500 steps are left, shared by three runs though four could train at once
    assert left(*done, *running, *queued) == pytest.approx(2500 * 0.1 / 3)
    assert left(*done, *running, *queued, jobs=2) == pytest.approx(2500 * 0.1 / 2)
    assert left(*done, *running) == pytest.approx(500 * 0.1)
    assert left(*done) == 0.0
    assert left(*queued) is None
    assert Sweep("s", "s", "active", began, 4, False, {}, (progress("paused", 500, 50),)).seconds_left() is None
