"""The page Findings: the question of a study, a chart for each task, the claims, and planned runs without a result."""

import json
import shutil
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from sqlalchemy import update
from streamlit.testing.v1 import AppTest

from app.analysis.study_plans import get_shipped_plan
from app.figures.registry import find_figure
from app.notebook.export import make_recipe
from app.notebook.view import read_entries
from app.ui.findings import studies
from storage.engine import Database, open_database
from storage.models import Run
from storage.notebook import list_entries
from storage.queries.runs import get_rows
from storage.runs.sweeps import list_sweeps, sweep_runs
from tests.pages.conftest import copy_database
from tests.pages.studies import FOOTBALL, SKIRMISH, seed_study
from tests.pages.test_notebook import press_pin
from tests.pages.test_pages import open_page, said

CONFIRMATORY, FIRST = get_shipped_plan("confirmatory"), get_shipped_plan("first")


@pytest.fixture(scope="module")
def study_file(tmp_path_factory, sqlite_template) -> Path:
    """The confirmatory study: football complete, five seeds of 3s_vs_5z, one seed queued."""
    path = Path(shutil.copy(sqlite_template, tmp_path_factory.mktemp("study") / "study.db"))
    db = open_database(f"sqlite:///{path}")
    seed_study(db, FOOTBALL, finished={1, 2, 3, 4, 5})
    seed_study(db, SKIRMISH, finished={4, 5, 6, 7, 8})
    db.dispose()
    return path


@pytest.fixture
def study(use_database, study_file, tmp_path) -> Database:
    return use_database(copy_database(study_file, tmp_path / "study.db"))


def charts(app: AppTest) -> list[dict]:
    found = [json.loads(each.proto.json) for each in app.get("bidi_component") if each.proto.json]
    return [each for each in found if "panels" in each]


def names_of(chart: dict) -> list[str]:
    return [line["name"] for line in chart["panels"][0]["lines"]]


def open_all(**parameters: str) -> AppTest:
    """Open the page with its estimates and details."""
    return open_page("findings", estimates="true", details="true", **parameters)


def read_tables(app: AppTest) -> list[list[list[str]]]:
    """The cells of each table of claims, row by row: first the verdicts, then the estimates if they are unfolded."""
    texts = [str(part.value) for part in app.markdown if str(part.value).startswith("| claim")]
    plain = [
        text.replace("\\", "").replace("\u00a0", " ").replace("\u200b", "").replace("\u2011", "-") for text in texts
    ]
    return [[line.strip("| ").split(" | ") for line in text.splitlines()[:1] + text.splitlines()[2:]] for text in plain]


def estimates(app: AppTest) -> list[list[str]]:
    return read_tables(app)[1][1:]


def verdicts(app: AppTest) -> list[list[str]]:
    return read_tables(app)[0]


def links(app: AppTest) -> dict[str, dict[str, list[str]]]:
    return {link.proto.label.replace("\\", ""): parse_qs(link.proto.query_string) for link in app.get("page_link")}


def test_without_a_study_the_page_names_the_next_step(empty):
    app = open_page("findings")
    assert not app.exception
    assert "No study has runs in this database" in said(app)
    assert "emtc sweep confirmatory-football" in said(app)
    assert charts(app) == []


def test_each_task_has_one_chart_of_at_most_four_smoothed_lines(study):
    app = open_page("findings")
    assert not app.exception
    assert not app.error
    skirmish, football = charts(app)
    assert skirmish["panels"][0]["title"] == "robust win rate, 3s_vs_5z"
    assert football["panels"][0]["title"] == "greedy win rate, academy_3_vs_1_with_keeper [grf]"
    assert names_of(football) == [
        "EMTC(QPLEX) (n = 5)", "EMTC(QPLEX), No-TCGM (n = 5)", "EMU(QPLEX) (n = 5)", "QPLEX (n = 5)",
    ]  # fmt: skip
    assert len(names_of(skirmish)) == 4
    for chart, window in ((skirmish, "50,000"), (football, "100,000")):
        assert f"smoothed over {window} env steps" in chart["subtitle"]
        assert chart["bands"] == "pointed"
        assert all(line["label"] and line["lo"] and line["hi"] for line in chart["panels"][0]["lines"])
    assert "Not drawn: “EMTC(QPLEX), preset = prewrite” (n = 5)" in said(app).replace("\\", "")
    opened = links(app)["Compare all 5 variants"]
    assert len(opened["runs"][0].split(",")) == 25
    assert (opened["y"], opened["band"], opened["smooth"]) == (["robust_win_rate"], ["ci"], ["50000"])


def test_a_claim_has_its_estimate_and_a_verdict_in_words(study):
    app = open_all()
    by_task = {(row[0].partition("**")[2].partition("**")[0], row[1]): row[2:] for row in estimates(app)}
    estimate, n, _, verdict = by_task["1. EMTC learns better than EMU", "3s_vs_5z"]
    assert estimate.startswith("+0.2")
    assert "[" in estimate
    assert (n, verdict) == ("5 pairs", ":green-badge[:material/check_circle: supported]")
    assert by_task["1. EMTC learns better than EMU", "all tasks"][1] == "10 pairs"
    undecided = by_task["3. The gate helps", "3s_vs_5z"][-1]
    assert undecided.startswith(":orange-badge[:material/question_mark: cannot tell] :small[detectable: 0.0")
    header, first, *others = verdicts(app)
    assert header == ["claim", "3s_vs_5z", "academy_3_vs_1_with_keeper [grf]", "all tasks"]
    assert first == ["1. EMTC learns better than EMU", *[":green-badge[:material/check_circle: supported]"] * 3]
    assert ["4. A strong gate helps", ":orange-badge[:material/question_mark: cannot tell]", "–", "–"] in others
    assert "2 of 8 claims are supported (1. EMTC learns better than EMU; 2. " in said(app).replace("\\", "")


def test_planned_runs_without_a_result_are_listed_with_their_state(empty):
    seed_study(empty, SKIRMISH, finished={4}, queued={7})
    app = open_all()
    (folded,) = (each for each in app.expander if each.label == "20 planned runs without a result")
    text = folded.caption[0].value.replace("\\", "")
    assert "Confirmatory study: 3s_vs_5z · EMTC · seed 7: queued at 0 of 1,000,000" in text
    assert "Confirmatory study: 3s_vs_5z · EMTC · seed 8: not in this database" in text
    (postponed,) = (each for each in app.expander if each.label == "Postponed parts of the plan")
    text = postponed.caption[0].value.replace("\\", "")
    assert "Part F (football), postponed on 2026-11-28: A run takes about three hours of one core." in text


def test_a_study_with_queued_runs_only_has_no_charts(empty):
    seed_study(empty, FOOTBALL, finished=(), queued={1})
    app = open_page("findings")
    assert not app.exception
    assert not app.error
    assert "No run of this study has been evaluated yet" in said(app)
    assert "No claim has been measured yet" in said(app)
    assert "0 of 20 planned runs" in said(app)
    assert "Compare these runs" not in links(app)


def test_the_url_selects_a_study_by_its_title(study):
    seed_study(study, "first-study-b", finished={1})
    app = open_page("findings")
    (chosen,) = [group for group in app.get("button_group") if group.label == "Study"]
    assert [each.content for each in chosen.proto.options] == [CONFIRMATORY.title, FIRST.title]
    assert CONFIRMATORY.question in said(app).replace("\\", "")
    other = open_page("findings", study=FIRST.title)
    assert not other.exception
    assert FIRST.question in said(other).replace("\\", "")
    assert [chart["panels"][0]["title"] for chart in charts(other)] == ["robust win rate, 2s3z"]
    few = ":gray-badge[:material/hourglass_empty: too few seeds]"
    assert ["2. EMTC learns better than its backbone: :gray[EMTC(CDS) − CDS]", few] in verdicts(other)
    assert CONFIRMATORY.question in said(open_page("findings", study="<b>")).replace("\\", "")


def test_findings_are_computed_again_only_when_a_run_has_changed(empty, monkeypatch):
    seed_study(empty, FOOTBALL, finished={1}, queued={2})
    measured, measure = [], studies.measure_study

    def count(db, runs):
        measured.append(runs.curves.n)
        return measure(db, runs)

    monkeypatch.setattr(studies, "measure_study", count)
    open_all()
    open_all()
    assert measured == [4]
    ended = next(run for sweep in list_sweeps(empty) for run in sweep_runs(empty, sweep.id) if run.status == "queued")
    with empty.transaction() as connection:
        connection.execute(update(Run).where(Run.id == ended.id).values(status="stopped"))
    text = " ".join(caption.value for caption in open_all().caption).replace("\\", "")
    assert measured == [4, 4]
    assert "stopped at 0 of 2,000,000" in text


def test_a_hidden_run_is_not_counted(study):
    sweep = next(sweep for sweep in list_sweeps(study) if sweep.name.endswith("football"))
    hidden = sweep_runs(study, sweep.id)[0]
    with study.transaction() as connection:
        connection.execute(update(Run).where(Run.id == hidden.id).values(hidden_at=hidden.created_at))
    assert "44 of 45 planned runs" in said(open_page("findings"))


def test_the_details_are_read_only_while_they_are_open(study):
    app = open_page("findings")
    assert not app.dataframe
    assert "Findings in the guide" not in links(app)
    app = open_page("findings", measures="true", numbers="true", settings="true", plan="true")
    assert not app.exception
    assert not app.error
    measures, numbers, settings = (frame.value for frame in app.dataframe)
    assert {"detectable", "P(improvement)", "verdict"} <= set(measures.columns)
    assert len(numbers) == 45
    assert "gate.enabled" in set(settings["setting"])
    assert "This file was committed before the first run" in said(app)
    assert measures["estimate"].dtype == measures["p (Holm)"].dtype == float, "sorted as numbers"
    assert numbers["μ̄_w"].dtype == float
    run_ids = {row.id for sweep in list_sweeps(study) for row in sweep_runs(study, sweep.id)}
    assert {parse_qs(urlsplit(link).query)["run"][0] for link in numbers["run"]} <= run_ids
    assert links(app)["Findings in the guide"] == {"page": ["findings"]}


def test_a_pinned_chart_can_be_drawn_again_from_its_runs(study):
    app = press_pin(open_page("findings"), "findings-3s_vs_5z")
    assert not app.exception
    (row,) = list_entries(study)
    assert row.view["page"] == "findings"
    (entry,) = read_entries(study, [row.id])
    assert entry.figure is not None
    assert entry.view is not None
    assert entry.view.relative_url == "/findings"
    assert len(entry.view.run_ids) == 20
    facts = {"quantity": "robust_win_rate", "center": "mean", "band": "ci", "smooth": 50_000}
    assert entry.view.options == facts
    assert make_recipe(entry.view, entry.figure) is not None
    kind = find_figure("learning-curves")
    chart = kind.make(study, get_rows(study, entry.view.run_ids), kind.read_options(facts))
    drawn = {line.name: line.y[-1] for line in chart.panels[0].lines if not line.faint}
    assert drawn == {line.name: pytest.approx(line.y[-1]) for line in entry.figure.panels[0].lines}
