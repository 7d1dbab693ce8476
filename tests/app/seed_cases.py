"""Seeds with made-up curves, as `app.analysis.series` reads them from a database."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from app.analysis.aggregates import Curve
from app.analysis.series import SeedRun
from emtc_core.config.resolve import flatten_tree, resolve


def stored(*overrides: str, algo: str = "emtc-qplex", **arguments: Any) -> dict[str, Any]:
    """Make a configuration as a run stores it."""
    return resolve(algo=algo, overrides=list(overrides), **arguments).model_dump(mode="json")


def make_curve(steps: Sequence[float], values: Sequence[float]) -> Curve:
    """Make a curve of plain numbers."""
    return Curve(np.asarray(steps, float), np.asarray(values, float))


def make_seed(
    run_id: str,
    points: Sequence[tuple[float, float]],
    *overrides: str,
    status: str = "finished",
    env_steps: int = 1000,
    target_steps: int = 1000,
    made: float = 0.0,
    robust: Sequence[tuple[float, float]] = (),
    **arguments: Any,
) -> SeedRun:
    """Make one run with the greedy win rates (env step, value), and with its robust ones."""
    curve = make_curve([step for step, _ in points], [value for _, value in points])
    settings = flatten_tree(stored(*overrides, **arguments))
    shifted = make_curve([step for step, _ in robust], [value for _, value in robust])
    return SeedRun(run_id, settings, curve, status, env_steps, target_steps, made, robust=shifted)
