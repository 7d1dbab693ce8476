"""Runs with made-up evaluations, as `app.analysis.curves` reads them from a database."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd

from app.analysis.curves import Curves, RunTables, read_quantity
from app.analysis.quantities import WIN_RATE, Quantity
from app.analysis.results import select_results
from app.analysis.settings import Settings
from app.analysis.x_axes import ENV_STEPS
from emtc_core.config.resolve import flatten_tree, resolve


@dataclass(frozen=True)
class RunCase:
    """One run with its greedy win rates, the robust ones of some evaluations, and the counts of different episodes."""

    id: str
    config: dict[str, Any]
    points: tuple[tuple[float, float], ...]
    status: str = "finished"
    env_steps: int = 1000
    target_steps: int = 1000
    created_s: float = 0.0
    robust: dict[float, float] = field(default_factory=dict)
    distinct: tuple[float, ...] = ()

    @property
    def settings(self) -> Settings:
        return flatten_tree(self.config)

    def make_row(self) -> Any:
        return SimpleNamespace(
            id=self.id, config=self.config, versions={}, live_status=self.status, env_steps=self.env_steps,
            target_steps=self.target_steps, created_at=datetime.fromtimestamp(self.created_s, UTC),
        )  # fmt: skip


def stored(*overrides: str, algo: str = "emtc-qplex", **arguments: Any) -> dict[str, Any]:
    """Make a configuration as a run stores it."""
    return resolve(algo=algo, overrides=list(overrides), **arguments).model_dump(mode="json")


def make_run(
    run_id: str,
    points: Sequence[tuple[float, float]],
    *overrides: str,
    status: str = "finished",
    env_steps: int = 1000,
    target_steps: int = 1000,
    made: float = 0.0,
    robust: Sequence[tuple[float, float]] = (),
    **arguments: Any,
) -> RunCase:
    """Make one run with the greedy win rates (env step, value), and with its robust ones."""
    config = stored(*overrides, **arguments)
    return RunCase(run_id, config, tuple(points), status, env_steps, target_steps, made, dict(robust))


def make_tables(cases: Sequence[RunCase]) -> RunTables:
    """Make the tables of these runs. Every metric has the values of the greedy win rate."""
    rows = []
    for case in cases:
        distinct = case.distinct or (np.nan,) * len(case.points)
        for (step, value), count in zip(case.points, distinct, strict=True):
            rows.append((case.id, step, value, case.robust.get(step, np.nan), np.nan, np.nan, np.nan, count))
    columns = (
        *("run_id", "env_step", "win_rate", "robust_win_rate"),
        *("return_mean", "length_mean", "episodes", "distinct"),
    )
    evaluations = pd.DataFrame(rows, columns=pd.Index(columns))
    metric = evaluations[["run_id", "env_step"]].assign(value=evaluations["win_rate"])
    return RunTables({case.id: case.make_row() for case in cases}, evaluations, lambda _: metric, lambda _: ENV_STEPS)


def read_cases(cases: Sequence[RunCase], quantity: Quantity = WIN_RATE) -> Curves:
    """Read the curves of all runs."""
    return read_quantity(make_tables(cases), quantity)


def join(cases: Sequence[RunCase], quantity: Quantity = WIN_RATE, **selection: bool) -> Curves:
    """Read the curves and select the runs that count; `selection` is that of `select_results`."""
    return select_results(read_cases(cases, quantity), **selection)
