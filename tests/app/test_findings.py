"""Findings: numbers of each run by hand, families of tests, planned runs without a result."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sqlalchemy import insert, update

from app.analysis.curves import Curves, read_curves, read_tables
from app.analysis.findings import ALL_TASKS, compute_findings, measure_study, read_study
from app.analysis.measures import MEASURES, measure_runs
from app.analysis.results import select_runs
from app.analysis.significance import adjust_p_values, compare_seeds
from app.analysis.study_plans import StudyPlan, get_shipped_plan, list_plans, make_exploratory_plan, read_plan
from app.analysis.tables import export_table, make_plain_table
from app.figures.registry import TABLES
from app.jobs.sweeps.file import list_templates
from app.jobs.sweeps.plan import make_plan
from emtc_core.config.resolve import flatten, resolve
from emtc_core.errors import ConfigError
from storage.engine import Database, open_database
from storage.models import SUMMARY_STEPS, EpisodeRow, Run, SweepRow, TransitionSummary
from storage.recording.writer import DatabaseRecorder
from storage.runs.changes import create_run
from storage.runs.rows import RunRow, find_run
from tests.errors import raises
from tests.reference.claims import recompute
from tests.storage.records import CONFIG, make_evaluation, record_episodes
from tests.tools import findings as report

ROOT = Path(__file__).parents[2]
CONFIRMATORY, UNPLANNED = get_shipped_plan("confirmatory"), make_exploratory_plan()
MU_W = MEASURES["mu_w"]


def read_greedy(db: Database, rows: list[RunRow]) -> Curves:
    return read_curves(read_tables(db, rows), "win_rate")


def add_run(db: Database, seed: int, wins: int, *settings: str, map: str = "3m", sweep: str = "") -> RunRow:
    config = resolve(algo="emtc-qplex", map=map, seed=seed, overrides=list(settings))
    run_id = create_run(
        db,
        config.model_dump(mode="json"),
        name=f"{map} {'off' if settings else 'on'} {seed}",
        target_steps=40,
        versions={"commit": "c" * 40},
    )
    recorder = DatabaseRecorder(db, run_id)
    record_episodes(recorder, 4)
    for step in (10, 20, 30, 40):
        recorder.record_evaluation(make_evaluation(step, wins=0, robust_wins=wins))
    for step, gap in ((10, 9.0), (30, -2.0), (40, 1.0)):
        recorder.record_metrics(step, {"eval/overestimation": gap})
    recorder.close()
    with db.transaction() as connection:
        connection.execute(update(Run).where(Run.id == run_id).values(status="finished", sweep_id=sweep or None))
    return find_run(db, run_id)


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    opened = open_database(f"sqlite:///{tmp_path / 'x.db'}")
    yield opened
    opened.dispose()


def test_runs_outside_the_plans_are_measured_and_called_exploratory(db: Database) -> None:
    rows = [add_run(db, seed, 3) for seed in (1, 2, 3)]
    rows += [add_run(db, seed, 1 + seed % 2, "gate.enabled=false") for seed in (1, 2, 3)]
    (study,) = compute_findings(db, rows)
    assert study.plan is UNPLANNED
    first = next(each for each in study.findings if each.measure is MU_W)
    assert (first.first, first.second) == ("EMTC(QPLEX)", "No-TCGM")
    assert first.improvement == 1.0
    expected = compare_seeds({1: 0.75, 2: 0.75, 3: 0.75}, {1: 0.5, 2: 0.25, 3: 0.5})
    assert first.difference.n == (3,)
    assert first.difference.estimate == pytest.approx(expected.estimate), "of robust win rates, not of greedy ones"
    table = TABLES["findings"].make(db, rows)
    row = table.frame[table.frame["measure"] == MU_W.title].iloc[0]
    assert (row["claim"], row["n"], row["verdict"]) == ("3. The gate helps", "3 pairs", "too few seeds")
    assert "exploratory" in row["study"]


def test_tasks_are_pooled_and_p_values_adjusted_by_task(db: Database) -> None:
    rows = [
        add_run(db, seed, wins, *settings, map=map)
        for map, maps_wins in (("3m", ((4, 3), (3, 1), (4, 2))), ("8m", ((2, 1), (4, 1), (3, 1))))
        for seed, both in enumerate(maps_wins, 1)
        for wins, settings in zip(both, ((), ("gate.enabled=false",)), strict=True)
    ]
    (study,) = compute_findings(db, rows)
    mu_w = {each.task: each for each in study.findings if each.measure is MU_W}
    assert mu_w[ALL_TASKS].difference.estimate == pytest.approx(
        (mu_w["3m"].difference.estimate + mu_w["8m"].difference.estimate) / 2
    )
    for task in ("3m", "8m", ALL_TASKS):
        family = [each for each in study.findings if each.task == task and each.is_primary]
        adjusted = adjust_p_values([each.difference.p for each in family], [task] * len(family))
        assert [each.adjusted_p for each in family] == pytest.approx(adjusted, nan_ok=True)
    assert not any(each.task == ALL_TASKS for each in study.findings if not each.measure.is_pooled)


def test_a_planned_run_without_a_result_is_reported(db: Database) -> None:
    planned = [{"name": f"3m {gate} {seed}"} for seed in (1, 2) for gate in ("on", "off")]
    values = {"name": CONFIRMATORY.sweeps[1], "status": "active", "jobs": 1, "plan": {"runs": planned}}
    with db.transaction() as connection:
        connection.execute(insert(SweepRow), {"id": "abc", "created_at": datetime.now(UTC), **values})
    rows = [add_run(db, 1, 3, sweep="abc"), add_run(db, 1, 2, "gate.enabled=false", sweep="abc"), add_run(db, 9, 4)]
    planned_study, other = compute_findings(db, rows)
    assert (planned_study.plan, other.plan) == (CONFIRMATORY, UNPLANNED)
    assert planned_study.missing == ("3m on 2: not in this database", "3m off 2: not in this database")
    assert planned_study.commits == {"c" * 40: 2}
    assert all(each.difference.n == (1,) for each in planned_study.findings), "a run outside the plan is not counted"


def test_runs_of_different_commits_are_marked(db: Database) -> None:
    rows = [add_run(db, 1, 3), add_run(db, 1, 2, "gate.enabled=false")]
    with db.transaction() as connection:
        connection.execute(update(Run).where(Run.id == rows[0].id).values(versions={"commit": "d" * 40}))
    table = TABLES["findings"].make(db, [find_run(db, row.id) for row in rows])
    assert "(different commits)" in table.frame[table.frame["measure"] == MU_W.title]["verdict"].iloc[0]
    assert "WARNING: runs of different commits" in table.caption


def test_the_table_of_claims_has_the_primary_measures_of_each_study(db: Database) -> None:
    rows = [add_run(db, seed, 3, *gate) for seed in (1, 2) for gate in ((), ("gate.enabled=false",))]
    table = TABLES["claims"].make(db, rows).frame
    every = TABLES["findings"].make(db, rows).frame
    assert table["claim"].tolist() == every.loc[every["verdict"] != "–", "claim"].tolist()
    assert set(table["measure"]) < set(every["measure"])
    assert "study" not in table
    assert "detectable" not in table, "no claim is undecided"
    values = {"name": CONFIRMATORY.sweeps[1], "status": "active", "jobs": 1, "plan": {}}
    with db.transaction() as connection:
        connection.execute(insert(SweepRow), {"id": "abc", "created_at": datetime.now(UTC), **values})
    rows += [add_run(db, seed, 3, *gate, sweep="abc") for seed in range(1, 6) for gate in ((), ("gate.enabled=false",))]
    table = TABLES["claims"].make(db, rows).frame
    assert set(table["study"]) == {CONFIRMATORY.title, UNPLANNED.title}
    (gate,) = (
        row for _, row in table.iterrows() if row["study"] == CONFIRMATORY.title and row["claim"].startswith("3")
    )
    assert (gate["n"], gate["verdict"]) == ("5 pairs", "equal")


def test_the_error_of_q_and_the_overestimation_have_one_sign_convention(db: Database) -> None:
    row = add_run(db, 1, 3)
    numbers = measure_runs(db, [row], read_greedy(db, [row]))
    assert numbers["q_error"][row.id] == pytest.approx((2.0 + 1.0) / 2), "of the second half, without a sign"
    assert numbers["overestimation"][row.id] == pytest.approx((-2.0 + 1.0) / 2), "Q minus return"


def test_the_gates_numbers_are_taken_from_the_first_win_on(db: Database) -> None:
    steps, length = 24 * SUMMARY_STEPS, SUMMARY_STEPS // 2
    run_id = create_run(db, CONFIG, target_steps=steps, versions={})
    recorder = DatabaseRecorder(db, run_id)
    record_episodes(recorder, steps // length, length=length)
    for step, value in ((1000, 0.9), (4000, 0.2), (20_000, 0.4)):
        recorder.record_metrics(step, {"gate/incentive_removed": value})
    recorder.record_evaluation(make_evaluation(steps))
    recorder.close()
    with db.transaction() as connection:
        won = EpisodeRow.episode.in_([8, 9, 30])
        connection.execute(update(EpisodeRow).where(EpisodeRow.run_id == run_id).values(won=False))
        connection.execute(update(EpisodeRow).where(EpisodeRow.run_id == run_id, won).values(won=True))
        connection.execute(update(Run).where(Run.id == run_id).values(status="finished"))
    with db.read() as connection:
        every = pd.read_sql("SELECT env_step, delta_mem, beta FROM transitions ORDER BY env_step", connection)
    # Episode 8 begins at env step 3,501, so the stretch begins with env step 4,001 and has 20 blocks of 1,000.
    stretch = every[every["env_step"] > 4 * SUMMARY_STEPS]
    first, last = stretch.iloc[: 2 * SUMMARY_STEPS].mean(), stretch.iloc[-2 * SUMMARY_STEPS :].mean()
    row = find_run(db, run_id)
    numbers = measure_runs(db, [row], read_greedy(db, [row]))
    assert numbers["delta_ratio"][run_id] == pytest.approx(np.log(last["delta_mem"] / first["delta_mem"]))
    assert numbers["beta_rise"][run_id] == pytest.approx(last["beta"] - first["beta"])
    assert numbers["removed"][run_id] == pytest.approx(0.3), "of the reports after the first win"
    with db.transaction() as connection:
        ends = TransitionSummary.bucket.in_((4, 5, 22, 23))
        connection.execute(update(TransitionSummary).where(ends).values(delta_mem_sum=0.0))
    assert measure_runs(db, [row], read_greedy(db, [row]))["delta_ratio"] == {}, "0 has no logarithm"


STUDY = """
title = "My study"
question = "Does the gate help on 3m?"
plan_text = "mine.md"
sweeps = ["My sweep"]
correction = "holm"

[variants.with]
algo = "emtc-qplex"
settings = { gate.enabled = true }

[variants.without]
algo = "emtc-qplex"
settings = { "gate.enabled" = false }

[[claim]]
number = 1
text = "The gate helps"
pairs = [["with", "without"]]
measures = ["final", "mu_w"]
direction = "higher"
"""


@pytest.fixture
def study_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the study file of a user."""
    folder = tmp_path / "studies"
    folder.mkdir()
    (folder / "mine.study.toml").write_text(STUDY)
    (folder / "mine.md").write_text("# My plan\n")
    monkeypatch.setenv("EMTC_STUDIES", str(folder))
    return folder


def test_a_study_file_of_a_user_is_measured_like_the_shipped_ones(db: Database, study_folder: Path) -> None:
    values = {"name": "My sweep", "status": "active", "jobs": 1, "plan": {"runs": [{"name": "3m on 7"}]}}
    with db.transaction() as connection:
        connection.execute(insert(SweepRow), {"id": "abc", "created_at": datetime.now(UTC), **values})
    rows = [add_run(db, seed, 3, *gate, sweep="abc") for seed in (1, 2) for gate in ((), ("gate.enabled=false",))]
    (study,) = compute_findings(db, rows)
    assert study.plan.title == "My study"
    assert study.missing == ("3m on 7: not in this database",)
    assert [(finding.first, finding.second, finding.is_primary) for finding in study.findings] == [
        ("with", "without", True),
        ("with", "without", False),
    ]
    assert TABLES["claims"].make(db, rows).frame["measure"].tolist() == [MEASURES["final"].title]


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        ('"mu_w"]', '"mu_v"]', "mu_v"),
        ('[["with", "without"]]', '[["with", "gone"]]', "gone"),
        ('"higher"', '"up"', "direction"),
        ("gate.enabled = true", "gate.enable = true", "gate.enable"),
        ("mine.md", "gone.md", "gone.md"),
        ("sweeps =", "swept =", "swept"),
        ("My study", "First study", "First study"),
    ],
)
def test_a_fault_of_a_study_file_is_a_sentence(study_folder: Path, old: str, new: str, word: str) -> None:
    (study_folder / "mine.study.toml").write_text(STUDY.replace(old, new))
    with pytest.raises(ConfigError, match=re.escape(word)):
        list_plans()


def test_a_folder_of_studies_that_does_not_exist_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMTC_STUDIES", "/nowhere")
    with raises(ConfigError, key="EMTC_STUDIES", value="/nowhere"):
        list_plans()


def test_claims_of_different_families_are_corrected_separately(db: Database, study_folder: Path) -> None:
    file = study_folder / "mine.study.toml"
    one_claim = STUDY[STUDY.index("[[claim]]") :]
    file.write_text(STUDY + one_claim + one_claim + 'family = "other"\n')
    plan = read_plan(file)
    rows = [add_run(db, seed, wins) for seed, wins in ((1, 4), (2, 2), (3, 3))]
    rows += [add_run(db, seed, 1, "gate.enabled=false") for seed in (1, 2, 3)]
    findings = measure_study(db, read_study(db, plan, rows)).findings
    first, second, other = (finding for finding in findings if finding.is_primary)
    assert first.adjusted_p == second.adjusted_p == pytest.approx(2 * first.difference.p)
    assert other.adjusted_p == other.difference.p


@pytest.mark.parametrize("name", ["confirmatory", "parts"])
def test_each_planned_run_is_of_exactly_one_variant_of_its_study(name: str) -> None:
    plan = get_shipped_plan(name)
    runs = [run for file in list_templates().values() if file.name in plan.sweeps for run in make_plan(file).runs]
    names = []
    for run in runs:
        settings = flatten(run.config)
        (variant,) = (key for key, variant in plan.variants.items() if variant.matches(settings))
        names.append(variant)
    assert set(names) == set(plan.variants)
    compared = {name for claim in plan.claims for pair in (*claim.pairs, *claim.other_pairs) for name in pair}
    assert compared == set(plan.variants)
    tasks, burn_ins = {run.cell.map for run in runs}, {(run.cell.map, run.config.train.burn_in) for run in runs}
    assert len(burn_ins) == len(tasks), "one burn-in for all variants of a task"


N_PLANNED = {"confirmatory": 25, "parts": 50}


@pytest.mark.ci
@pytest.mark.parametrize("plan", report.list_reported_plans(), ids=lambda plan: plan.title)
def test_the_guide_reports_a_study_with_the_numbers_of_its_tables(plan: StudyPlan) -> None:
    guide, readme = ((ROOT / name).read_text() for name in ("app/guide/findings.md", "README.md"))
    with report.open_study(plan) as (db, rows):
        assert report.replace_table(guide, report.get_heading(plan), report.write_claims(db, rows)) == guide
        findings = TABLES["findings"].make(db, rows).frame
        printed = export_table(make_plain_table(findings), "markdown").decode()
        printed += export_table(TABLES["study-measures"].make(db, rows), "markdown").decode()
        printed += " ".join(findings["detectable"])
    prose = guide.split(f"{report.get_heading(plan)}\n")[1].split("\n## ")[0]
    if plan.name == "confirmatory":
        prose += readme.split("## Findings so far")[1].split("## ")[0] + guide.split("Short answer")[1].split("## ")[0]
        for text in (guide, readme):
            assert f"{len(rows)} of the {N_PLANNED[plan.name]}" in re.sub(r"\s+", " ", text)
    if plan.name in N_PLANNED:  # the first study has several parts
        assert f"| {len(rows)} of {N_PLANNED[plan.name]} runs |" in guide
    numbers = re.findall(r"[-+]?\d*\.\d[\de-]*", prose)
    assert len(numbers) > 20
    assert [number for number in numbers if number.rstrip(".") not in printed] == [], "numbers that no command prints"


SAME_MEASURE = {"beta_rise": "beta_difference", "beta_rise_whole": "beta_difference_whole"}
SAME_MEASURE |= {"closed_more": "closed_difference"}
SAME_ARM = {"EMTC(QPLEX)": "EMTC", "EMU(QPLEX)": "EMU", "EMTC(QPLEX), prewrite": "EMTC with prewrite", "": None}


def compare_with_reference(db: Database, plan: str, *, adjusted: bool) -> int:
    """Compare every finding with the independent recomputation; return how many were compared."""
    assert db.path is not None
    rows = {(row["task"], row["measure"], row["first"], row["second"]): row for row in recompute(db.path, plan)}
    (study,) = (each for each in compute_findings(db, select_runs(db)) if each.plan is not UNPLANNED)
    compared = 0
    for finding in study.findings:
        measure = SAME_MEASURE.get(finding.measure.name, finding.measure.name)
        names = [SAME_ARM.get(name, name) for name in (finding.first, finding.second)]
        task = "all" if finding.task == ALL_TASKS else finding.task
        if measure.startswith("r2"):  # needs embeddings, which plain SQL does not read
            continue
        row, difference = rows[(task, measure, *names)], finding.difference
        expected = [row["estimate"], row["low"], row["high"], row["p"], row["detectable"]]
        numbers = [difference.estimate, difference.low, difference.high, difference.p, difference.detectable_difference]
        if finding.task != ALL_TASKS:
            expected.append(row["p_randomization"])
            numbers.append(difference.randomization_p)
        if adjusted:
            expected.append(row["p_adjusted"])
            numbers.append(finding.adjusted_p)
            assert finding.verdict == row["verdict"], (task, measure)
        expected = [np.nan if each is None else each for each in expected]
        assert numbers == pytest.approx(expected, rel=1e-6, abs=1e-9, nan_ok=True), (task, measure, *names)
        compared += 1
    return compared


def test_an_independent_script_computes_the_same_claims_of_the_shipped_study(shipped: Database) -> None:
    assert compare_with_reference(shipped, "first", adjusted=False) > 40


@pytest.mark.ci
def test_an_independent_script_computes_the_same_verdicts_of_the_study_of_the_parts() -> None:
    with report.open_study(get_shipped_plan("parts")) as (db, rows):
        assert len(rows) == N_PLANNED["parts"]
        assert compare_with_reference(db, "parts", adjusted=True) == 12
