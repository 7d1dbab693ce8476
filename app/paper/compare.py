"""Figures and tables over several runs: learning curves, final win rates."""

from collections.abc import Callable

import pandas as pd

from app.figures.chart import Chart
from app.figures.learning import draw_learning_curves
from app.tables import make_runs_table, make_win_rates_table
from app.variants import label_variants
from emtc_core.errors import ConfigError
from storage.engine import Database
from storage.queries.curves import evaluations
from storage.runs import RunRow


def make_learning_curves(db: Database, rows: list[RunRow]) -> Chart:
    """Draw the win rates of some runs; those that differ in nothing but their seed make one line."""
    groups: dict[str, list] = {}
    labels = label_variants({row.id: row.config for row in rows})
    for row in rows:
        frame = evaluations(db, row.id)
        if frame.empty:
            raise ConfigError(f"Run {row.id} has no evaluation yet. Wait for its first, or leave it out.")
        groups.setdefault(labels[row.id], []).append(frame)
    return draw_learning_curves(groups)


FIGURES: dict[str, Callable[[Database, list[RunRow]], Chart]] = {"learning-curves": make_learning_curves}
TABLES: dict[str, Callable[[Database], pd.DataFrame]] = {"runs": make_runs_table, "win-rates": make_win_rates_table}
