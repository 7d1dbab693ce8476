"""Alerts follow from what the database says: each rule by hand, then the query, the marks, and the stop."""

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path

import pytest
from sqlalchemy import update

from app.cli.main import run
from app.jobs.alerts import (
    LOW_DISK_BYTES,
    STAGNATION_EVALUATIONS,
    STOPPABLE,
    Messenger,
    find_alerts,
    list_alerts,
    stop_alerted_runs,
)
from app.ui.widgets.bundle_banner import list_unread_warnings
from emtc_core.config.resolve import resolve
from emtc_core.errors import ConfigError, StorageError
from storage.alerts import READ_FILE_NAME, RunFacts, mark_read, read_keys
from storage.engine import Database, files_root, open_database
from storage.models import Evaluation, MetricRow, Run
from storage.runs.changes import create_run, finish_run, start_run
from storage.runs.control import command_log
from tests.errors import raises
from tests.require import require
from tests.storage.records import CONFIG, ME

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
EARLIER = NOW - timedelta(hours=1)


def facts(**changes) -> RunFacts:
    known = {
        "id": "abcd2345", "name": "a run", "status": "running", "env_steps": 50_000, "target_steps": 100_000,
        "ended_at": None, "heartbeat_at": NOW, "claimed_at": EARLIER, "win_rate": 0.5, "error": None,
    }  # fmt: skip
    return RunFacts(**(known | changes))


def kinds(*runs: RunFacts, disk_free: int | None = None) -> list[str]:
    return [alert.kind for alert in find_alerts(runs, disk_free=disk_free, now=NOW)]


def scores(*win_rates: float) -> tuple[tuple[int, float, float], ...]:
    return tuple((100 * place, win_rate, 1.0) for place, win_rate in enumerate(win_rates))


def test_a_run_that_trains_well_is_no_news():
    assert kinds(facts(scores=scores(*[0.1 * step for step in range(10)]))) == []


@pytest.mark.parametrize(
    ("changes", "kind", "fragment"),
    [
        (
            {"status": "finished", "ended_at": EARLIER},
            "finished",
            "after 50,000 steps with a last greedy win rate of 50 %",
        ),
        ({"status": "failed", "ended_at": EARLIER, "error": "No map."}, "failed", "No map."),
        ({"status": "lost"}, "lost", "ended without an error message"),
        (
            {"status": "failed", "ended_at": EARLIER, "error": "The training loss became nan at 3."},
            "nan",
            "loss became",
        ),
        ({"nan_metric": "train/loss", "nan_env_step": 42}, "nan", "train/loss was not a finite number at step 42"),
        ({"gate_idle": "Nothing merged."}, "gate-idle", "Nothing merged."),
        ({"no_success": "Nobody won."}, "no-success", "Nobody won."),
        ({"no_success": "Nobody won.", "gate_idle": "No incentive."}, "no-success", "Nobody won."),
        ({"scores": scores(0.5, *[0.4] * STAGNATION_EVALUATIONS)}, "stagnation", "since step 0 "),
    ],
)
def test_each_event_is_one_alert(changes, kind, fragment):
    (alert,) = find_alerts([facts(**changes)], disk_free=None, now=NOW)
    assert (alert.kind, alert.run_id, alert.run_name) == (kind, "abcd2345", "a run")
    assert fragment in alert.message


@pytest.mark.parametrize(
    "changes",
    [
        {"scores": scores(0.5, *[0.4] * (STAGNATION_EVALUATIONS - 1))},
        {"scores": scores(1.0, *[0.9] * STAGNATION_EVALUATIONS)},
        {"scores": scores(0.5, *[0.4] * STAGNATION_EVALUATIONS), "status": "paused"},
        {"gate_idle": "Nothing merged.", "env_steps": 10_000},
        {"gate_idle": "Nothing merged.", "env_steps": 3000, "target_steps": 3000},
        {"no_success": "Nobody won.", "env_steps": 30_000},
        {"no_success": "Nobody won.", "env_steps": 3000, "target_steps": 3000},
        {"status": "finished", "ended_at": NOW - timedelta(days=8)},
        {"status": "stopped", "ended_at": EARLIER},
    ],
)
def test_what_is_no_event_is_no_alert(changes):
    assert kinds(facts(**changes)) == []


def test_a_better_return_at_the_same_win_rate_is_progress():
    climbing = tuple((100 * step, 0.0, float(step)) for step in range(2 * STAGNATION_EVALUATIONS))
    assert kinds(facts(scores=climbing)) == []


def test_a_disk_that_is_nearly_full_is_told_once_a_day():
    assert kinds(disk_free=LOW_DISK_BYTES) == []
    (alert,) = find_alerts([], disk_free=LOW_DISK_BYTES - 1, now=NOW)
    (later,) = find_alerts([], disk_free=5, now=NOW + timedelta(hours=1))
    assert (alert.kind, alert.key) == ("disk-low", later.key)


def test_the_same_event_has_the_same_key_and_another_one_another():
    still = facts(scores=scores(0.5, *[0.4] * STAGNATION_EVALUATIONS))
    later = facts(scores=scores(0.5, *[0.4] * (STAGNATION_EVALUATIONS + 5)), heartbeat_at=NOW + timedelta(minutes=5))
    again = facts(scores=scores(0.5, 0.6, *[0.4] * STAGNATION_EVALUATIONS))
    keys = [find_alerts([run], disk_free=None, now=NOW)[0].key for run in (still, later, again)]
    assert keys[0] == keys[1] != keys[2]


def test_only_unread_warnings_wait_in_the_sidebar():
    done = facts(id="done", status="finished", ended_at=EARLIER)
    new = facts(id="new", status="failed", ended_at=NOW)
    alerts = find_alerts([done, new], disk_free=None, now=NOW)
    (waiting,) = list_unread_warnings(alerts, set())
    assert waiting.run_id == "new"
    assert list_unread_warnings(alerts, {waiting.key}) == []


@pytest.fixture
def db(tmp_path: Path, sqlite_template: Path):
    database = open_database(f"sqlite:///{shutil.copy(sqlite_template, tmp_path / 'x.db')}")
    yield database
    database.dispose()


def start(db: Database, name: str) -> str:
    run_id = create_run(db, CONFIG, target_steps=1000, versions={}, name=name)
    start_run(db, run_id, **ME)
    return run_id


def record_evaluations(db: Database, run_id: str, n: int) -> None:
    rows = [
        {"run_id": run_id, "env_step": step, "episodes": 4, "wins": 1, "win_rate": 0.25, "return_mean": 1.0,
         "return_std": 0.0, "length_mean": 10.0}
        for step in range(1, n + 1)
    ]  # fmt: skip
    with db.transaction() as connection:
        connection.execute(Evaluation.__table__.insert(), rows)


def test_no_win_rate_is_told_where_the_return_decides_what_a_success_is(db):
    ruled = CONFIG | {"memory": {"success": "return_threshold", "success_threshold": -18.0}}
    for name, config in (("ruled", ruled), ("flagged", CONFIG)):
        run_id = create_run(db, config, target_steps=1000, versions={}, name=name)
        start_run(db, run_id, **ME)
        with db.transaction() as connection:
            connection.execute(update(Run).where(Run.id == run_id).values(win_rate=0.0))
        finish_run(db, run_id, "finished")
    told = {alert.run_name: alert.message for alert in list_alerts(db)}
    flagged = "Finished after 0 steps with a last greedy win rate of 0 %."
    assert told == {"ruled": "Finished after 0 steps.", "flagged": flagged}


def test_the_database_tells_what_happened(db):
    finish_run(db, start(db, "done"), "finished")
    finish_run(db, start(db, "broken"), "failed", error="No map.")
    record_evaluations(db, start(db, "still"), STAGNATION_EVALUATIONS + 1)
    sick, gone = start(db, "sick"), start(db, "gone")
    with db.transaction() as connection:
        values = [{"run_id": sick, "env_step": step, "name": "train/loss", "value": None} for step in (7, 9)]
        connection.execute(MetricRow.__table__.insert(), values)
        silent = datetime.now(UTC) - timedelta(minutes=1)
        connection.execute(update(Run).where(Run.id == gone).values(heartbeat_at=silent, host="elsewhere"))
    told = {alert.run_name: (alert.kind, alert.message) for alert in list_alerts(db)}
    assert {name: kind for name, (kind, _) in told.items()} == {
        "done": "finished", "broken": "failed", "still": "stagnation", "sick": "nan", "gone": "lost"
    }  # fmt: skip
    assert "at step 7" in told["sick"][1]


@pytest.mark.parametrize(
    ("success", "values", "fragment"),
    [
        ("flag", {"rollout/win_rate": 0.0, "rollout/return": -27.5}, "(mean return so far: -27.5)"),
        (
            "flag",
            {"rollout/win_rate": 0.0},
            "if this environment never reports a win, set memory.success=return_threshold",
        ),
        ("flag", {"rollout/win_rate": 0.1}, "Train on, or check memory.success."),
        ("return_threshold", {"rollout/return": 3.0}, "success_threshold = 20 (mean return so far: 3). Lower it"),
    ],
)
def test_a_run_in_which_nothing_can_be_a_success_is_told_without_a_gate_too(db, success, values, fragment):
    config = resolve(
        env="pettingzoo", map="my:game", algo="emu-qplex", overrides={"memory.success": success}
    ).model_dump(mode="json")
    run_id = create_run(db, config, target_steps=100_000, versions={}, name="silent")
    start_run(db, run_id, **ME)
    with db.transaction() as connection:
        rows = [{"run_id": run_id, "env_step": 500, "name": name, "value": value} for name, value in values.items()]
        connection.execute(MetricRow.__table__.insert(), [*rows, {**rows[0], "name": "incentive/rho", "value": 0.0}])
        connection.execute(update(Run).where(Run.id == run_id).values(env_steps=50_000))
    (alert,) = list_alerts(db)
    assert alert.kind == "no-success"
    assert alert.message.startswith("No sampled state belongs to a success yet")
    assert fragment in alert.message
    with db.transaction() as connection:
        later = [{"run_id": run_id, "env_step": 600, "name": "incentive/rho", "value": 0.1}]
        connection.execute(MetricRow.__table__.insert(), later)
    assert list_alerts(db) == []


def test_a_rule_stops_only_what_it_names(db):
    still, fine = start(db, "still"), start(db, "fine")
    record_evaluations(db, still, STAGNATION_EVALUATIONS + 1)
    assert stop_alerted_runs(db, list_alerts(db), ["nan"]) == []
    assert stop_alerted_runs(db, list_alerts(db), ["stagnation"]) == [f"Run {still} was asked to stop."]
    assert command_log(db, still)["command"].tolist() == ["stop"]
    assert command_log(db, fine).empty


def test_marks_are_kept_beside_the_database_and_forgotten_with_their_alerts(db):
    assert read_keys(db) == frozenset()
    mark_read(db, ["a", "b"], existing_keys=["a", "b"])
    mark_read(db, ["c"], existing_keys=["b", "c"])
    assert read_keys(db) == {"b", "c"}


@pytest.mark.parametrize("content", ["{", "[1, null, [2]]", '{"a": 1}', "[" * 100_000, ""])
def test_a_strange_file_of_marks_is_an_empty_one(db, content):
    files_root(db).mkdir(exist_ok=True)
    (files_root(db) / READ_FILE_NAME).write_text(content)
    assert read_keys(db) == frozenset()


def test_a_server_that_only_shows_keeps_no_marks(db, monkeypatch):
    monkeypatch.setenv("EMTC_READ_ONLY", "1")
    with pytest.raises(StorageError, match="EMTC_READ_ONLY"):
        mark_read(db, ["b"], existing_keys=["b"])


def test_an_address_without_a_messenger_names_what_is_missing(monkeypatch):
    monkeypatch.delenv("EMTC_NOTIFY", raising=False)
    assert Messenger().send([])  # without an address it asks for nothing
    monkeypatch.setenv("EMTC_NOTIFY", "mailto://user:hunter2@example.org")
    monkeypatch.setitem(sys.modules, "apprise", None)
    monkeypatch.setattr("app.jobs.alerts.importlib.util.find_spec", lambda name: None)
    with raises(ConfigError, key="EMTC_NOTIFY") as caught:
        Messenger()
    assert "[alerts]" in caught.value.faults[0].hint
    assert "hunter2" not in str(caught.value)


def test_an_address_that_nobody_knows_is_refused_without_being_shown(monkeypatch):
    require("apprise", find_spec("apprise") is not None, "the extra `alerts` is not installed")
    monkeypatch.setenv("EMTC_NOTIFY", "nonsense://user:hunter2@example.org")
    with raises(ConfigError, key="EMTC_NOTIFY") as caught:
        Messenger()
    assert "hunter2" not in str(caught.value)


@pytest.fixture
def hook() -> Iterator[tuple[str, list[dict]]]:
    """A web hook on this machine, and what it was told."""
    told: list[dict] = []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            told.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("localhost", 0), Hook)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"json://user:hunter2@localhost:{server.server_port}/hook", told
    server.shutdown()
    server.server_close()


def test_a_web_hook_is_told_in_one_message(monkeypatch, hook):
    require("apprise", find_spec("apprise") is not None, "the extra `alerts` is not installed")
    address, told = hook
    monkeypatch.setenv("EMTC_NOTIFY", address)
    alerts = find_alerts([facts(status="failed", ended_at=NOW, error="No <b>map</b>.")], disk_free=1, now=NOW)
    assert Messenger().send(alerts)
    assert Messenger().send([])
    (message,) = told
    assert message["title"] == "EMTC Lab: 2 alerts"
    assert "failed a run (abcd2345): Failed: No <b>map</b>." in message["message"]


def test_a_hook_that_is_not_there_is_a_word_and_no_failure(monkeypatch, capfd):
    require("apprise", find_spec("apprise") is not None, "the extra `alerts` is not installed")
    monkeypatch.setenv("EMTC_NOTIFY", "json://user:hunter2@localhost:1/hook")
    assert not Messenger().send(find_alerts([], disk_free=1, now=NOW))
    assert "hunter2" not in "".join(capfd.readouterr())


def test_a_look_lists_what_is_known(db, capsys):
    finish_run(db, start(db, "done\x1b[31m"), "finished")
    assert run(["watch", "--once", "--db", db.url]) == 0
    told = capsys.readouterr().out
    assert ("finished" in told, "\x1b" in told) == (True, False)
    assert run(["watch", "--once", "--json", "--db", db.url]) == 0
    assert json.loads(capsys.readouterr().out)["severity"] == "info"


def test_a_stop_rule_is_one_of_those_that_can_stop(db, capsys):
    for text in ("finished", "nan,x"):
        assert run(["watch", "--once", "--stop-on", text, "--db", db.url]) == 2
        assert ", ".join(STOPPABLE) in capsys.readouterr().err


def test_a_watch_tells_what_happens_while_it_watches(db):
    busy = start(db, "busy")
    command = [sys.executable, "-m", "app.cli.main", "watch", "--every", "1", "--db", db.url]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ
    ) as watcher:
        assert watcher.stderr is not None
        assert watcher.stdout is not None
        assert watcher.stderr.readline().startswith("Watching")
        finish_run(db, busy, "failed", error="No map.")
        assert "failed busy" in watcher.stdout.readline()
        watcher.terminate()
