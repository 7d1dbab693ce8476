"""Figures and tables over seeds: learning curves, mu_w, baselines, ablation; final win rates, falls."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from app.analysis.quantities import EVALUATED, MU_W, WIN_RATE, Quantity, find_quantity
from app.analysis.series import Comparison, default_times, read_comparison, read_seeds, settle
from app.analysis.settings import name_algo
from app.analysis.tables import describe_table
from app.analysis.win_rates import tabulate_falls, tabulate_mu_w, tabulate_win_rates
from app.figures.figure import OF_ANY_RATE, OVER_SEEDS, WINDOW, FigureKind, Options, Own, TableKind
from app.figures.kinds.chart import Chart
from app.figures.learning_curves import draw_comparison
from emtc_core.errors import ConfigError
from emtc_core.metrics import METRICS
from storage.engine import Database
from storage.queries.runs import list_runs
from storage.runs.rows import RunRow

BASELINES = ("emtc-qplex", "emtc-cds", "dmix", "mappo")
_PARTS = "No-TCGM: β = 1 everywhere. No-TCSE: the autoencoder alone, without contrast."


def _learning_curves(db: Database, rows: Sequence[RunRow], options: Options) -> Chart:
    quantity, each = options.get("quantity", WIN_RATE), options.get("each", False)
    return _draw(db, rows, options, quantity, "learning-curves", per_seed=each)


def _mu_w(db: Database, rows: Sequence[RunRow], options: Options) -> Chart:
    return _draw(db, rows, options, MU_W, "mu-w")


def _ablation(db: Database, rows: Sequence[RunRow], options: Options) -> Chart:
    return _draw(db, rows, options, WIN_RATE, "ablation", "Ablation", _PARTS)


def _baselines(db: Database, rows: Sequence[RunRow], options: Options) -> Chart:
    chosen = [row for row in rows if row.algo in BASELINES]
    if not chosen:
        raise ConfigError(f"baselines compares {', '.join(BASELINES)}, and no chosen run is one of them.")
    missing = [name_algo(algo) for algo in BASELINES if algo not in {row.algo for row in chosen}]
    note = f"Not run: {', '.join(missing)}." if missing else ""
    return _draw(db, chosen, options, WIN_RATE, "baselines", "EMTC against DMIX and MAPPO", note)


def _draw(
    db: Database,
    rows: Sequence[RunRow],
    options: Options,
    quantity: Quantity,
    name: str,
    title: str = "",
    note: str = "",
    *,
    per_seed: bool = False,
) -> Chart:
    comparison = read_comparison(db, rows, quantity, include_unfinished=options.include_unfinished)
    if not comparison.groups:
        raise ConfigError(f"Run {rows[0].id} has no evaluation yet. Wait for its first, or name another.")
    return draw_comparison(comparison, options.reading, per_seed=per_seed, name=name, title=title, note=note)


def _win_rates(db: Database, rows: Sequence[RunRow], options: Options) -> pd.DataFrame:
    return tabulate_win_rates(_finals(db, rows, options), options.reading, options.final_rule)


def _falls(db: Database, rows: Sequence[RunRow], options: Options) -> pd.DataFrame:
    return tabulate_falls(_finals(db, rows, options), options.reading)


def _finals(db: Database, rows: Sequence[RunRow], options: Options) -> Comparison:
    seeds, rated = read_seeds(db, rows, options.rated), options.rated
    return settle(seeds, rated, include_unfinished=options.include_unfinished, final=True)


def _mu_w_table(db: Database, rows: Sequence[RunRow], options: Options) -> pd.DataFrame:
    seeds = read_seeds(db, rows)
    everything = settle(seeds, include_unfinished=True)
    results = everything if options.include_unfinished else settle(seeds, final=True)
    return tabulate_mu_w(everything, default_times(results.groups or everything.groups), options.reading)


def _runs(db: Database, rows: Sequence[RunRow], options: Options) -> pd.DataFrame:
    columns = ["id", "name", "env", "map", "algo", "seed", "status", "env_steps", "target_steps", "win_rate"]
    return describe_table(
        list_runs(db, limit=None).loc[:, columns], caption="win_rate is that of a run's last evaluation."
    )


def _read_quantity(key: Any) -> Quantity:
    if key not in (*EVALUATED, *METRICS):
        raise ValueError(key)
    return find_quantity(key)


FIGURES = (
    FigureKind(
        "learning-curves", _learning_curves, OVER_SEEDS, question="How do variants learn, over seeds?",
        own=(
            WINDOW,
            Own("quantity", _read_quantity, "win_rate, mu_w, return_mean or the name of a metric"),
            Own("each", bool, "true or false: a thin line for every run"),
        ),
    ),
    FigureKind(
        "baselines", _baselines, OVER_SEEDS, question="How does EMTC stand against DMIX and MAPPO?", pages=("compare",)
    ),
    FigureKind("mu-w", _mu_w, OVER_SEEDS, question="How does the area under the curve grow?", pages=("compare",)),
    FigureKind(
        "ablation", _ablation, OVER_SEEDS, question="What does each part of EMTC contribute?", pages=("compare",)
    ),
)  # fmt: skip
TABLES = (
    TableKind("runs", _runs, takes_runs=False),
    TableKind("win-rates", _win_rates, OF_ANY_RATE),
    TableKind("falls", _falls, OVER_SEEDS),
    TableKind("mu-w", _mu_w_table, OVER_SEEDS),
)
