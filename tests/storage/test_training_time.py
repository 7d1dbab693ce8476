"""How long a run has trained: without the pauses that its commands and resumes record."""

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import insert, update

from storage.engine import Database
from storage.models import CommandRow, Resume, Run
from storage.runs.changes import create_run
from storage.runs.rows import find_run
from storage.runs.training_time import measure_training_s
from tests.storage.records import CONFIG

START = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("events", "heartbeat", "end", "expected"),
    [
        ([], 100, None, 100),
        ([("pause", 10), ("resume", 70)], 100, None, 40),
        ([("pause", 10)], 100, None, 10),  # it is paused
        ([("pause", 10), ("pause", 20), ("resume", 30), ("resume", 40), ("pause", 90)], 100, None, 70),
        ([("stop", 50), ("checkpoint", 4000)], 4100, 4100, 150),
        ([("stop", 99)], 100, 100, 99),
    ],
)
def test_pauses_are_left_out(
    db: Database, events: list[tuple[str, float]], heartbeat: float, end: float | None, expected: float
) -> None:
    run_id, other = (create_run(db, CONFIG, target_steps=10, versions={}) for _ in range(2))
    values = {"started_at": START, "heartbeat_at": at(heartbeat), "ended_at": end and at(end), "status": "paused"}
    with db.transaction() as connection:
        connection.execute(update(Run).where(Run.id == run_id).values(**values))
        for name, time in events:
            if name == "checkpoint":
                resume = {"run_id": run_id, "env_step": 1, "reached_env_step": 1, "resumed_at": at(time)}
                connection.execute(insert(Resume), resume)
            else:
                times = {"requested_at": at(time), "acknowledged_at": at(time)}
                connection.execute(insert(CommandRow), {"run_id": run_id, "command": name, **times})
        waiting = {"run_id": run_id, "command": "pause", "requested_at": at(1)}
        connection.execute(insert(CommandRow), waiting)  # it was not acknowledged
    with db.read() as connection:
        measured = measure_training_s(connection, [find_run(db, run_id), find_run(db, other)])
    assert measured == {run_id: expected}
