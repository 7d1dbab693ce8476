"""Several runs as lines of one figure: variants with the curve of each seed. Between the queries and the figures.

What lives here: which quantity is drawn and whose curves belong together. What does not: SQL, statistics, drawing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from app.figures.chart import column
from app.seed_statistics import Curve, mu_w_curve
from app.variants import Variant, group_variants
from emtc_core.metrics import METRICS

MU_W_MEANING = "time average of the win rate from the first evaluation to t (area under the curve, trapezoid rule)"


@dataclass(frozen=True)
class Quantity:
    """What stands on the y axis."""

    key: str
    title: str
    unit: str
    meaning: str
    column: str = "value"
    range: tuple[float, float] | None = None

    @property
    def is_evaluation(self) -> bool:
        """Whether it comes from greedy evaluations, not from what training logs."""
        return self.key in EVALUATED


_UNIT_RANGE = (-0.03, 1.03)
_WON = "share of greedy evaluation episodes won"
_RETURN = "mean undiscounted return of greedy evaluation episodes"
WIN_RATE = Quantity("win_rate", "win rate", "fraction", _WON, "win_rate", _UNIT_RANGE)
MU_W = Quantity("mu_w", "μ̄_w", "fraction", MU_W_MEANING, "win_rate", _UNIT_RANGE)
RETURN = Quantity("return", "episode return", "env return", _RETURN, "return_mean")
LENGTH = Quantity("length", "episode length", "env steps", "mean length of greedy evaluation episodes", "length_mean")
EVALUATED = {each.key: each for each in (WIN_RATE, MU_W, RETURN, LENGTH)}


@dataclass(frozen=True)
class Group:
    """One variant with the curve of each of its seeds that has a point."""

    variant: Variant
    curves: tuple[Curve, ...]
    run_ids: tuple[str, ...]

    @property
    def n(self) -> int:
        """How many seeds have a curve."""
        return len(self.curves)


def find_quantity(key: str) -> Quantity:
    """Find what a key draws: an evaluated quantity or a logged metric; the win rate for anything else."""
    if key in METRICS:
        known = METRICS[key]
        return Quantity(key, key, known.unit, known.meaning)
    return EVALUATED.get(key, WIN_RATE)


def group_curves(
    configs: Mapping[str, Mapping[str, Any]], frame: pd.DataFrame, quantity: Quantity = WIN_RATE
) -> list[Group]:
    """Split the rows of many runs into variants and seeds; a variant without a point is left out.

    Args:
        configs: Run id → configuration as stored.
        frame: run_id, env_step and the quantity's column, as `storage.queries.compare` gives them.
        quantity: What is drawn.
    """
    rows = frame.loc[frame[quantity.column].notna(), :]
    curves = {
        str(run_id): Curve(column(part, "env_step"), column(part, quantity.column))
        for run_id, part in rows.groupby("run_id", sort=False)
    }
    groups = []
    for variant in group_variants(configs):
        known = tuple(run_id for run_id in variant.run_ids if run_id in curves)
        if known:
            seeds = (curves[run_id] for run_id in known)
            groups.append(Group(variant, tuple(map(mu_w_curve, seeds) if quantity is MU_W else seeds), known))
    return groups


def list_tasks(groups: Sequence[Group]) -> list[str]:
    """List the tasks, each a panel of its own, in order."""
    return list(dict.fromkeys(group.variant.task for group in groups))


def name_line(groups: Sequence[Group], method: str) -> str:
    """Name a method with its number of seeds, the same in every panel: "qmix (n = 5)", "qmix (n = 3 to 5)"."""
    counts = [group.n for group in groups if group.variant.method == method]
    low, high = min(counts), max(counts)
    return f"{method} (n = {low})" if low == high else f"{method} (n = {low} to {high})"


def default_times(groups: Sequence[Group]) -> list[int]:
    """Choose where mu_w is read: the paper's 0.8M, 1.6M and 2.4M if every run reached them, else quarters.

    The quarters are of the stretch that every run reached: a quarter, a half and all of it.
    """
    reached = min((curve.steps[-1] for group in groups for curve in group.curves), default=0.0)
    paper = [800_000, 1_600_000, 2_400_000]
    if reached >= paper[-1]:
        return paper
    return [int(reached * share) for share in (0.25, 0.5, 1.0)] if reached else []
