"""Figures and tables over several runs: learning curves, mu_w, baselines; final win rates."""

from collections.abc import Callable, Sequence
from typing import Protocol

import pandas as pd

from app.comparison import MU_W, WIN_RATE, Quantity, group_curves
from app.figures.chart import Chart
from app.figures.learning import draw_comparison
from app.results import make_mu_w_table, make_runs_table, make_win_rates_table
from app.seed_statistics import Reading
from emtc_core.errors import ConfigError
from storage.engine import Database
from storage.queries.compare import evaluation_curves
from storage.runs import RunRow

BASELINES = ("emtc-qplex", "emtc-cds", "dmix", "mappo")


class SeedFigure(Protocol):
    """A figure over seeds: what its line and its band are can be chosen."""

    def __call__(self, db: Database, rows: Sequence[RunRow], reading: Reading | None = None) -> Chart:
        """Draw it for these runs."""
        ...


class SeedTable(Protocol):
    """A table over seeds: its runs and what a cell quotes can be chosen."""

    def __call__(
        self, db: Database, run_ids: Sequence[str] | None = None, reading: Reading | None = None
    ) -> pd.DataFrame:
        """Make it of these runs."""
        ...


def make_learning_curves(db: Database, rows: Sequence[RunRow], reading: Reading | None = None) -> Chart:
    """Draw the win rates of some runs; those that differ in nothing but their seed make one line."""
    return _draw(db, rows, WIN_RATE, reading, "learning-curves")


def make_mu_w(db: Database, rows: Sequence[RunRow], reading: Reading | None = None) -> Chart:
    """Draw mu_w, the time average of the win rate, over env steps."""
    return _draw(db, rows, MU_W, reading, "mu-w")


def make_baselines(db: Database, rows: Sequence[RunRow], reading: Reading | None = None) -> Chart:
    """Draw EMTC(QPLEX) and EMTC(CDS) against DMIX and MAPPO: the runs among `rows` that are one of these."""
    chosen = [row for row in rows if row.algo in BASELINES]
    if not chosen:
        raise ConfigError(f"baselines compares {', '.join(BASELINES)}, and no chosen run is one of them.")
    missing = [algo for algo in BASELINES if algo not in {row.algo for row in chosen}]
    note = f"Not run: {', '.join(missing)}." if missing else ""
    return _draw(db, chosen, WIN_RATE, reading, "baselines", "EMTC against DMIX and MAPPO", note)


def _draw(
    db: Database,
    rows: Sequence[RunRow],
    quantity: Quantity,
    reading: Reading | None,
    name: str,
    title: str = "",
    note: str = "",
) -> Chart:
    configs = {row.id: row.config for row in rows}
    groups = group_curves(configs, evaluation_curves(db, list(configs)), quantity)
    without = set(configs) - {run_id for group in groups for run_id in group.run_ids}
    if without:
        raise ConfigError(f"Run {min(without)} has no evaluation yet. Wait for its first, or leave it out.")
    return draw_comparison(groups, quantity, reading, name=name, title=title, note=note)


SEED_FIGURES: dict[str, SeedFigure] = {
    "learning-curves": make_learning_curves,
    "baselines": make_baselines,
    "mu-w": make_mu_w,
}
SEED_TABLES: dict[str, SeedTable] = {"win-rates": make_win_rates_table, "mu-w": make_mu_w_table}
FIGURES: dict[str, Callable[[Database, list[RunRow]], Chart]] = {**SEED_FIGURES}
TABLES: dict[str, Callable[[Database], pd.DataFrame]] = {"runs": make_runs_table, **SEED_TABLES}
