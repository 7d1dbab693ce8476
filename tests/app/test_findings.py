"""Findings: numbers of each run by hand, intervals against textbook formulas, verdicts as the plan words them."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.stats import ttest_1samp, ttest_ind
from sqlalchemy import update

from app.analysis.comparable import select_runs
from app.analysis.findings import CLAIMS, EMTC, MU_W, NO_TCGM, Finding, find_all, judge, welch_interval
from app.analysis.tables import export_table
from app.figures.registry import TABLES
from app.jobs.launch import EXAMPLE_STUDY
from app.jobs.sweeps.file import find_sweep_file
from app.jobs.sweeps.plan import make_plan
from emtc_core.config.resolve import flatten_tree, resolve
from storage.bundles.bundle_cache import Bundle, cache_bundle
from storage.engine import Database, open_database
from storage.models import SUMMARY_STEPS, EpisodeRow, Run
from storage.queries.gate import closed_by_outcome, gate_parts
from storage.recording.writer import DatabaseRecorder
from storage.runs.changes import create_run
from storage.runs.rows import RunRow, find_run
from tests.storage.records import CONFIG, make_evaluation, record_episodes

ROOT = Path(__file__).parents[2]
numbers = st.lists(st.floats(-2, 2).map(lambda x: round(x, 3)), min_size=2, max_size=6)
HELPS, FALLS = CLAIMS[2], CLAIMS[4]
BASE = Finding(HELPS, "3m", "a", "b", MU_W, (3, 3), 0.2, 0.1, 0.3, 1.0)


@given(x=numbers, y=numbers)
def test_an_interval_is_that_of_welch(x: list[float], y: list[float]) -> None:
    a, b = np.array(x), np.array(y)
    low, high = welch_interval(a, b)
    assume(min(np.ptp(a), np.ptp(b)) > 1e-3)  # scipy warns of equal numbers
    assert (low, high) == pytest.approx(tuple(ttest_ind(a, b, equal_var=False).confidence_interval(0.95)), abs=1e-9)
    assert welch_interval(a, None) == pytest.approx(tuple(ttest_1samp(a, 0.0).confidence_interval(0.95)), abs=1e-9)


def test_equal_seeds_differ_by_exactly_their_difference() -> None:
    assert welch_interval(np.full(3, 0.75), np.full(4, 0.5)) == (0.25, 0.25)


def test_one_seed_has_no_interval_and_decides_nothing() -> None:
    low, high = welch_interval(np.array([0.5]), np.array([0.1, 0.2]))
    assert math.isnan(low)
    assert math.isnan(high)
    assert replace(BASE, n=(1, 2), low=low, high=high).verdict == "cannot tell"


@pytest.mark.parametrize(
    ("low", "high", "n", "said"),
    [
        (0.1, 0.3, (3, 3), "held"),
        (0.1, 0.3, (2, 3), "cannot tell"),
        (-0.1, 0.3, (3, 3), "cannot tell"),
        (-0.3, -0.1, (3, 3), "not held"),
        (-0.04, 0.04, (5, 5), "not held"),
        (0.0, 0.3, (5, 5), "cannot tell"),
    ],
)
def test_a_verdict_on_a_map_is_worded_as_in_the_plan(low: float, high: float, n: tuple[int, int], said: str) -> None:
    assert replace(BASE, low=low, high=high, n=n).verdict == said


def test_a_claim_of_a_fall_is_held_by_an_interval_below_zero() -> None:
    falls = replace(BASE, claim=FALLS, measure=FALLS.measures[0], n=(3,))
    assert replace(falls, low=-1.0, high=-0.5).verdict == "held"
    assert replace(falls, low=-0.01, high=0.01).verdict == "cannot tell", "only win rates can be equal in practice"


def test_a_claim_is_judged_over_the_maps_that_have_enough_seeds() -> None:
    def over(*maps: Finding) -> str:
        return judge(maps)[HELPS.text]

    unclear, few = replace(BASE, task="2s3z", low=-0.1), replace(BASE, task="MMM2", low=-0.3, high=-0.1, n=(2, 2))
    assert over(BASE) == "held"
    assert over(BASE, few) == "held"
    assert over(few) == "cannot tell"
    assert over(BASE, unclear) == "cannot tell"
    assert over(BASE, unclear, replace(BASE, task="3s_vs_5z", low=-0.3, high=-0.1)) == "not held"


def add_run(db: Database, seed: int, wins: int, *settings: str) -> RunRow:
    config = resolve(algo="emtc-qplex", map="3m", seed=seed, overrides=list(settings))
    run_id = create_run(db, config.model_dump(mode="json"), target_steps=40, versions={"emtc-lab": "0.1.0"})
    recorder = DatabaseRecorder(db, run_id)
    record_episodes(recorder, 4)
    for step in (10, 20, 30, 40):
        recorder.record_evaluation(make_evaluation(step, wins=wins))
    recorder.close()
    with db.transaction() as connection:
        connection.execute(update(Run).where(Run.id == run_id).values(status="finished"))
    return find_run(db, run_id)


def test_a_study_of_three_seeds_is_found_and_told(tmp_path: Path) -> None:
    db = open_database(f"sqlite:///{tmp_path / 'x.db'}")
    rows = [add_run(db, seed, 3) for seed in (1, 2, 3)]
    rows += [add_run(db, seed, 1 + seed % 2, "gate.enabled=false") for seed in (1, 2, 3)]
    found, _ = find_all(db, rows)
    first = next(each for each in found if each.measure is MU_W)
    assert (first.first, first.second, first.n) == (EMTC.name, NO_TCGM.name, (3, 3))
    assert first.difference == pytest.approx(0.75 - (0.5 + 0.25 + 0.5) / 3)
    assert first.improvement == 1.0
    assert (first.low, first.high) == pytest.approx(welch_interval(np.full(3, 0.75), np.array([0.5, 0.25, 0.5])))
    table = TABLES["findings"].make(db, rows)
    shown = table[table["measure"] == MU_W.title].iloc[0]
    assert shown["claim"] == "3. The gate helps"
    assert shown["verdict"] == judge(found)[HELPS.text]
    db.dispose()


def test_closed_gates_are_counted_from_the_first_win_on(tmp_path: Path) -> None:
    db = open_database(f"sqlite:///{tmp_path / 'x.db'}")
    run_id = create_run(db, CONFIG, target_steps=60, versions={"emtc-lab": "0.1.0"})
    recorder = DatabaseRecorder(db, run_id)
    record_episodes(recorder, 6)
    recorder.close()
    with db.transaction() as connection:
        connection.execute(update(EpisodeRow).where(EpisodeRow.episode == 1).values(won=False))
    with db.read() as connection:
        steps = pd.read_sql("SELECT episode, beta FROM transitions WHERE episode >= 3", connection)
    expected = steps.assign(won=steps["episode"] % 2 == 1, closed=steps["beta"] < 0.5).groupby("won")["closed"]
    found = closed_by_outcome(db, [run_id]).assign(won=lambda frame: frame["won"].astype(bool)).set_index("won")
    assert found["closed"].to_dict() == expected.sum().to_dict()
    assert found["steps"].to_dict() == expected.count().to_dict()
    db.dispose()


def test_parts_of_a_training_are_means_over_its_transitions(tmp_path: Path) -> None:
    db = open_database(f"sqlite:///{tmp_path / 'x.db'}")
    steps = 4 * SUMMARY_STEPS
    run_id = create_run(db, CONFIG, target_steps=steps, versions={"emtc-lab": "0.1.0"})
    recorder = DatabaseRecorder(db, run_id)
    record_episodes(recorder, 8, length=SUMMARY_STEPS // 2)
    recorder.close()
    with db.read() as connection:
        every = pd.read_sql("SELECT env_step, delta_mem, beta FROM transitions", connection)
    part = ((every["env_step"] - 1) * 2) // steps
    found = gate_parts(db, [run_id], 2).set_index("part")
    for name in ("delta_mem", "beta"):
        np.testing.assert_allclose(found[name], every[name].groupby(part).mean())
    db.dispose()


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """The shipped study, looked through as a stranger's."""
    return cache_bundle(EXAMPLE_STUDY, cache=tmp_path_factory.mktemp("checked"))


@pytest.mark.ci
def test_the_guide_quotes_what_the_shipped_study_holds(checked: Bundle, tmp_path: Path) -> None:
    ours = cache_bundle(EXAMPLE_STUDY, cache=tmp_path, is_ours=True)
    assert ours.study.read_bytes() == checked.study.read_bytes()
    db = open_database(checked.url, read_only=True)
    table = TABLES["findings"].make(db, select_runs(db))
    told = export_table(
        table[["claim", "task", "compared", "measure", "n", "difference", "verdict"]], "markdown"
    ).decode()
    guide = (ROOT / "app" / "guide" / "findings.md").read_text()
    rows = [line for line in told.splitlines() if line.startswith("| ")]
    assert len(rows) > 3
    assert [row for row in rows if row not in guide] == []
    assert EXAMPLE_STUDY.stat().st_size < 12_000_000
    db.dispose()


def test_the_shipped_runs_are_those_of_the_plan(checked: Bundle) -> None:
    db = open_database(checked.url, read_only=True)
    wanted = [
        flatten_tree(run.config.model_dump(mode="json"))
        for name in "abcd"
        for run in make_plan(find_sweep_file(f"first-study-{name}")).runs
    ]  # fmt: skip
    for row in select_runs(db):
        there = flatten_tree(row.config)
        assert any(all(there[key] == each[key] for key in there.keys() & each.keys()) for each in wanted), row.name
        assert row.env_steps >= row.target_steps == there["train.t_max"]
    db.dispose()
