"""A database of many evaluated runs, written in bulk: variants × maps × seeds with ramps towards known win rates."""

from datetime import UTC, datetime

import numpy as np
from sqlalchemy import insert

from emtc_core.config.resolve import resolve
from storage.engine import Database
from storage.models import Evaluation, MetricRow, Run

MADE_AT = datetime(2026, 1, 1, tzinfo=UTC)


def seed_runs(
    db: Database,
    *,
    algos: tuple[str, ...] = ("emtc-qplex", "qmix"),
    maps: tuple[str, ...] = ("3m", "corridor"),
    seeds: int = 2,
    evaluations: int = 5,
    overrides: tuple[str, ...] = (),
    prefix: str = "r",
) -> list[str]:
    """Write finished runs that evaluated every 10,000 steps; the seed shifts the steps a little. Return their ids."""
    runs, curves, metrics = [], [], []
    for algo in algos:
        for map in maps:
            for seed in range(1, seeds + 1):
                run_id = f"{prefix}{len(runs):04d}"
                steps = np.arange(evaluations) * 10_000 + 100 + seed
                rates = np.linspace(0, 1 - 0.1 * seed, evaluations)
                runs.append(_run(run_id, algo, map, seed, int(steps[-1]), float(rates[-1]), overrides))
                curves += [_evaluation(run_id, *point) for point in zip(steps.tolist(), rates.tolist(), strict=True)]
                metrics += [
                    {"run_id": run_id, "env_step": step, "name": "train/loss", "value": 1.0} for step in steps.tolist()
                ]
    with db.transaction() as connection:
        connection.execute(insert(Run), runs)
        connection.execute(insert(Evaluation), curves)
        connection.execute(insert(MetricRow), metrics)
    return [run["id"] for run in runs]


def _run(run_id: str, algo: str, map: str, seed: int, steps: int, rate: float, overrides: tuple[str, ...]) -> dict:
    config = resolve(algo=algo, map=map, seed=seed, overrides=overrides).model_dump(mode="json")
    identity = {"id": run_id, "name": f"{algo} {map} seed {seed}", "env": "skirmish", "map": map, "algo": algo}
    state = {"seed": seed, "status": "finished", "env_steps": steps, "target_steps": steps, "created_at": MADE_AT}
    outcome = {"win_rate": rate, "return_mean": 10 * rate, "tags": ["paper"] if algo == "qmix" else []}
    return identity | state | outcome | {"notes": "", "versions": {"emtc_lab": "test"}, "config": config}


def _evaluation(run_id: str, step: int, rate: float) -> dict:
    outcome = {"win_rate": rate, "return_mean": 10 * rate, "return_std": 0.0, "length_mean": 20.0}
    return {"run_id": run_id, "env_step": step, "episodes": 10, "wins": round(10 * rate)} | outcome
