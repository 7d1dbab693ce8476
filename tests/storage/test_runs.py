"""Runs: ids, states, launch tokens, liveness, rewind and delete."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

import pytest
from sqlalchemy import Connection, func, select, update

from emtc_core.errors import RunNotFoundError, RunStateError
from storage.engine import Database
from storage.files import run_folder
from storage.maintenance.check import check_run
from storage.models import Base, Run
from storage.queries.memory import list_snapshots
from storage.queries.runs import list_resumes, list_runs
from storage.recording.writer import DatabaseRecorder
from storage.runs.changes import create_run, find_launch, finish_run, start_run
from storage.runs.claims import claim_to_train
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


def record_all(db: Database, run_id: str, last_step: int = 60, *, after: int = 0) -> None:
    """Record episodes of 10 steps, and rows of each other table at steps 30 and 60."""
    recorder = DatabaseRecorder(db, run_id)
    record_episodes(recorder, (last_step - after) // 10, start=after // 10 + 1)
    for step in (30, 60):
        if after < step <= last_step:
            recorder.record_evaluation(make_evaluation(step, wins=step // 20))
            recorder.record_gate_stats(make_gate_stats(step))
            recorder.record_metrics(step, {"gate/beta_new": 0.5, "gate/incentive_removed": step / 100})
            recorder.record_snapshot(make_snapshot(step, step // 10))
    recorder.close()


def test_a_new_run_is_queued_and_the_list_and_the_run_describe_it_alike(db: Database) -> None:
    create_run(db, CONFIG, target_steps=1, versions={})
    run_id = create_run(db, CONFIG, target_steps=50, versions={"torch": "2"}, name="newest", sweep_id="s1")
    row, (_, listed) = find_run(db, run_id), next(list_runs(db, limit=1).iterrows())
    expected = {
        "name": "newest", "env": "skirmish", "map": "3m", "algo": "emtc-qplex", "seed": 7, "target_steps": 50,
        "env_steps": 0, "sweep_id": "s1", "tags": [], "status": "queued",
    }  # fmt: skip
    assert {name: getattr(row, name) for name in expected} == expected
    assert {name: listed[name] for name in expected} == expected
    assert (row.live_status, row.config, row.versions) == ("queued", CONFIG, {"torch": "2"})
    assert row.created_at.tzinfo is not None
    assert listed["created_at"] == row.created_at


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


def test_of_many_presses_at_once_one_makes_a_run_and_the_others_name_it(db: Database) -> None:
    def press(_: int) -> str:
        try:
            return create_run(db, CONFIG, target_steps=1, versions={}, launch_token="click")
        except RunStateError as error:
            return str(error)

    with ThreadPoolExecutor(4) as presses:
        answers = list(presses.map(press, range(4)))
    assert find_launch(db, "other") is None
    run_id = find_launch(db, "click")
    assert answers.count(run_id) == 1
    assert all(run_id in answer for answer in answers)
    assert list_runs(db)["id"].tolist() == [run_id]


@pytest.mark.parametrize("status", ["finished", "stopped", "failed"])
def test_a_run_starts_once_and_ends_once(db: Database, run_id: str, status: str) -> None:
    start_run(db, run_id, **ME)
    with pytest.raises(RunStateError, match=run_id):
        start_run(db, run_id, **ME)
    finish_run(db, run_id, status, error="why" if status == "failed" else None)
    row = find_run(db, run_id)
    assert (row.status, row.live_status, row.error) == (status, status, "why" if status == "failed" else None)
    assert row.ended_at is not None
    with pytest.raises(RunStateError, match=run_id):
        finish_run(db, run_id, "finished")


def test_a_run_that_sends_heartbeats_is_neither_deleted_nor_taken_over(db: Database, run_id: str) -> None:
    record_all(db, run_id)
    start_run(db, run_id, **ME)
    (run_folder(db, run_id) / "log.txt").write_text("log")
    with pytest.raises(RunStateError, match=run_id):
        remove_run(db, run_id)
    with pytest.raises(RunStateError, match=run_id):
        claim_to_train(db, run_id, "owner")
    assert find_run(db, run_id).env_steps == 60
    assert (run_folder(db, run_id) / "log.txt").exists()


def rounded(value: Any) -> Any:
    """Sums of the same numbers in another order differ in the last digits."""
    return round(value, 9) if isinstance(value, float) else value


def read_all(db: Database, run_id: str) -> dict[str, Any]:
    """The rows of a run in each table, without ids and times, and what its own row says of them."""
    left_out = {"run_id", "id", "created_at"}
    found: dict[str, Any] = {}
    with db.read() as connection:
        for table in Base.metadata.sorted_tables:
            if "run_id" in table.c and table.name not in ("resumes", "entries"):
                columns = [column for column in table.c if column.name not in left_out]
                rows = connection.execute(select(*columns).where(table.c.run_id == run_id).order_by(*columns[:3]))
                found[table.name] = [[*map(rounded, row)] for row in rows]
    row = find_run(db, run_id)
    summary = (row.env_steps, row.win_rate, row.return_mean, row.mu_w, row.gate_removed)
    return found | {"run": [*map(rounded, summary)]}


@pytest.mark.parametrize("env_step", [0, 30, 60])
def test_a_rewound_run_equals_one_that_recorded_no_further(db: Database, env_step: int) -> None:
    rewound, other, expected = (create_run(db, CONFIG, target_steps=60, versions={}) for _ in range(3))
    for run_id, last_step in ((rewound, 60), (other, 60), (expected, env_step)):
        record_all(db, run_id, last_step)
    whole = read_all(db, other)
    rewind_run(db, rewound, env_step)
    assert read_all(db, rewound) == read_all(db, expected)
    assert read_all(db, other) == whole
    (resume,) = list_resumes(db, rewound).to_dict("records")
    assert (resume["env_step"], resume["reached_env_step"]) == (env_step, 60)
    record_all(db, rewound, 60, after=env_step)
    assert read_all(db, rewound) == whole
    assert check_run(db, rewound) == []


@pytest.mark.parametrize("env_step", [61, 35, -1])
def test_a_run_cannot_go_forward_or_into_an_episode(db: Database, run_id: str, env_step: int) -> None:
    record_all(db, run_id)
    with pytest.raises(RunStateError, match=run_id):
        rewind_run(db, run_id, env_step)
    assert find_run(db, run_id).env_steps == 60


def test_a_deletion_removes_all_rows_of_one_run_in_bounded_transactions(
    db: Database, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage.runs.removal._DELETE_STEPS", 25)
    other = create_run(db, CONFIG, target_steps=60, versions={})
    for each in (run_id, other):
        record_all(db, each)
        (run_folder(db, each) / "log.txt").write_text("log")
    kept, left, begin = read_all(db, other), list[int](), Database.transaction

    def watched(self: Database) -> AbstractContextManager[Connection]:
        left.append(len(read_all(self, run_id)["transitions"]))
        return begin(self)

    monkeypatch.setattr(Database, "transaction", watched)
    remove_run(db, run_id)
    assert left == [60, 30]
    with db.read() as connection:
        for table in Base.metadata.sorted_tables:
            if "run_id" in table.c:
                rows = select(func.count()).where(table.c.run_id == run_id)
                assert connection.execute(rows).scalar_one() == 0, table.name
    assert not run_folder(db, run_id).exists()
    assert read_all(db, other) == kept
    assert run_folder(db, other).exists()
    with pytest.raises(RunNotFoundError):
        remove_run(db, run_id)


def test_the_id_of_a_deleted_snapshot_never_comes_back(db: Database) -> None:
    seen = []
    for _ in range(2):
        run_id = create_run(db, CONFIG, target_steps=1, versions={})
        record_all(db, run_id)
        seen += list_snapshots(db, run_id)["id"].tolist()
        remove_run(db, run_id)
    assert len(set(seen)) == 4
