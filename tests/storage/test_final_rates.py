"""The final win rate that the database computes, against the one that the analysis computes from the evaluations."""

from datetime import UTC, datetime
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import delete, insert

from app.analysis.finals import LAST_TENTH, compute_final_rate
from app.analysis.rates import choose_rates
from storage.engine import Database
from storage.models import Evaluation, Run
from storage.queries.curves import evaluation_curves
from storage.queries.final_rates import read_final_rates
from storage.queries.run_search import RunFilter, matching_ids, run_page

N_RUNS = 5
RATES = st.one_of(st.integers(0, 16).map(lambda wins: wins / 16), st.sampled_from([0.1, 0.2, 0.3, 1 / 3]))


def make_run(run_id: str, *, status: str, env_steps: int, target_steps: int = 100) -> dict[str, Any]:
    return {
        "id": run_id, "name": run_id, "env": "skirmish", "map": "3m", "algo": "qmix", "seed": 1, "status": status,
        "env_steps": env_steps, "target_steps": target_steps, "created_at": datetime(2026, 1, 1, tzinfo=UTC),
        "tags": [], "notes": "", "versions": {}, "config": {},
    }  # fmt: skip


def make_evaluation(run_id: str, env_step: int, greedy: float | None, robust: float | None) -> dict[str, Any]:
    return {"run_id": run_id, "env_step": env_step, "win_rate": greedy, "robust_win_rate": robust}


def write(db: Database, runs: list[dict[str, Any]], evaluations: list[dict[str, Any]]) -> None:
    with db.transaction() as connection:
        connection.execute(delete(Run))
        connection.execute(insert(Run), runs)
        if evaluations:
            connection.execute(insert(Evaluation), evaluations)


@st.composite
def studies(draw: Any) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    runs, evaluations = [], []
    for number in range(N_RUNS):
        run_id, target_steps = f"r{number}", draw(st.sampled_from([0, 50, 95, 100, 101]))
        status, env_steps = draw(st.sampled_from([("finished", 100), ("running", 50), ("stopped", 100)]))
        runs.append(make_run(run_id, status=status, env_steps=env_steps, target_steps=target_steps))
        has_robust = draw(st.sampled_from(["all", "none", "some"]))
        for env_step in sorted(draw(st.sets(st.integers(1, env_steps + 10), max_size=12))):
            greedy = draw(st.one_of(st.none(), RATES))
            robust = draw(RATES) if greedy is not None else None
            if has_robust == "none" or (has_robust == "some" and draw(st.booleans())):
                robust = None
            evaluations.append(make_evaluation(run_id, env_step, greedy, robust))
    return runs, evaluations


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(study=studies())
def test_the_final_rate_is_that_of_the_analysis_with_the_steps_so_far_as_the_budget_of_unfinished_runs(
    db: Database, study: tuple[list[dict[str, Any]], list[dict[str, Any]]]
) -> None:
    runs, evaluations = study
    write(db, runs, evaluations)
    ids = [run["id"] for run in runs]
    frame = evaluation_curves(db, ids)
    kinds = choose_rates(frame, {run_id: run_id for run_id in ids})  # each run is a task, so each has its own choice
    expected = {}
    for run in runs:
        if run["id"] in kinds:
            kind = kinds[run["id"]].rate
            column = "robust_win_rate" if kind == "robust" else "win_rate"
            points = frame[(frame["run_id"] == run["id"]) & frame[column].notna()]
            steps, rates = np.array(points["env_step"]), np.array(points[column])
            is_at_its_end = run["status"] == "finished" or run["env_steps"] >= run["target_steps"]
            budget = run["target_steps"] if is_at_its_end else run["env_steps"]
            expected[run["id"]] = compute_final_rate(steps, rates, budget=budget, rule=LAST_TENTH), kind
    assert read_final_rates(db, ids) == expected


def write_four_runs(db: Database) -> None:
    """A finished run, a run that trains, one with its evaluations far from the end, and one without evaluations."""
    write(
        db,
        [
            make_run("finished", status="finished", env_steps=100),
            make_run("training", status="running", env_steps=50),
            make_run("sparse", status="stopped", env_steps=80),
            make_run("empty", status="running", env_steps=50),
        ],
        [
            *(make_evaluation("finished", step, 1.0, 0.25 * i) for i, step in enumerate((50, 95, 100))),
            *(make_evaluation("training", step, rate, None) for step, rate in ((40, 1.0), (46, 0.5), (50, 0.75))),
            *(make_evaluation("sparse", step, rate, rate) for step, rate in ((10, 0.0), (20, 0.5))),
        ],
    )


def test_runs_are_found_and_sorted_by_their_final_rate(db: Database) -> None:
    write_four_runs(db)
    page = run_page(db, RunFilter(text="final_rate>0.4"), sort="-final_rate").frame
    assert page[["id", "final_rate", "final_rate_episodes"]].to_numpy().tolist() == [
        ["training", 0.625, "greedy"],
        ["sparse", 0.5, "robust"],
    ]
    assert matching_ids(db, RunFilter(), sort="final_rate") == ["finished", "sparse", "training", "empty"]
    assert matching_ids(db, RunFilter(text="final_rate=none")) == ["empty"]
