"""Read the JSON format of marl-eval, which BenchMARL also writes: environment → task → algorithm → run → step."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pandas as pd

from app.jobs.imports.parsed_run import (
    ParsedRun,
    SourceOverrides,
    find_first,
    make_series,
    read_json,
    read_number,
)
from app.jobs.imports.run_names import find_seed
from emtc_core.errors import ConfigError

WIN_RATES: Final = ("win_rate", "battle_won", "test_battle_won_mean")
RETURNS: Final = ("return", "return_mean", "mean_episode_return", "episode_return")
_NOT_A_STEP: Final = "absolute_metrics"
"""Key of the final evaluation of marl-eval, or of BenchMARL's maxima. It is not a step of the curve."""


class _StoredRun(NamedTuple):
    """A run as it is stored in a file, with its position in the tree."""

    env: str
    task: str
    algo: str
    name: str
    number: int
    """Number of the run among those of its algorithm and task, from 1."""
    steps: Mapping[str, Any]
    """Name of a step → its metrics."""


def read_marl_eval(path: Path, overrides: SourceOverrides) -> Iterator[ParsedRun | ConfigError]:
    """Read the runs of one file, or of all files in a folder.

    A run named "seed_3" or "3" has that seed. If the name of run number n contains no seed, the run gets the seed -n.

    Raises:
        ConfigError: If there is no file.
    """
    files = sorted(path.rglob("*.json")) if path.is_dir() else [path]
    if not files:
        raise ConfigError(f"{path} contains no JSON file")
    for file in files:
        try:
            runs = list(_list_runs(read_json(file), file.name))
        except ConfigError as error:
            yield error
            continue
        for run in runs:
            description = f"{file.name} ({run.algo}, {run.task}, {run.name})"
            seed = find_seed(run.name)
            try:
                curves = _read_curves(run.steps, overrides, description)
            except ConfigError as error:
                yield error
                continue
            yield ParsedRun(
                description=description,
                curves=curves,
                env=run.env,
                map=run.task,
                algo=run.algo,
                seed=-run.number if seed is None else seed,
            )


def _list_runs(tree: Mapping[str, Any], file_name: str) -> Iterator[_StoredRun]:
    """List the runs of each environment, task and algorithm."""
    for env, tasks in _list_children(tree, file_name):
        for task, algos in _list_children(tasks, file_name):
            for algo, runs in _list_children(algos, file_name):
                for number, (name, steps) in enumerate(_list_children(runs, file_name), start=1):
                    yield _StoredRun(env, task, algo, name, number, steps)


def _list_children(tree: Any, file_name: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if not isinstance(tree, Mapping) or not all(isinstance(child, Mapping) for child in tree.values()):
        raise ConfigError(
            f"{file_name}: a JSON file of marl-eval must have the levels environment → task → algorithm → run → step"
        )
    yield from tree.items()


def _read_curves(steps: Mapping[str, Any], overrides: SourceOverrides, description: str) -> dict[str, pd.Series]:
    """Read the curves of a run.

    A step has a single value, or a list with one value per evaluation episode. The curve has the mean of the list.
    """
    points: dict[str, list[tuple[object, Any]]] = {}  # column of `evaluations` → env steps and values
    for name, step in steps.items():
        if name == _NOT_A_STEP or not isinstance(step, Mapping):
            continue
        if "step_count" not in step:
            raise ConfigError(f"{description}: {name} has no step_count")
        env_step = step["step_count"]
        n_episodes = 0
        for column, names in overrides.list_source_names(WIN_RATES, RETURNS).items():
            key = find_first(names, step)
            values = _read_values(step[key]) if key else np.empty(0)
            if not len(values):
                continue
            points.setdefault(column, []).append((env_step, float(values.mean())))
            n_episodes = max(n_episodes, len(values))
            if column == "return_mean" and len(values) > 1:
                points.setdefault("return_std", []).append((env_step, float(values.std(ddof=1))))
        if n_episodes > 1:  # the number of episodes of a single value is unknown
            points.setdefault("episodes", []).append((env_step, n_episodes))
    return {column: make_series(column_points) for column, column_points in points.items()}


def _read_values(raw: object) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Read the values of a step; a value that is not a number becomes NaN."""
    values: Sequence[object] = raw if isinstance(raw, list) else [raw]
    return np.array([read_number(value) for value in values], np.float64)
