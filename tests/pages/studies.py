"""The confirmatory study as its sweep files plan it, with made-up curves for the seeds that are to be finished."""

from collections.abc import Collection

import numpy as np
from sqlalchemy import insert, update

from app.jobs.sweeps.control import create_sweep
from app.jobs.sweeps.file import find_sweep_file
from app.jobs.sweeps.plan import make_plan
from storage.engine import Database
from storage.models import Evaluation, MetricRow, Run
from storage.runs.rows import RunRow
from storage.runs.sweeps import sweep_runs

FOOTBALL, SKIRMISH = "confirmatory-football", "confirmatory-3s-vs-5z"
_LEVELS = {"EMTC": 0.9, "No-TCGM": 0.88, "EMU": 0.4, "QPLEX": 0.6}
"""Last win rate of a variant, by the beginning of its label."""
_EVALUATIONS = 20


def seed_study(db: Database, template: str, *, finished: Collection[int], queued: Collection[int] = ()) -> list[RunRow]:
    """Plan a sweep of the confirmatory study and write the curves of some seeds.

    Args:
        db: An open database.
        template: `FOOTBALL` or `SKIRMISH`.
        finished: Seeds whose runs have finished.
        queued: Seeds whose runs wait.

    Returns:
        The runs of the sweep.
    """
    plan = make_plan(find_sweep_file(template))
    create_sweep(db, plan, jobs=1, remote=True, seeds={*finished, *queued})
    labels = {run.key: run.cell.label for run in plan.runs}
    for row in sweep_runs(db, plan.id):
        if row.seed in finished:
            _finish(db, row, labels[str(row.launch_token)])
    return sweep_runs(db, plan.id)


def _finish(db: Database, row: RunRow, label: str) -> None:
    level = next((value for name, value in _LEVELS.items() if label.startswith(name)), 0.5)
    rng = np.random.default_rng([row.seed, len(label)])
    rates = np.linspace(0, level, _EVALUATIONS) * rng.uniform(0.9, 1.1) + rng.normal(0, 0.03, _EVALUATIONS)
    steps = np.linspace(row.target_steps / _EVALUATIONS, row.target_steps, _EVALUATIONS).astype(int)
    evaluations = [
        {
            "run_id": row.id,
            "env_step": step,
            "episodes": 16,
            "wins": round(16 * rate),
            "win_rate": rate,
            "return_mean": rate,
            "return_std": 0.0,
            "length_mean": 20.0,
            "robust_win_rate": rate if row.env == "skirmish" else None,
        }
        for step, rate in zip(steps.tolist(), np.clip(rates, 0, 1).tolist(), strict=True)
    ]
    gaps = rng.normal(5, 3, _EVALUATIONS).tolist()
    metrics = [
        {"run_id": row.id, "env_step": step, "name": "eval/overestimation", "value": gap}
        for step, gap in zip(steps.tolist(), gaps, strict=True)
    ]
    ended = {"status": "finished", "env_steps": row.target_steps, "win_rate": evaluations[-1]["win_rate"]}
    with db.transaction() as connection:
        connection.execute(insert(Evaluation), evaluations)
        connection.execute(insert(MetricRow), metrics)
        connection.execute(update(Run).where(Run.id == row.id).values(**ended, versions={"commit": "c" * 40}))
