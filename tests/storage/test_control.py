"""Commands reach the trainer and are acknowledged; heartbeats are written."""

import logging
import sqlite3
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import event, update

from emtc_core.errors import CommandTimeoutError, RunStateError
from storage.engine import Database, open_database
from storage.models import Run
from storage.retry import Outage
from storage.runs.changes import create_run, finish_run, start_run
from storage.runs.claims import claim_to_train, make_token
from storage.runs.control import (
    DatabaseControl,
    Heartbeat,
    command_log,
    request_stop,
    send_command,
    wait_for_acknowledgement,
)
from storage.runs.rows import find_run
from tests.storage.records import CONFIG, ME


@pytest.fixture
def db(sqlite_db: Database) -> Database:
    """SQLite alone: the statements are simple, and `tests/process` stops and pauses runs on a server."""
    return sqlite_db


def wait_for(ready: Callable[[], Any], timeout_s: float = 120.0) -> Any:
    ends = time.monotonic() + timeout_s
    while not (found := ready()):
        assert time.monotonic() < ends, "it did not happen in time"
        time.sleep(0.01)
    return found


def test_commands_arrive_in_order_and_are_acknowledged_when_taken(db: Database, run_id: str) -> None:
    start_run(db, run_id, **ME)
    control = DatabaseControl(db, run_id)
    send_command(db, run_id, "pause")
    send_command(db, run_id[:4], "stop")
    assert wait_for(control.poll) == "pause"
    wait_for(lambda: command_log(db, run_id)["acknowledged_at"].notna().tolist() == [True, False])
    assert wait_for(control.poll) == "stop"
    control.close()
    log = command_log(db, run_id)
    assert log["command"].tolist() == ["pause", "stop"]
    assert (log["acknowledged_at"] >= log["requested_at"]).all()
    assert control.poll() is None


def test_a_poll_asks_the_database_nothing(db: Database, run_id: str) -> None:
    askers = set()
    for engine in (db.reader, db.writer):
        event.listen(engine, "before_cursor_execute", lambda *_: askers.add(threading.current_thread().name))
    control = DatabaseControl(db, run_id)
    for _ in range(1000):
        control.poll()
    control.close()
    assert askers == {f"control-{run_id}"}


def test_the_published_status_is_stored_until_the_run_has_ended(db: Database, run_id: str) -> None:
    start_run(db, run_id, **ME)
    control = DatabaseControl(db, run_id)
    control.set_status("paused")
    wait_for(lambda: find_run(db, run_id).live_status == "paused")
    control.set_status("running")
    wait_for(lambda: find_run(db, run_id).live_status == "running")
    finish_run(db, run_id, "stopped")
    control.set_status("paused")
    control.close()
    assert find_run(db, run_id).status == "stopped"


def test_an_outage_is_told_once_and_its_end_too(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("storage.engine.BUSY_TIMEOUT_S", 0.01)
    db = open_database(sqlite_url)
    run_id = create_run(db, CONFIG, target_steps=1, versions={})
    start_run(db, run_id, **ME)
    assert db.path is not None
    lock = sqlite3.connect(db.path, isolation_level=None)
    lock.execute("BEGIN IMMEDIATE")
    heart, control = Heartbeat(db, run_id, every_s=0.01), DatabaseControl(db, run_id, poll_s=0.01)
    control.set_status("paused")
    wait_for(lambda: heart._outage._tries > 10 and control._outage._tries > 10)
    assert sorted(record.getMessage().partition(": The database")[0] for record in caplog.records) == [
        f"run {run_id}: cannot read commands",
        f"run {run_id}: cannot write heartbeats",
    ]
    lock.execute("ROLLBACK")
    lock.close()
    for what in ("cannot write heartbeats", "cannot read commands"):
        over = f"run {run_id}: {what}: recovered"
        wait_for(lambda over=over: any(over in record.getMessage() for record in caplog.records))
    heart.close()
    control.close()
    db.dispose()


def test_a_long_outage_is_told_again_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    outage = Outage(logging.getLogger("a trainer"), "run x: cannot write heartbeats", remind_s=0.0)
    for _ in range(3):
        outage.failed("the server is gone")
    assert len(caplog.records) == 3
    assert "3 tries" in caplog.records[-1].getMessage()


def test_a_resumed_trainer_does_not_read_commands_of_the_earlier_one(db: Database, run_id: str) -> None:
    start_run(db, run_id, **ME)
    send_command(db, run_id, "stop")
    finish_run(db, run_id, "stopped")
    claim_to_train(db, run_id, "owner")
    start_run(db, run_id, **ME, token="owner")
    assert find_run(db, run_id).live_status == "running"
    send_command(db, run_id, "pause")
    control = DatabaseControl(db, run_id, token="owner")
    assert wait_for(control.poll) == "pause"
    control.close()


@pytest.mark.parametrize("status", ["queued", "finished", "lost"])
def test_a_command_for_a_run_without_a_trainer_is_refused(db: Database, run_id: str, status: str) -> None:
    if status != "queued":
        start_run(db, run_id, **ME)
    if status == "finished":
        finish_run(db, run_id, "finished")
    elif status == "lost":
        with db.transaction() as connection:
            connection.execute(update(Run).values(heartbeat_at=datetime.now(UTC) - timedelta(hours=1)))
    assert find_run(db, run_id).live_status == status
    with pytest.raises(RunStateError, match=run_id):
        send_command(db, run_id, "stop")
    assert command_log(db, run_id).empty


def test_a_stop_returns_when_the_trainer_has_acknowledged_it(db: Database, run_id: str) -> None:
    start_run(db, run_id, **ME)
    control = DatabaseControl(db, run_id)
    trainer = threading.Thread(target=wait_for, args=(control.poll,))
    trainer.start()
    assert "acknowledged stop" in request_stop(db, run_id, patience_s=30)
    trainer.join()
    control.close()


def test_a_stop_that_no_trainer_reads_in_time_is_reported_and_waits_for_the_trainer(db: Database, run_id: str) -> None:
    claim_to_train(db, run_id, token := make_token())
    with pytest.raises(CommandTimeoutError, match=run_id):
        request_stop(db, run_id, patience_s=0.1)
    assert find_run(db, run_id).live_status == "stopping"
    with pytest.raises(RunStateError, match=run_id):
        request_stop(db, run_id, patience_s=0.1)
    start_run(db, run_id, **ME, token=token)
    control = DatabaseControl(db, run_id, token=token)
    assert wait_for(control.poll) == "stop"
    control.close()


def test_a_run_that_ends_first_has_not_acknowledged_the_command(db: Database, run_id: str) -> None:
    start_run(db, run_id, **ME)
    command_id = send_command(db, run_id, "pause")
    finish_run(db, run_id, "finished")
    message = wait_for_acknowledgement(db, run_id, command_id, "pause", patience_s=30)
    assert "acknowledged pause after" not in message
    assert "finished" in message


def test_the_heart_beats_while_the_trainer_lives(db: Database, run_id: str) -> None:
    start_run(db, run_id, **ME)
    first = find_run(db, run_id).heartbeat_at
    heart = Heartbeat(db, run_id, every_s=0.02)
    wait_for(lambda: find_run(db, run_id).heartbeat_at != first)
    heart.close()
    heart.close()
    last = find_run(db, run_id).heartbeat_at
    time.sleep(0.1)
    assert find_run(db, run_id).heartbeat_at == last
