"""Read CSV tables: one row per evaluation, or the export of a chart of W&B, with one column per run.

A table of the first kind has the columns algo, map, seed, step, and win_rate or return; optional columns are env,
return_std, length and episodes. An export of W&B has the x axis in its first column, and the columns "RUN - METRIC",
"RUN - METRIC__MIN" and "RUN - METRIC__MAX".
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import pandas as pd

from app.jobs.imports.parsed_run import ParsedRun, SourceOverrides, find_first, make_series
from app.jobs.imports.run_names import parse_run_name
from app.jobs.imports.sacred import RETURNS as SACRED_RETURNS
from app.jobs.imports.sacred import WIN_RATES as SACRED_WIN_RATES
from app.jobs.imports.tensorboard import BENCHMARL_RETURNS, BENCHMARL_STEPS, EVENT_RETURNS, EVENT_WIN_RATES
from emtc_core.errors import ConfigError

WIN_RATES: Final = ("win_rate", "battle_won", *SACRED_WIN_RATES, *EVENT_WIN_RATES)
RETURNS: Final = ("return", "return_mean", "mean_episode_return", "episode_return", *SACRED_RETURNS, *EVENT_RETURNS)
_STEPS: Final = ("step", "env_step", "steps", "step_count")
_KEYS: Final = ("env", "algo", "map", "seed")
_REQUIRED_KEYS: Final = ("algo", "map", "seed")
_OPTIONAL_COLUMNS: Final = {"return_std": "return_std", "length": "length_mean", "episodes": "episodes"}
"""Column of the CSV table → column of the database table `evaluations`."""
_WANDB_COLUMN: Final = re.compile(r"(?P<run>.+) - (?P<metric>[^ ].*?)(?P<bound>__MIN|__MAX)?")


def read_csv(file: Path, overrides: SourceOverrides) -> Iterator[ParsedRun | ConfigError]:
    """Read the runs of a table.

    Raises:
        ConfigError: If the file is not a table with the required columns.
    """
    try:
        cells = pd.read_csv(file, header=None, dtype=str, keep_default_na=False, encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file.name} is not a CSV table: {str(error).strip()}") from error
    header = [str(name).strip() for name in cells.iloc[0]]
    if len(cells) == 1:
        raise ConfigError(f"{file.name} has no row below its header")
    cells = cells.iloc[1:].apply(lambda column: column.str.strip())
    if any(_WANDB_COLUMN.fullmatch(name) for name in header):
        yield from _read_wandb(file.name, header, cells, overrides)
    else:
        yield from _read_rows(file.name, header, cells, overrides)


def _read_rows(name: str, header: list[str], cells: pd.DataFrame, overrides: SourceOverrides) -> Iterator[ParsedRun]:
    """Read a table with one row per evaluation. Rows with the same env, algo, map and seed are one run."""
    repeated = next((column for column in header if header.count(column) > 1), None)
    if repeated is not None:
        raise ConfigError(f"{name} has two columns {repeated}")
    frame = cells.set_axis(header, axis=1)
    missing = [key for key in _REQUIRED_KEYS if key not in header and getattr(overrides, key) is None]
    step_column = find_first(_STEPS, header)
    if step_column is None:
        missing.append("step")
    if missing:
        raise ConfigError(
            f"{name} has no column {', '.join(missing)}. A table needs algo, map, seed, step, and win_rate or return. "
            'An export of W&B needs its first column (the env steps) and a column "RUN - METRIC" for each run.'
        )
    csv_columns: dict[str, str] = {}  # column of the database table `evaluations` → column of the CSV table
    for target, source_names in overrides.list_source_names(WIN_RATES, RETURNS).items():
        csv_column = find_first(source_names, header)
        if csv_column is not None:
            csv_columns[target] = csv_column
    csv_columns |= {target: csv_column for csv_column, target in _OPTIONAL_COLUMNS.items() if csv_column in header}
    frame = frame.assign(**{key: "" for key in _KEYS if key not in header})
    for _, rows in frame.groupby(list(_KEYS), sort=False):
        env, algo, map_name, seed = (str(text) for text in rows.iloc[0].loc[list(_KEYS)])
        curves = {
            target: _make_curve(rows[step_column], rows[csv_column]) for target, csv_column in csv_columns.items()
        }
        labels = [algo, map_name, f"seed {seed}" if seed else ""]
        yield ParsedRun(
            description=f"{name} ({', '.join(filter(None, labels))})",
            curves=curves,
            env=env or None,
            map=map_name or None,
            algo=algo or None,
            seed=seed or None,
        )


def _make_curve(steps: Iterable[str], values: Iterable[str]) -> pd.Series:
    """Make a curve from two columns of a table. Rows with an empty value are skipped."""
    return make_series((step, value) for step, value in zip(steps, values, strict=True) if value)


def _read_wandb(
    name: str, header: list[str], cells: pd.DataFrame, overrides: SourceOverrides
) -> Iterator[ParsedRun | ConfigError]:
    """Read the export of a chart of W&B. Algorithm, map and seed are in the names of the runs, or set by the user."""
    targets: dict[str, str] = {}  # metric → column of the database table `evaluations`
    for target, source_names in overrides.list_source_names(WIN_RATES, RETURNS).items():
        targets |= dict.fromkeys(source_names, target)
    # Several runs may have the same name. The key of a run is therefore its name and the number of earlier columns with
    # the same header. The value contains the curves of the run: column of `evaluations` → curve.
    curves: dict[tuple[str, int], dict[str, pd.Series]] = {}
    metrics: list[str] = []
    for position, text in enumerate(header):
        match = _WANDB_COLUMN.fullmatch(text)
        if position == 0 or match is None:
            continue
        if match["bound"] or match["metric"] == "_step":
            continue
        metrics.append(match["metric"])
        target = targets.get(match["metric"])
        if target is not None:
            n_before = header[:position].count(text)
            run_curves = curves.setdefault((match["run"], n_before), {})
            run_curves[target] = _make_curve(cells[0], cells[position])
    if not curves:
        raise ConfigError(
            f"{name} has no column of a win rate or return. It has: {', '.join(sorted(set(metrics)))}. Keep the first "
            'column (the env steps) and the columns "RUN - METRIC" of one metric, and name the metric with --win-rate '
            "or --return."
        )
    if set(metrics) & set(BENCHMARL_RETURNS) and header[0] not in BENCHMARL_STEPS:
        raise ConfigError(
            f"{name} counts iterations of BenchMARL, not env steps. Set the x axis of the chart to "
            f"{BENCHMARL_STEPS[0]} and export it again, or import the JSON files of BenchMARL with --format marl-eval."
        )
    for number, ((run_name, n_before), run_curves) in enumerate(curves.items(), start=1):
        description = f"{name} ({run_name})" if n_before == 0 else f"{name} ({run_name}, column {n_before + 1})"
        if run_name.startswith("Group: "):
            yield ConfigError(f"{description} is the mean of a group of runs. Export the chart without grouping.")
            continue
        parsed_name = parse_run_name(run_name, overrides)
        seed = -number if parsed_name.seed is None else parsed_name.seed
        yield ParsedRun(description, run_curves, map=parsed_name.map, algo=parsed_name.algo, seed=seed)
