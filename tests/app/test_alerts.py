"""Alerts follow from what the database says: each rule by hand, then the query, the marks, and the stop."""

import json
import shutil
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

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
)
from emtc_core.config.resolve import resolve
from emtc_core.errors import ConfigError
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


CLIMBING = tuple((100 * step, 0.0, float(step)) for step in range(2 * STAGNATION_EVALUATIONS))
"""Evaluations with the same win rate and better returns."""


@pytest.mark.parametrize(
    "changes",
    [
        {"scores": scores(*[0.1 * step for step in range(10)])},
        {"scores": CLIMBING},
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


@pytest.fixture
def db(tmp_path: Path, sqlite_template: Path):
    database = open_database(f"sqlite:///{shutil.copy(sqlite_template, tmp_path / 'x.db')}")
    yield database
    database.dispose()


def start(db: Database, name: str, config: dict = CONFIG, *, target_steps: int = 1000) -> str:
    run_id = create_run(db, config, target_steps=target_steps, versions={}, name=name)
    start_run(db, run_id, **ME)
    return run_id


def change(db: Database, run_id: str, **values: object) -> None:
    with db.transaction() as connection:
        connection.execute(update(Run).where(Run.id == run_id).values(**values))


def record_evaluations(db: Database, run_id: str, n: int) -> None:
    rows = [
        {"run_id": run_id, "env_step": step, "episodes": 4, "wins": 1, "win_rate": 0.25, "return_mean": 1.0,
         "return_std": 0.0, "length_mean": 10.0}
        for step in range(1, n + 1)
    ]  # fmt: skip
    with db.transaction() as connection:
        connection.execute(Evaluation.__table__.insert(), rows)


def record_metrics(db: Database, run_id: str, env_step: int, values: dict[str, float | None]) -> None:
    rows = [{"run_id": run_id, "env_step": env_step, "name": name, "value": value} for name, value in values.items()]
    with db.transaction() as connection:
        connection.execute(MetricRow.__table__.insert(), rows)


def test_the_alerts_of_a_database_are_those_of_its_runs(db, capsys):
    ruled = CONFIG | {"memory": {"success": "return_threshold", "success_threshold": -18.0}}
    for name, config in (("done\x1b[31m", CONFIG), ("ruled", ruled)):
        change(db, run_id := start(db, name, config), win_rate=0.0)
        finish_run(db, run_id, "finished")
    finish_run(db, start(db, "broken"), "failed", error="No map.")
    record_evaluations(db, start(db, "still"), STAGNATION_EVALUATIONS + 1)
    sick, gone = start(db, "sick"), start(db, "gone")
    for step, name in ((9, "train/loss"), (7, "train/loss"), (8, "train/grad_norm")):
        record_metrics(db, sick, step, {name: None})
    change(db, gone, heartbeat_at=datetime.now(UTC) - timedelta(minutes=1), host="elsewhere")
    alerts = {alert.run_name: alert for alert in list_alerts(db)}
    assert {name: alert.kind for name, alert in alerts.items()} == {
        "done\x1b[31m": "finished", "ruled": "finished", "broken": "failed", "still": "stagnation", "sick": "nan",
        "gone": "lost",
    }  # fmt: skip
    assert "at step 7" in alerts["sick"].message
    assert ["win rate" in alerts[name].message for name in ("done\x1b[31m", "ruled")] == [True, False]
    assert run(["watch", "--once", "--db", db.url]) == 0
    out = capsys.readouterr().out
    assert all(alert.message in out for alert in alerts.values())
    assert "\x1b" not in out


@pytest.mark.parametrize(
    ("success", "values", "fragment"),
    [
        ("flag", {"rollout/win_rate": 0.0, "rollout/return": -27.5}, "-27.5"),
        ("flag", {"rollout/win_rate": 0.0}, "set memory.success=return_threshold"),
        ("flag", {"rollout/win_rate": 0.1}, "check memory.success"),
        ("return_threshold", {"rollout/return": 3.0}, "success_threshold = 20"),
    ],
)
def test_a_run_without_a_success_has_an_alert_until_its_first_incentive(db, success, values, fragment):
    config = resolve(env="pettingzoo", map="my:game", algo="emu-qplex", overrides={"memory.success": success})
    run_id = start(db, "silent", config.model_dump(mode="json"), target_steps=100_000)
    record_metrics(db, run_id, 500, {**values, "incentive/rho": 0.0})
    change(db, run_id, env_steps=50_000)
    (alert,) = list_alerts(db)
    assert alert.kind == "no-success"
    assert fragment in alert.message
    record_metrics(db, run_id, 600, {"incentive/rho": 0.1})
    assert list_alerts(db) == []


def test_only_the_marks_of_existing_alerts_are_kept(db):
    assert read_keys(db) == frozenset()
    mark_read(db, ["a", "b"], existing_keys=["a", "b"])
    mark_read(db, ["c"], existing_keys=["b", "c"])
    assert read_keys(db) == {"b", "c"}


@pytest.mark.parametrize("content", ["{", '{"a": 1}', '["a", null'])
def test_a_damaged_file_of_marks_counts_as_empty(db, content):
    files_root(db).mkdir(exist_ok=True)
    (files_root(db) / READ_FILE_NAME).write_text(content)
    assert read_keys(db) == frozenset()


@pytest.mark.parametrize(
    ("address", "is_installed", "hint"),
    [("mailto://user:hunter2@example.org", False, "[alerts]"), ("nonsense://user:hunter2@example.org", True, "")],
    ids=["apprise is missing", "unknown address"],
)
def test_an_address_that_cannot_be_used_is_refused_without_being_shown(
    monkeypatch, caplog, address, is_installed, hint
):
    if is_installed:
        require("apprise", find_spec("apprise") is not None, "the extra `alerts` is not installed")
    else:
        monkeypatch.setattr("app.jobs.alerts.importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("EMTC_NOTIFY", address)
    with raises(ConfigError, key="EMTC_NOTIFY") as caught:
        Messenger()
    assert hint in caught.value.faults[0].hint
    assert "hunter2" not in str(caught.value) + caplog.text


@pytest.fixture
def hook() -> Iterator[tuple[str, list[dict]]]:
    """The address of a web hook on this machine, and the messages that it received."""
    received: list[dict] = []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("localhost", 0), Hook)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"json://user:hunter2@localhost:{server.server_port}/hook", received
    server.shutdown()
    server.server_close()


def test_alerts_are_sent_as_one_message(monkeypatch, hook, caplog):
    require("apprise", find_spec("apprise") is not None, "the extra `alerts` is not installed")
    address, received = hook
    monkeypatch.setenv("EMTC_NOTIFY", address)
    alerts = find_alerts([facts(status="failed", ended_at=NOW, error="No <b>map</b>.")], disk_free=1, now=NOW)
    assert Messenger().send(alerts)
    assert Messenger().send([])
    (message,) = received
    assert message["title"] == "EMTC Lab: 2 alerts"
    assert "failed a run (abcd2345): Failed: No <b>map</b>." in message["message"]
    monkeypatch.setenv("EMTC_NOTIFY", "json://user:hunter2@localhost:1/hook")
    assert not Messenger().send(alerts), "no server is there"
    assert "hunter2" not in caplog.text


@pytest.mark.parametrize("text", ["finished", "nan,x"])
def test_an_alert_that_cannot_stop_a_run_is_refused_in_stop_on(db, capsys, text):
    assert run(["watch", "--once", "--stop-on", text, "--db", db.url]) == 2
    assert ", ".join(STOPPABLE) in capsys.readouterr().err


def test_watch_prints_new_alerts_and_stops_the_runs_of_its_rule(db, capsys, monkeypatch):
    still, later, busy = start(db, "still"), start(db, "later"), start(db, "busy")
    record_evaluations(db, still, STAGNATION_EVALUATIONS + 1)

    def events() -> Iterator[None]:
        """What happens during each wait between two checks."""
        finish_run(db, busy, "failed", error="No map.")
        yield
        record_evaluations(db, later, STAGNATION_EVALUATIONS + 1)
        yield
        raise KeyboardInterrupt

    waits = events()
    monkeypatch.setattr("app.cli.watch.time", SimpleNamespace(sleep=lambda seconds: next(waits)))
    assert run(["watch", "--stop-on", "stagnation", "--db", db.url]) != 0
    out, err = capsys.readouterr()
    assert [line.split()[3:5] for line in out.splitlines()] == [["failed", "busy"], ["stagnation", "later"]]
    assert [line for line in err.splitlines() if "asked to stop" in line] == [
        f"Run {run_id} was asked to stop." for run_id in (still, later)
    ]
    assert [command_log(db, run_id)["command"].tolist() for run_id in (still, later, busy)] == [["stop"], ["stop"], []]
