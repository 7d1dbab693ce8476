"""Runs: ids, states, launch tokens, liveness, rewind and delete."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import func, select, update

from emtc_core.errors import RunNotFoundError, RunStateError
from storage.engine import Database
from storage.maintenance.check import check_run
from storage.models import Base, Run
from storage.queries.memory import list_snapshots
from storage.queries.runs import list_resumes, list_runs
from storage.recording.writer import DatabaseRecorder
from storage.runs.changes import create_run, find_launch, finish_run, start_run
from storage.runs.claims import claim_to_train
from storage.runs.labels import edit_run
from storage.runs.removal import remove_run, rewind_run
from storage.runs.rows import find_run
from tests.storage.records import (
    CONFIG,
    ME,
    make_evaluation,
    make_gate_stats,
    make_snapshot,
    record_episodes,
)


def set_run(db: Database, run_id: str, **values: object) -> None:
    with db.transaction() as connection:
        connection.execute(update(Run).where(Run.id == run_id).values(**values))


def record_all(db: Database, run_id: str, episodes: int = 6) -> None:
    recorder = DatabaseRecorder(db, run_id)
    record_episodes(recorder, episodes)
    for step in (30, 60):
        recorder.record_evaluation(make_evaluation(step, wins=step // 20))
        recorder.record_gate_stats(make_gate_stats(step))
        recorder.record_metrics(step, {"train/loss": 1.0})
    recorder.record_snapshot(make_snapshot(30, 3))
    recorder.record_snapshot(make_snapshot(60, 6))
    recorder.close()


def test_a_new_run_is_queued_and_described_by_its_configuration(db: Database, run_id: str) -> None:
    row = find_run(db, run_id)
    assert (row.env, row.map, row.algo, row.seed) == ("skirmish", "3m", "emtc-qplex", 7)
    assert (row.status, row.live_status, row.env_steps, row.config) == ("queued", "queued", 0, CONFIG)
    assert len(run_id) <= 12
    assert row.created_at.tzinfo is not None


def test_an_unambiguous_prefix_finds_the_run(db: Database) -> None:
    ids = [create_run(db, CONFIG, target_steps=1, versions={}) for _ in range(3)]
    set_run(db, ids[0], id="abcd2345")
    set_run(db, ids[1], id="abce2345")
    set_run(db, ids[2], id="ab")
    assert find_run(db, "abcd").id == "abcd2345"
    assert find_run(db, "AB").id == "ab"
    with pytest.raises(RunNotFoundError, match="abc"):
        find_run(db, "abc")
    for nothing in ("zz", "", "%", "_"):
        with pytest.raises(RunNotFoundError):
            find_run(db, nothing)


def test_a_launch_token_makes_one_run(db: Database) -> None:
    first = create_run(db, CONFIG, target_steps=1, versions={}, launch_token="click")
    with pytest.raises(RunStateError, match=first):
        create_run(db, CONFIG, target_steps=1, versions={}, launch_token="click")
    assert find_launch(db, "click") == first
    assert find_launch(db, "other") is None
    assert len(list_runs(db)) == 1


def test_of_many_presses_at_once_one_makes_a_run(db: Database) -> None:
    def press(_: int) -> str:
        try:
            return create_run(db, CONFIG, target_steps=1, versions={}, launch_token="click")
        except RunStateError:
            return "refused"

    with ThreadPoolExecutor(4) as presses:
        answers = list(presses.map(press, range(4)))
    assert answers.count("refused") == 3
    assert len(list_runs(db)) == 1


def test_two_processes_cannot_work_on_one_run(db: Database, run_id: str) -> None:
    start_run(db, run_id, **ME)
    with pytest.raises(RunStateError, match=run_id):
        start_run(db, run_id, **ME)


def test_a_run_without_a_heartbeat_is_lost_and_may_be_taken_over(db: Database, run_id: str) -> None:
    start_run(db, run_id, **ME)
    set_run(db, run_id, heartbeat_at=datetime.now(UTC) - timedelta(minutes=5))
    assert find_run(db, run_id).live_status == "lost"
    assert list_runs(db)["status"].tolist() == ["lost"]
    claim_to_train(db, run_id, "owner")
    start_run(db, run_id, **ME, token="owner")
    assert find_run(db, run_id).live_status == "running"


def test_a_run_that_sends_heartbeats_is_neither_deleted_nor_taken_over(db: Database, run_id: str) -> None:
    start_run(db, run_id, **ME)
    set_run(db, run_id, pid=2**22 + 1, host="elsewhere")
    with pytest.raises(RunStateError, match=run_id):
        remove_run(db, run_id)
    with pytest.raises(RunStateError, match=run_id):
        claim_to_train(db, run_id, "owner")


@pytest.mark.parametrize("status", ["finished", "stopped", "failed"])
def test_an_ended_run_stays_ended_whatever_its_process_does(db: Database, run_id: str, status: str) -> None:
    start_run(db, run_id, **ME)
    finish_run(db, run_id, status, error="why" if status == "failed" else None)
    row = find_run(db, run_id)
    assert (row.status, row.live_status) == (status, status)
    assert row.ended_at is not None
    with pytest.raises(RunStateError, match=run_id):
        finish_run(db, run_id, "finished")


def test_people_may_rename_and_note(db: Database, run_id: str) -> None:
    edit_run(db, run_id, name="mine")
    edit_run(db, run_id, notes="looked at it")
    row = find_run(db, run_id)
    assert (row.name, row.notes) == ("mine", "looked at it")


def test_the_newest_run_stands_first(db: Database) -> None:
    assert list_runs(db).empty
    ids = [create_run(db, CONFIG, target_steps=1, versions={}) for _ in range(3)]
    assert list_runs(db)["id"].tolist() == ids[::-1]
    assert list_runs(db, limit=2)["id"].tolist() == ids[:0:-1]


def test_a_rewind_removes_everything_later_and_nothing_else(db: Database, run_id: str) -> None:
    record_all(db, run_id)
    assert find_run(db, run_id).win_rate == 0.75
    rewind_run(db, run_id, 30)
    assert check_run(db, run_id) == []
    row = find_run(db, run_id)
    assert (row.env_steps, row.win_rate) == (30, 0.25)
    with db.read() as connection:
        for table in ("evaluations", "gate_stats", "metrics", "snapshots", "eval_episodes"):
            columns = Base.metadata.tables[table].c
            assert connection.execute(select(columns.env_step)).scalars().all() == [30], table
    assert list_resumes(db, run_id)["reached_env_step"].tolist() == [60]


def test_a_resumed_recording_equals_an_unbroken_one(db: Database) -> None:
    broken, whole = (create_run(db, CONFIG, target_steps=60, versions={}) for _ in range(2))
    record_all(db, whole)
    record_all(db, broken)
    rewind_run(db, broken, 20)
    recorder = DatabaseRecorder(db, broken)
    record_episodes(recorder, 4, start=3)
    recorder.close()
    assert check_run(db, broken) == []
    with db.read() as connection:
        for table in ("transitions", "episodes"):
            columns = [column for column in Base.metadata.tables[table].c if column.name != "run_id"]
            key = Base.metadata.tables[table].c.run_id
            rows = [connection.execute(select(*columns).where(key == each)).all() for each in (broken, whole)]
            assert rows[0] == rows[1]


def test_a_run_cannot_go_forward_or_into_an_episode(db: Database, run_id: str) -> None:
    record_all(db, run_id)
    for step in (61, 35, -1):
        with pytest.raises(RunStateError):
            rewind_run(db, run_id, step)
    assert find_run(db, run_id).env_steps == 60


def test_a_deleted_run_leaves_no_row(db: Database, run_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage.runs.removal._DELETE_STEPS", 25)
    record_all(db, run_id)
    remove_run(db, run_id)
    with db.read() as connection:
        for table in Base.metadata.sorted_tables:
            assert connection.execute(select(func.count()).select_from(table)).scalar_one() == 0, table.name
    with pytest.raises(RunNotFoundError):
        remove_run(db, run_id)


def test_a_running_run_is_not_deleted(db: Database, run_id: str) -> None:
    start_run(db, run_id, **ME)
    with pytest.raises(RunStateError, match=run_id):
        remove_run(db, run_id)


def test_the_id_of_a_deleted_snapshot_never_comes_back(db: Database) -> None:
    seen = []
    for _ in range(2):
        run_id = create_run(db, CONFIG, target_steps=1, versions={})
        record_all(db, run_id)
        seen += list_snapshots(db, run_id)["id"].tolist()
        remove_run(db, run_id)
    assert len(set(seen)) == 4
