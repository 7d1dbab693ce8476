"""Tables of results as the paper prints them: variants × maps, best in bold, missing cells as a dash.

What lives here: which rows a table needs and how seeds are quoted in a cell. What does not: formats (`app.tables`),
statistics (`app.seed_statistics`).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from app.comparison import Group, default_times, group_curves, list_tasks
from app.seed_statistics import Curve, Reading, mu_w
from app.tables import MISSING, NESTED, describe_table
from storage.engine import Database
from storage.queries.compare import evaluation_curves
from storage.queries.runs import list_runs, run_configs

EVERY_RUN = 1_000_000
Configs = Mapping[str, Mapping[str, Any]]


def make_runs_table(db: Database) -> pd.DataFrame:
    """List every run, newest first."""
    columns = ["id", "name", "env", "map", "algo", "seed", "status", "env_steps", "target_steps", "win_rate"]
    return list_runs(db, limit=EVERY_RUN).loc[:, columns]


def make_win_rates_table(
    db: Database, run_ids: Sequence[str] | None = None, reading: Reading | None = None
) -> pd.DataFrame:
    """Give the last test win rate [%] over seeds: variants × maps.

    Args:
        db: An open database.
        run_ids: The runs; None takes every finished one.
        reading: How seeds become one number; None does what `eval.report` of the newest run of a cell says.
    """
    runs = list_runs(db, limit=EVERY_RUN)
    wanted = (runs["status"] == "finished") if run_ids is None else runs["id"].isin(list(run_ids))
    runs = runs.loc[wanted, :]
    frame = pd.DataFrame({"run_id": runs["id"], "env_step": runs["env_steps"], "win_rate": runs["win_rate"]})
    configs = run_configs(db, runs["id"].tolist())
    return tabulate_win_rates(group_curves(configs, frame), configs, reading)


def make_mu_w_table(db: Database, run_ids: Sequence[str] | None = None, reading: Reading | None = None) -> pd.DataFrame:
    """Give mu_w over seeds at the usual env steps: variants × (map, step). None takes every finished run."""
    chosen = _finished(db) if run_ids is None else run_ids
    groups = group_curves(run_configs(db, chosen), evaluation_curves(db, chosen))
    return tabulate_mu_w(groups, default_times(groups), reading)


def tabulate_win_rates(groups: Sequence[Group], configs: Configs, reading: Reading | None = None) -> pd.DataFrame:
    """Quote each seed's last test win rate [%]: variants × maps. How many seeds a cell has and should have is told."""

    def quote_cell(group: Group) -> str | None:
        rules = configs[group.run_ids[0]].get("eval", {})
        how = reading or (Reading("median", "iqr") if rules.get("report") == "median" else Reading())
        last = np.array([100 * curve.values[-1] for curve in group.curves])
        return f"{quote(last, how)} ({_count(group.n, rules)})"

    columns = {task: _by_method(groups, task, quote_cell) for task in list_tasks(groups)}
    how = str(reading) if reading else "mean ± standard deviation over seeds, or median [quartiles] by eval.report"
    return _tabulate(columns, f"Last test win rate [%]: {how}; n is the number of seeds. Bold is best, ties too.")


def tabulate_mu_w(groups: Sequence[Group], times: Sequence[int], reading: Reading | None = None) -> pd.DataFrame:
    """Quote mu_w at chosen env steps: variants × (map, step); each seed is integrated first.

    Args:
        groups: Variants with the win rates of their seeds.
        times: Env steps; a seed that has not got there is not counted.
        reading: How seeds become one number.
    """
    how = reading or Reading()

    def quote_at(t: int) -> Callable[[Group], str | None]:
        def quote_cell(group: Group) -> str | None:
            known = np.array([_mu_w_at(curve, t) for curve in group.curves])
            known = known[np.isfinite(known)]
            if not len(known):
                return None
            return f"{quote(known, how, digits=3)} (n = {len(known)})"

        return quote_cell

    columns = {
        f"{task}{NESTED}{show_steps(t)}": _by_method(groups, task, quote_at(t))
        for task in list_tasks(groups)
        for t in times
    }
    return _tabulate(
        columns,
        f"Normalised overall win rate at env steps: {how}; each seed is integrated from its first evaluation, then "
        "averaged; n is the number of seeds that got there. Bold is best, ties too.",
    )


def quote(values: np.ndarray, reading: Reading, digits: int = 1) -> str:
    """Quote numbers of seeds, "97.5 ± 1.0" or "97.5 [96.0–99.0]"; a single seed is just its number."""
    center, low, high = reading.summarize(values)
    if low is None or high is None:
        return f"{center:.{digits}f}"
    if reading.is_symmetric:
        return f"{center:.{digits}f} ± {center - low:.{digits}f}"
    return f"{center:.{digits}f} [{low:.{digits}f}–{high:.{digits}f}]"


def show_steps(steps: int) -> str:
    """Write env steps as a column's head: 0.8M, 52,340."""
    return f"{steps / 1e6:g}M" if steps and steps % 100_000 == 0 else f"{steps:,}"


def parse_steps(text: str) -> list[int]:
    """Read env steps as people write them, "0.8M, 50k, 1200"; nothing if any part is no number above 0."""
    steps = []
    for part in text.replace(";", ",").split(","):
        digits = part.strip().lower()
        scale = {"k": 1e3, "m": 1e6}.get(digits[-1:], 1.0)
        try:
            value = float(digits.rstrip("km")) * scale
        except ValueError:
            return []
        if not 0 < value < 1e12:
            return []
        steps.append(round(value))
    return sorted(set(steps))


def _finished(db: Database) -> list[str]:
    runs = list_runs(db, limit=EVERY_RUN)
    return [str(run_id) for run_id in runs.loc[runs["status"] == "finished", "id"]]


def _mu_w_at(curve: Curve, t: int) -> float:
    return float(mu_w(curve, np.array([float(t)]))[0])


def _count(n: int, rules: Mapping[str, Any]) -> str:
    """Tell how many seeds a cell rests on; fewer than wanted are told, "n = 2 of 5"."""
    wanted = int(rules.get("seeds", 5))
    return f"n = {n}" if n >= wanted else f"n = {n} of {wanted}"


def _by_method(groups: Sequence[Group], task: str, quote_cell: Callable[[Group], str | None]) -> dict[str, str | None]:
    return {group.variant.method: quote_cell(group) for group in groups if group.variant.task == task}


def _tabulate(columns: Mapping[str, Mapping[str, str | None]], caption: str) -> pd.DataFrame:
    """Lay cells out as variants × columns and find the best of each column."""
    methods = list(dict.fromkeys(method for column in columns.values() for method in column))
    best, texts = [], {}
    for name, column in columns.items():
        cells = [column.get(method) for method in methods]
        texts[name] = [cell or MISSING for cell in cells]
        # ties by what is printed, so that two equal numbers are never told apart
        shown = [cell.split(" ")[0] if cell else "" for cell in cells]
        top = max((float(text) for text in shown if text), default=None)
        best += [(i, name) for i, text in enumerate(shown) if text and len(methods) > 1 and float(text) == top]
    frame = pd.DataFrame({"variant": pd.Series(methods, dtype="object"), **texts})
    return describe_table(frame, caption=caption, best=best)
