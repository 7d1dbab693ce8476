"""CSV tables: one row per evaluation, or the export of a chart of W&B, with one column per run.

A table has the columns algo, map, seed, step, and win_rate or return; optional columns are env, return_std, length and
episodes. An export of W&B has the x axis in its first column and columns "RUN - METRIC", "RUN - METRIC__MIN" and
"RUN - METRIC__MAX".
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pandas as pd

from app.jobs.imports.parsed_run import ParsedRun, SourceOverrides, find_first, make_series, parse_run_name
from app.jobs.imports.sacred import RETURNS as SACRED_RETURNS
from app.jobs.imports.sacred import WIN_RATES as SACRED_WIN_RATES
from app.jobs.imports.tensorboard import BENCHMARL_RETURNS, BENCHMARL_STEPS, EVENT_RETURNS, EVENT_WIN_RATES
from emtc_core.errors import ConfigError

WIN_RATES: Final = ("win_rate", "battle_won", *SACRED_WIN_RATES, *EVENT_WIN_RATES)
RETURNS: Final = ("return", "return_mean", "mean_episode_return", "episode_return", *SACRED_RETURNS, *EVENT_RETURNS)
_STEPS: Final = ("step", "env_step", "steps", "step_count")
_KEYS: Final = ("env", "algo", "map", "seed")
_REQUIRED_KEYS: Final = ("algo", "map", "seed")
_OPTIONAL: Final = {"return_std": "return_std", "length": "length_mean", "episodes": "episodes"}
"""Name in a table → column of `evaluations`."""
_WANDB_COLUMN: Final = re.compile(r"(?P<run>.+) - (?P<metric>[^ ].*?)(?P<edge>__MIN|__MAX)?")


def read_csv(path: Path, overrides: SourceOverrides) -> Iterator[ParsedRun | ConfigError]:
    """Read the runs of a table.

    Raises:
        ConfigError: If the file is not a table with the required columns.
    """
    try:
        cells = pd.read_csv(path, header=None, dtype=str, keep_default_na=False, encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path.name} is not a CSV table: {str(error).strip()}") from error
    header = [str(name).strip() for name in cells.iloc[0]]
    cells = cells.iloc[1:]
    if cells.empty:
        raise ConfigError(f"{path.name} has no row below its header")
    cells = cells.apply(lambda column: column.str.strip())
    if any(_WANDB_COLUMN.fullmatch(name) for name in header):
        yield from _read_wandb(path.name, header, cells, overrides)
    else:
        yield from _read_rows(path.name, header, cells, overrides)


def _read_rows(name: str, header: list[str], cells: pd.DataFrame, overrides: SourceOverrides) -> Iterator[ParsedRun]:
    """Read a table with one row per evaluation. Rows with the same env, algo, map and seed are one run."""
    repeated = next((column for column in header if header.count(column) > 1), None)
    if repeated is not None:
        raise ConfigError(f"{name} has two columns {repeated}")
    frame = cells.set_axis(header, axis=1)
    missing = [key for key in _REQUIRED_KEYS if key not in header and getattr(overrides, key) is None]
    step = find_first(_STEPS, header)
    if missing or step is None:
        names = ", ".join([*missing, *([] if step else ["step"])])
        raise ConfigError(
            f"{name} has no column {names}. A table needs algo, map, seed, step, and win_rate or return. An export of "
            'W&B needs its first column (the env steps) and a column "RUN - METRIC" for each run.'
        )
    possible_names = overrides.name_columns(WIN_RATES, RETURNS)
    names = {column: find_first(alternatives, header) for column, alternatives in possible_names.items()}
    names |= {column: name if name in header else None for name, column in _OPTIONAL.items()}
    frame = frame.assign(**{key: "" for key in _KEYS if key not in header})
    for _, run_rows in frame.groupby(list(_KEYS), sort=False):
        env, algo, map_name, seed = (str(text) for text in run_rows.iloc[0].loc[list(_KEYS)])
        texts = [algo, map_name, f"seed {seed}" if seed else ""]
        curves = {}
        for column, column_name in names.items():
            if column_name is not None:
                points = zip(run_rows[step], run_rows[column_name], strict=True)
                curves[column] = make_series((env_step, value) for env_step, value in points if value)
        where = f"{name} ({', '.join(filter(None, texts))})"
        yield ParsedRun(where, curves, env or None, map_name or None, algo or None, seed or None)


def _read_wandb(
    name: str, header: list[str], cells: pd.DataFrame, overrides: SourceOverrides
) -> Iterator[ParsedRun | ConfigError]:
    """Read the export of a chart of W&B. Algorithm, map and seed are in the names of the runs, or options."""
    possible_metrics = overrides.name_columns(WIN_RATES, RETURNS)
    column_of_metric = {metric: column for column, names in possible_metrics.items() for metric in names}
    curves: dict[tuple[str, int], dict[str, pd.Series]] = {}
    metrics: list[str] = []
    for position, text in enumerate(header):
        match = _WANDB_COLUMN.fullmatch(text)
        if position == 0 or match is None or match["edge"] or match["metric"] == "_step":
            continue
        metrics.append(match["metric"])
        column = column_of_metric.get(match["metric"])
        if column is not None:
            points = ((step, value) for step, value in zip(cells[0], cells[position], strict=True) if value)
            n_before = header[:position].count(text)  # several runs may have one name
            curves.setdefault((match["run"], n_before), {})[column] = make_series(points)
    if not curves:
        raise ConfigError(
            f"{name} has no column of a win rate or return, but {', '.join(sorted(set(metrics)))}. Keep the first "
            'column (the env steps) and the columns "RUN - METRIC" of one metric, and name the metric with --win-rate '
            "or --return."
        )
    if set(metrics) & set(BENCHMARL_RETURNS) and header[0] not in BENCHMARL_STEPS:
        raise ConfigError(
            f"{name} counts iterations of BenchMARL, not env steps. Set the x axis of the chart to "
            f"{BENCHMARL_STEPS[0]} and export it again, or import the JSON files of BenchMARL with --format marl-eval."
        )
    for number, ((run_name, n_before), run_curves) in enumerate(curves.items(), start=1):
        where = f"{name} ({run_name})" if n_before == 0 else f"{name} ({run_name}, column {n_before + 1})"
        if run_name.startswith("Group: "):
            yield ConfigError(f"{where} is the mean of a group of runs. Export the chart without grouping.")
            continue
        named = parse_run_name(run_name, overrides)
        seed = -number if named.seed is None else named.seed
        yield ParsedRun(where, run_curves, map=named.map, algo=named.algo, seed=seed)
