"""Read and check the runs of another program. `storage.runs.imports` then writes them to the database.

A run that cannot be read is left out, and its reason is returned with the other runs.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from app.analysis.variants import is_one_budget, join_budgets
from app.jobs.imports.csv_table import read_csv
from app.jobs.imports.marl_eval import read_marl_eval
from app.jobs.imports.parsed_run import (
    ENV_NAMES,
    ParsedRun,
    SourceOverrides,
    check_seed,
    check_text,
    join_curves,
    read_number,
)
from app.jobs.imports.run_names import MAPS_BY_LOWER_NAME
from app.jobs.imports.sacred import read_sacred
from app.jobs.imports.tensorboard import read_tensorboard
from emtc_core.errors import ConfigError
from storage.runs.imports import ForeignRun, Point

UNKNOWN_ENV: Final = "other"
"""Environment of a run whose source does not name one. Its curves are not compared with those of other tasks."""
_FOLDER_FORMATS: Final = ("sacred", "tensorboard")
_MIN_INTERVALS: Final = 4
"""With fewer intervals between evaluations, their median is not used as the evaluation interval."""
_MAX_LISTED_SETTINGS: Final = 5
_READERS: Final[dict[str, Callable[[Path, SourceOverrides], Iterator[ParsedRun | ConfigError]]]] = {
    "sacred": read_sacred,
    "csv": read_csv,
    "marl-eval": read_marl_eval,
    "tensorboard": read_tensorboard,
}
FORMATS: Final = tuple(_READERS)


@dataclass(frozen=True)
class ForeignSource:
    """The runs of a source, and the reasons why other runs of the source are left out."""

    runs: list[ForeignRun]
    skip_reasons: list[str]
    """One sentence for each run that cannot be imported."""


def read_foreign(path: Path, format: str, overrides: SourceOverrides) -> ForeignSource:
    """Read and check every run of a source.

    Args:
        path: File or folder.
        format: One of FORMATS.
        overrides: Values of the user, which replace those of the source.

    Raises:
        ConfigError: If the format is unknown, the source is missing, or no run can be imported.
    """
    if format not in _READERS:
        raise ConfigError(f"must be one of {', '.join(FORMATS)}", key="--format", value=format)
    if not path.exists():
        raise ConfigError(f"{path} does not exist")
    if format in _FOLDER_FORMATS and not path.is_dir():
        raise ConfigError(f"{path} must be a folder for --format {format}")
    results = list(_READERS[format](path.resolve(), overrides))
    if overrides.seed is not None and len(results) > 1:
        raise ConfigError(
            f"--seed cannot be used, because {path} contains {len(results)} runs", hint="Import them one by one."
        )
    runs: list[ForeignRun] = []
    skip_reasons: list[str] = []
    for result in results:
        if isinstance(result, ConfigError):
            skip_reasons.append(str(result))
            continue
        try:
            runs.append(_check_run(result, overrides, format))
        except ConfigError as error:
            skip_reasons.append(str(error))
    if not runs:
        if len(skip_reasons) == 1:
            raise ConfigError(skip_reasons[0])
        reason = f"The first reason: {skip_reasons[0]}" if skip_reasons else ""
        raise ConfigError(f"None of the {len(skip_reasons)} runs of {path} can be imported", hint=reason)
    return _keep_one_per_seed(_set_common_budgets(runs), skip_reasons)


def list_remarks(source: ForeignSource) -> Iterator[str]:
    """Yield remarks on imported runs: left-out and stopped runs, missing values, and settings that separate lines."""
    yield from (f"Not imported: {reason}" for reason in source.skip_reasons)
    stopped = [run for run in source.runs if not run.is_complete]
    if stopped:
        texts = (f"{run.source} (at {run.env_steps:,} of {run.target_steps:,} env steps)" for run in stopped)
        yield f"Imported as stopped, because the training did not reach its end: {', '.join(texts)}."
    if any(run.env == UNKNOWN_ENV for run in source.runs):
        yield f'The source does not name the environment. It is stored as "{UNKNOWN_ENV}". Set it with --env smac.'
    if any(run.seed < 0 for run in source.runs):
        yield "The source does not contain all seeds. Runs without a seed are numbered -1, -2, …"
    groups: dict[tuple[str, str, str], list[ForeignRun]] = {}
    for run in source.runs:
        groups.setdefault((run.env, run.map, run.algo), []).append(run)
    for (_, map_name, algo), group in groups.items():
        different = _list_different_settings(group)
        if different:
            listed = ", ".join(different[:_MAX_LISTED_SETTINGS])
            more = " …" if len(different) > _MAX_LISTED_SETTINGS else ""
            yield (
                f"The {len(group)} runs of {algo} on {map_name} differ in {listed}{more}. Figures show them as "
                "separate lines."
            )


def _list_different_settings(runs: Sequence[ForeignRun]) -> list[str]:
    """List the settings that have different values in some runs, or are missing in some."""
    different = []
    for key in sorted({key for run in runs for key in run.settings}):
        values = {repr(run.settings.get(key)) for run in runs}
        if len(values) > 1:
            different.append(key)
    return different


def _check_run(run: ParsedRun, overrides: SourceOverrides, format: str) -> ForeignRun:
    """Check a run and replace its values by those of the user.

    Without a training length (budget) in the source or from the user, the training length is the last env step.
    """
    frame = join_curves(run)
    map_name = check_text("map", overrides.map or run.map, run.description)
    env = check_text("env", overrides.env or run.env or UNKNOWN_ENV, run.description)
    last_step = int(frame.index[-1])
    given_budget = read_number(overrides.budget or run.budget)
    budget = int(given_budget) if np.isfinite(given_budget) and given_budget > 0 else 0
    interval = _find_interval(run, frame)
    is_at_budget = budget > 0 and is_one_budget(last_step, budget, interval)
    is_complete = is_at_budget or last_step > budget > 0 or (run.is_finished and not overrides.budget)
    if overrides.budget and last_step > budget and not is_at_budget:
        raise ConfigError(
            f"{run.description} has evaluations up to {last_step:,} env steps, but --budget is {budget:,}"
        )
    return ForeignRun(
        env=overrides.env or ENV_NAMES.get(env, env),
        map=overrides.map or MAPS_BY_LOWER_NAME.get(map_name, map_name),
        algo=check_text("algo", overrides.algo or run.algo, run.description),
        seed=check_seed(run.seed if overrides.seed is None else overrides.seed, run.description),
        label=check_text("name", overrides.label or format, run.description),
        format=format,
        source=run.description[:100],
        points=tuple(map(_make_point, frame.index, frame.to_dict("records"))),
        target_steps=budget or last_step,
        is_complete=is_complete,
        eval_interval=0 if budget else interval,
        settings=run.settings,
    )


def _make_point(step: int, values: dict[Any, float]) -> Point:
    numbers = {str(name): value for name, value in values.items() if np.isfinite(value)}
    episodes = numbers.pop("episodes", None)
    return Point(int(step), **numbers, episodes=None if episodes is None else int(episodes))


def _find_interval(run: ParsedRun, frame: pd.DataFrame) -> int:
    """Return the env steps between two evaluations: from the source, or the median of the curve; 0 if unknown."""
    interval = read_number(run.eval_interval)
    if np.isfinite(interval) and interval > 0:
        return int(interval)
    gaps = np.diff(frame.index)
    return int(np.median(gaps)) if len(gaps) >= _MIN_INTERVALS else 0


def _set_common_budgets(runs: list[ForeignRun]) -> list[ForeignRun]:
    """Set one training length for the runs of a task whose last env steps differ little: the largest of these steps."""
    tasks: dict[tuple[str, str], list[ForeignRun]] = {}
    for run in runs:
        tasks.setdefault((run.env, run.map), []).append(run)
    joined: dict[int, int] = {}
    for group in tasks.values():
        joined |= join_budgets({id(run): (run.target_steps, run.eval_interval) for run in group})
    return [replace(run, target_steps=joined[id(run)]) for run in runs]


def _keep_one_per_seed(runs: Sequence[ForeignRun], skip_reasons: Sequence[str]) -> ForeignSource:
    """Keep one of several runs with the same algorithm, task, seed and settings: a complete one, then the longest."""
    runs_by_identity: dict[Hashable, ForeignRun] = {}
    reasons = list(skip_reasons)
    for run in sorted(runs, key=lambda run: (not run.is_complete, -run.points[-1].env_step)):
        longest = runs_by_identity.setdefault(run.identity, run)
        if longest is not run:
            reasons.append(
                f"{run.source} is a second run of {run.describe()}. {longest.source} is imported, because it is not "
                "shorter. Import the other one with a different --name."
            )
    kept_runs = [run for run in runs if runs_by_identity[run.identity] is run]
    return ForeignSource(kept_runs, reasons)
