"""The table of the study of readings, by hand: two seeds with a gate, two without."""

from contextlib import closing

import pytest

from app.figures.registry import TABLES
from storage.engine import Database, open_database
from storage.recording.writer import DatabaseRecorder
from storage.runs.sweeps import sweep_runs
from tests.app.sweep_cases import seed_sweep

READINGS = """
name = "Readings"
steps = 1000
seeds = 2
[[variant]]
name = "paper"
[[variant]]
name = "wide"
preset = "wide"
[[variant]]
name = "wide, gate off"
preset = "wide"
set = { gate.enabled = false }
"""
GATED = {
    "gate/incentive_removed": 0.2, "gate/closed_fraction": 0.1, "gate/beta_new": 0.9, "memory/merge_rate": 0.5,
    "eval/overestimation": 3.0,
}  # fmt: skip


@pytest.fixture
def study(tmp_path) -> tuple[Database, list]:
    db = open_database(f"sqlite:///{tmp_path / 'x.db'}")
    rows = sweep_runs(db, seed_sweep(db, READINGS))
    for row in rows:
        values = GATED if row.config["gate"]["enabled"] else {"eval/overestimation": 5.0}
        with closing(DatabaseRecorder(db, row.id)) as recorder:
            for step, factor in ((500, 1.0), (1000, 1.0 + row.seed)):  # means: 1.5 and 2 times for seeds 1 and 2
                recorder.record_metrics(step, {name: value * factor for name, value in values.items()})
    return db, sweep_runs(db, rows[0].sweep_id)


def test_each_variant_says_what_its_gate_removed_and_how_far_q_is_off(study):
    db, rows = study
    frame = TABLES["gate-readings"].make(db, rows).frame
    by_name = frame.set_index("variant")
    gated = next(name for name in by_name.index if "wide" in name and "TCGM" not in name)
    row = by_name.loc[gated]
    assert row["incentive removed [%]"].startswith("35.0 [1.1–96.1]")
    assert row["states merged [%]"].startswith("87.5")
    assert row["overestimation [return]"].startswith("5.25 [-4.28–14.78]")
    off = by_name.loc[next(name for name in by_name.index if "TCGM" in name)]
    assert off["incentive removed [%]"] == "–"
    assert off["overestimation [return]"].startswith("8.75")
    assert set(frame["n"]) == {2}


def test_runs_without_a_memory_have_no_row(study):
    db, _ = study
    assert len(TABLES["gate-readings"].make(db, [])) == 0
