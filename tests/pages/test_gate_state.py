"""Whether a gate acts, in the three places that say it: Live's status line, the run header and Home's table."""

import json
from urllib.parse import parse_qs, urlsplit

import pytest
from sqlalchemy import delete, update
from streamlit.testing.v1.element_tree import Block

from app.cli.main import run
from app.ui.run_data import LiveCurves
from emtc_core.config.run import PRESETS
from storage.engine import open_database
from storage.models import MetricRow
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


@pytest.mark.parametrize("page", ["live", "memory", "replay"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_runs_page_says_once_whether_its_gate_acts_and_why(gates, page, kind):
    app = open_page(page, run=gates[1][kind])
    assert not app.exception
    assert badges(app) == ([kind] if kind in SENTENCES else [])
    assert [each for each, text in SENTENCES.items() if text in explained(app)] == badges(app)
    assert (sum(text in said(app) for text in SENTENCES.values()) == 1) == (page == "live" and bool(badges(app)))


def test_a_run_without_a_gate_says_so_once_and_draws_no_gate(gates):
    app = open_page("live", run=gates[1]["none"])
    assert ["gate off]" in str(part.value) for part in app.markdown].count(True) == 1
    headings = [str(part.value) for part in app.markdown if str(part.value).startswith("####")]
    assert "#### Episode return" in headings
    assert not {"#### β̄", "#### 1 − β̄", "#### τ", "#### Gate activity"} & set(headings)


def test_home_says_it_of_every_run_that_measured_it(gates):
    app = open_page("home")
    rows = app.dataframe[0].value
    shown = {
        parse_qs(urlsplit(link).query)["called"][0]: gate for link, gate in zip(rows["name"], rows["gate"], strict=True)
    }
    assert shown == {"active gate": "● active", "idle gate": "○ idle", "none gate": "–", "old gate": "–"}


def test_a_chosen_row_of_home_gives_the_reason(gates):
    app = open_page("home")
    row = [link.count("called=idle%20gate&") for link in app.dataframe[0].value["name"]].index(1)
    app.session_state["run_table"] = {"selection": {"rows": [row], "columns": []}}
    app.run()
    assert not app.exception
    assert badges(app) == ["idle"]
    assert "almost every state is a separate node" in said(app)


def test_live_draws_win_rate_and_gate_first_and_also_opens_a_run_without_a_gate(gates):
    app = open_page("live", run=gates[1]["active"])
    headings = [str(part.value) for part in app.markdown if str(part.value).startswith("####")]
    first = ("Win rate", "Gate activity", "β̄", "Δ\\_mem where it is above 0")
    assert headings[:4] == [f"#### {title}" for title in first]
    assert "the gate removed" in explained(app)
    app = open_page("live", run=gates[1]["active"], closing="true")
    headings = [str(part.value) for part in app.markdown if str(part.value).startswith("####")]
    assert "#### 1 − β̄" in headings
    assert "#### β̄" not in headings, "one panel with a switch"
    assert not open_page("live", run=gates[1]["none"]).exception


@pytest.mark.parametrize("kind", ["none", "idle"])
def test_live_and_show_warn_where_no_success_feeds_the_incentive(gates, kind, capsys):
    db, runs = gates
    run_id = runs[kind]
    recorder = DatabaseRecorder(db, run_id)
    for step in (10_000, 10_001):
        recorder.record_metrics(step, {"incentive/rho": 0.0, "rollout/return": -27.5})
    recorder.close()
    with db.transaction() as connection:
        rho = MetricRow.name == "incentive/rho"
        connection.execute(update(MetricRow).where(MetricRow.run_id == run_id, rho).values(value=0.0))
    text = said(open_page("live", run=run_id)).replace("\\", "")
    assert text.count("No sampled state belongs to a success yet, so there is no incentive (ρ = 0)") == 1
    assert run(["show", run_id, "--json", "--db", db.url]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["no_success"].endswith(
        "the run ended before its first win. Train a longer one, or explore longer (train.eps_steps)."
    )
    assert facts["success_rate"] is None


def test_a_number_logged_after_a_report_of_its_own_step_is_not_lost(gates):
    db, _ = gates
    run_id = seed_run(db, status="running")
    curves = LiveCurves(run_id, ("train/loss", "eval/overestimation"))
    curves.refresh()
    step = find_run(db, run_id).env_steps + 100
    for values in ({"train/loss": 0.5}, {"eval/overestimation": 2.5}):
        recorder = DatabaseRecorder(db, run_id)
        recorder.record_metrics(step, values)
        recorder.close()
        before = curves.version
        assert curves.refresh() == 1
        assert curves.version != before
    last = curves.metrics[curves.metrics["env_step"] == step]
    assert dict(zip(last["name"], last["value"], strict=True)) == {"train/loss": 0.5, "eval/overestimation": 2.5}
    assert curves.refresh() == 0


def test_a_number_followed_later_is_read_as_far_as_its_kind(gates):
    curves = LiveCurves(gates[1]["active"], ("train/loss",))
    curves.refresh()
    curves.add_metrics(["eval/overestimation", "train/q_taken"])
    assert set(curves.metrics["name"]) == {"train/loss", "train/q_taken", "eval/overestimation"}
    rows = len(curves.metrics)
    curves.refresh()
    assert len(curves.metrics) == rows


def test_launch_lists_every_preset_with_its_sentence(empty):
    app = open_page("launch")
    box = app.radio(key="preset")
    app.toggle(key="more_presets").set_value(True).run()
    box = app.radio(key="preset")
    assert box.options == list(PRESETS)
    assert box.value == "demo"
    assert len(box.proto.captions) == len(PRESETS)
    assert "shows the whole method moving" in box.proto.captions[list(PRESETS).index("demo")]
    for name in PRESETS:
        app.radio(key="preset").set_value(name).run()
        assert not app.exception
        assert not app.error


def test_after_a_stop_a_missing_incentive_has_one_reason(gates):
    db, _ = gates
    run_id = seed_run(db, status="running", gate="idle")
    with db.transaction() as connection:
        rho = MetricRow.name == "incentive/rho"
        connection.execute(update(MetricRow).where(MetricRow.run_id == run_id, rho).values(value=0.0))
    app = open_page("live", run=run_id)
    assert "it starts with the first win" in said(app)
    assert not any(block.proto.height_config.pixel_height for block in list_blocks(app.main)), "no message is cut"
    finish_run(db, run_id, "stopped")
    app.run()
    assert "the run ended before its first win" in said(app)
    assert "it starts with the first win" not in said(app)


def test_a_run_that_ended_before_its_first_update_is_not_told_to_wait_for_it(empty):
    run_id = seed_run(empty, status="running", gate="idle")
    with empty.transaction() as connection:
        connection.execute(delete(MetricRow).where(MetricRow.name.in_(("gate/closed_fraction", "incentive/rho"))))
    assert gate_state(empty, run_id).sentence.startswith("No update has been made yet.")
    finish_run(empty, run_id, "finished")
    assert gate_state(empty, run_id).sentence == (
        "The run ended before its first update, which needs 32 episodes (train.burn_in)."
    )
