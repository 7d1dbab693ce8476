"""Whether a gate acts, in the three places that say it: Live's status line, the run header and Home's table."""

import json
from urllib.parse import parse_qs, urlsplit

import pytest
from sqlalchemy import delete, update
from streamlit.testing.v1.element_tree import Block

from app.cli.main import run
from app.ui.run_data import LiveCurves
from storage.engine import open_database
from storage.models import MetricRow
from storage.queries.curves import metric_points
from storage.queries.gate_state import gate_state
from storage.recording.writer import DatabaseRecorder
from storage.runs.changes import finish_run
from storage.runs.rows import find_run
from tests.pages.conftest import copy_database
from tests.pages.seed import seed_run
from tests.pages.test_pages import explained, open_page, said

KINDS = ("active", "idle", "none", "old")
SENTENCES = {
    "active": "The gate removed 20\\.0 % of the incentive\\. β was below 0\\.5",
    "idle": "almost every state is a separate node, so β is 1 everywhere\\. Try \\-\\-set preset=wide",
}


@pytest.fixture(scope="module")
def gate_files(tmp_path_factory):
    path = tmp_path_factory.mktemp("gates") / "gates.db"
    db = open_database(f"sqlite:///{path}")
    runs = {kind: seed_run(db, name=f"{kind} gate", gate=kind) for kind in KINDS}
    db.dispose()
    return path, runs


@pytest.fixture
def gates(use_database, gate_files, tmp_path):
    source, runs = gate_files
    return use_database(copy_database(source, tmp_path / "gates.db")), runs


def list_blocks(block):
    for child in getattr(block, "children", {}).values():
        if isinstance(child, Block) and child.type == "flex_container":
            yield child
        yield from list_blocks(child)


def badges(app) -> list[str]:
    return [kind for kind in KINDS for part in app.markdown if f"gate {kind}]" in str(part.value)]


@pytest.mark.parametrize(
    ("page", "kind"), [*(("live", kind) for kind in KINDS), ("memory", "active"), ("replay", "idle")]
)
def test_the_page_of_a_run_states_once_whether_its_gate_acts_and_why(gates, page, kind):
    app = open_page(page, run=gates[1][kind])
    assert not app.exception
    assert badges(app) == ([kind] if kind in SENTENCES else [])
    assert [each for each, text in SENTENCES.items() if text in explained(app)] == badges(app)
    assert (sum(text in said(app) for text in SENTENCES.values()) == 1) == (page == "live" and bool(badges(app)))


def test_home_shows_the_gate_of_every_run_that_measured_it_and_the_reason_for_a_selected_one(gates):
    app = open_page("home")
    rows = app.dataframe[0].value
    names = [parse_qs(urlsplit(link).query)["called"][0] for link in rows["name"]]
    shown = dict(zip(names, rows["gate"], strict=True))
    assert shown == {"active gate": "● active", "idle gate": "○ idle", "none gate": "–", "old gate": "–"}
    app.session_state["run_table"] = {"selection": {"rows": [names.index("idle gate")], "columns": []}}
    app.run()
    assert not app.exception
    assert badges(app) == ["idle"]
    assert "almost every state is a separate node" in said(app)


def list_headings(app) -> list[str]:
    return [str(part.value) for part in app.markdown if str(part.value).startswith("####")]


def test_live_draws_win_rate_and_gate_first_and_no_gate_of_a_run_without_one(gates):
    app = open_page("live", run=gates[1]["active"])
    first = ("Win rate", "Gate activity", "β̄", "Δ\\_mem where it is above 0")
    assert list_headings(app)[:4] == [f"#### {title}" for title in first]
    headings = list_headings(open_page("live", run=gates[1]["active"], closing="true"))
    assert "#### 1 − β̄" in headings
    assert "#### β̄" not in headings, "one panel with a switch"
    app = open_page("live", run=gates[1]["none"])
    assert not app.exception
    assert ["gate off]" in str(part.value) for part in app.markdown].count(True) == 1
    assert "#### Episode return" in list_headings(app)
    assert not {"#### β̄", "#### 1 − β̄", "#### τ", "#### Gate activity"} & set(list_headings(app))


@pytest.mark.parametrize("kind", ["none", "idle"])
def test_a_missing_incentive_has_one_reason_while_the_run_trains_and_another_after_its_end(gates, kind, capsys):
    db, _ = gates
    run_id = seed_run(db, status="running", gate=kind)
    recorder = DatabaseRecorder(db, run_id)
    for step in (10_000, 10_001):
        recorder.record_metrics(step, {"incentive/rho": 0.0, "rollout/return": -27.5})
    recorder.close()
    with db.transaction() as connection:
        rho = MetricRow.name == "incentive/rho"
        connection.execute(update(MetricRow).where(MetricRow.run_id == run_id, rho).values(value=0.0))
    app = open_page("live", run=run_id)
    assert said(app).count("No sampled state belongs to a success yet, so there is no incentive") == 1
    assert "it starts with the first win" in said(app)
    assert not any(block.proto.height_config.pixel_height for block in list_blocks(app.main)), "no message is cut"
    finish_run(db, run_id, "stopped")
    app.run()
    assert "the run ended before its first win" in said(app)
    assert "it starts with the first win" not in said(app)
    assert run(["show", run_id, "--json", "--db", db.url]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert "the run ended before its first win" in facts["no_success"]
    assert "train.eps_steps" in facts["no_success"]
    assert facts["success_rate"] is None


def test_a_run_that_ended_before_its_first_update_has_another_reason_than_a_running_one(empty):
    run_id = seed_run(empty, status="running", gate="idle")
    with empty.transaction() as connection:
        connection.execute(delete(MetricRow).where(MetricRow.name.in_(("gate/closed_fraction", "incentive/rho"))))
    assert "No update has been made yet" in gate_state(empty, run_id).sentence
    finish_run(empty, run_id, "finished")
    ended = gate_state(empty, run_id).sentence
    assert "ended before its first update" in ended
    assert "32 episodes (train.burn_in)" in ended


def test_the_curves_of_a_session_equal_the_database_after_new_points_and_new_metrics(gates):
    db, _ = gates
    run_id = seed_run(db, status="running")
    names = ["train/loss", "eval/overestimation"]
    curves = LiveCurves(run_id, tuple(names))
    curves.refresh()

    def list_points(frame) -> list[tuple[str, int, float]]:
        return sorted(zip(frame["name"], frame["env_step"], frame["value"], strict=True))

    step = find_run(db, run_id).env_steps + 100
    for name, value in (("train/loss", 0.5), ("eval/overestimation", 2.5)):  # the second one after the step was read
        recorder = DatabaseRecorder(db, run_id)
        recorder.record_metrics(step, {name: value})
        recorder.close()
        before = curves.version
        assert curves.refresh() == 1
        assert curves.version != before
        assert list_points(curves.metrics) == list_points(metric_points(db, run_id, names))
    recorder = DatabaseRecorder(db, run_id)
    recorder.record_metrics(step + 1, {"train/loss": 0.4, "train/q_taken": 0.3})
    recorder.close()
    curves.add_metrics(["train/q_taken", "train/loss"])  # read as far as the other metrics
    assert curves.refresh() == 2
    assert list_points(curves.metrics) == list_points(metric_points(db, run_id, [*names, "train/q_taken"]))
