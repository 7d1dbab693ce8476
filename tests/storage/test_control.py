"""Commands reach the trainer and are acknowledged; heartbeats are written."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from emtc_core.errors import RunStateError
from storage.control import DatabaseControl, Heartbeat, command_log, send_command
from storage.engine import Database
from storage.lifecycle import State
from storage.ownership import this_process
from storage.runs import claim_start, find_run, finish_run, start_run
from tests.storage.records import ME


def wait_for(ready: Callable[[], Any], timeout_s: float = 10.0) -> Any:
    ends = time.monotonic() + timeout_s
    while not (found := ready()):
        assert time.monotonic() < ends, "it did not happen in time"
        time.sleep(0.01)
    return found


def test_commands_arrive_in_order_and_are_acknowledged_when_taken(db: Database, run_id: str) -> None:
    start_run(db, run_id, **ME)
    control = DatabaseControl(db, run_id)
    send_command(db, run_id, "pause")
    send_command(db, run_id[:4], "resume")
    assert wait_for(control.poll) == "pause"
    wait_for(lambda: command_log(db, run_id)["acknowledged_at"].notna().tolist() == [True, False])
    assert wait_for(control.poll) == "resume"
    control.close()
    log = command_log(db, run_id)
    assert log["command"].tolist() == ["pause", "resume"]
    assert (log["acknowledged_at"] >= log["requested_at"]).all()
    assert control.poll() is None


def test_an_idle_poll_costs_microseconds(db: Database, run_id: str) -> None:
    control = DatabaseControl(db, run_id)
    started = time.perf_counter()
    for _ in range(1000):
        control.poll()
    control.close()
    assert (time.perf_counter() - started) / 1000 < 1e-3


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


def test_a_stop_asked_of_a_starting_run_waits_for_its_trainer(db: Database, run_id: str) -> None:
    me = this_process()
    claim_start(db, run_id, me)
    send_command(db, run_id, "stop")
    assert find_run(db, run_id).state == State.STOPPING
    start_run(db, run_id, **ME, token=me.token)
    control = DatabaseControl(db, run_id)
    assert wait_for(control.poll) == "stop"
    control.close()


def test_a_resumed_trainer_ignores_what_was_asked_before(db: Database, run_id: str) -> None:
    start_run(db, run_id, **ME)
    send_command(db, run_id, "stop")
    finish_run(db, run_id, "stopped")
    start_run(db, run_id, **ME)
    control = DatabaseControl(db, run_id, poll_s=0.01)
    time.sleep(0.1)
    assert control.poll() is None
    control.close()


def test_nobody_obeys_for_an_ended_run(db: Database, run_id: str) -> None:
    start_run(db, run_id, **ME)
    finish_run(db, run_id, "finished")
    with pytest.raises(RunStateError, match="no trainer is there to stop"):
        send_command(db, run_id, "stop")


def test_an_unknown_command_is_refused(db: Database, run_id: str) -> None:
    with pytest.raises(RunStateError, match="explode"):
        send_command(db, run_id, "explode")  # type: ignore[arg-type]


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
