"""Read and check the runs of other programs, by format. `storage.runs.imports` then writes all of them or none.

tensorboard   Event files. Each folder with event files is a run.
sacred        config.json, run.json, and metrics.json or info.json. PyMARL writes its curves to info.json, as lists
              KEY and KEY_T. EPyMARL writes them to metrics.json, as {steps, values}.
csv           A table with one row per evaluation. Columns: algo, map, seed, step, and win_rate or return.
              Optional columns: env, return_std, length, episodes.
marl-eval     The JSON format of marl-eval. BenchMARL also writes it.
"""

import csv
import io
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Final, Literal, get_args

from app.jobs.imports.curves import (
    MAX_POINTS,
    MAX_RUNS,
    UNKNOWN_ENV,
    Curve,
    ParsedRun,
    SourceOverrides,
    check_run,
    find_seed,
    flatten_settings,
    read_float,
    read_json,
    read_text,
)
from emtc_core.errors import ConfigError, Fault
from storage.guards import shorten
from storage.runs.imports import ForeignRun

Format = Literal["sacred", "csv", "marl-eval", "tensorboard"]
FORMATS: tuple[Format, ...] = get_args(Format)
WIN_RATES: Final = ("win_rate", "battle_won", "test_battle_won_mean")
RETURNS: Final = ("return", "return_mean", "mean_episode_return", "episode_return")
SACRED_WIN_RATES: Final = ("test_battle_won_mean", "test_win_rate_mean", "test_win_rate")
SACRED_RETURNS: Final = ("test_return_mean", "test_total_return_mean")
EVENT_WIN_RATES: Final = ("eval/win_rate", "test_battle_won_mean", "test/battle_won_mean", "test_win_rate")
EVENT_RETURNS: Final = (
    *("eval/return_mean", "test_return_mean", "test_total_return_mean", "test/return_mean"),
    *("eval_reward_episode_reward_mean", "eval/reward/episode_reward_mean"),
)
NO_READER: Final = "TensorBoard's reader is missing. Install it with: pip install tensorboard"
_REQUIRED_COLUMNS: Final = ("algo", "map", "seed")
_STEP_COLUMNS: Final = ("step", "env_step", "steps", "step_count")
_OPTIONAL_COLUMNS: Final = {"return_std": "return_std", "length": "length_mean", "episodes": "episodes"}
"""Name in a table → column of `evaluations`."""
_SACRED_RETURN_STDS: Final = ("test_return_std", "test_total_return_std")
_SACRED_LENGTHS: Final = ("test_ep_length_mean",)
_SACRED_ENVS: Final = {"sc2": "smac", "gfootball": "grf", "football": "grf"}
"""Environment in PyMARL or EPyMARL → environment in this program."""
_EXPORTED_ENV_PREFIX: Final = "emtc_core.envs.epymarl_export:"
_SACRED_MAX_DEPTH: Final = 6
_EVENT_LENGTHS: Final = ("eval/length_mean", "test_ep_length_mean")
_MAX_EVENT_BYTES: Final = 2 << 30
_FOLDER_FORMATS: Final = ("sacred", "tensorboard")
_MAX_LISTED_SETTINGS: Final = 5


def read_foreign(place: Path, format: str, overrides: SourceOverrides) -> list[ForeignRun]:
    """Read and check every run of a source.

    Args:
        place: File or folder.
        format: One of FORMATS.
        overrides: Values of the user, which replace those of the source.

    Raises:
        ConfigError: If the format is unknown, the source is missing, or a run is invalid.
    """
    valid_format: Format | None = next((name for name in FORMATS if name == format), None)
    if valid_format is None:
        raise ConfigError(f"must be one of {', '.join(FORMATS)}", key="--format", value=format)
    if not place.exists():
        raise ConfigError(f"{place} does not exist")
    if valid_format in _FOLDER_FORMATS and not place.is_dir():
        raise ConfigError(f"{place} must be a folder for --format {valid_format}")
    runs = list(islice(_READERS[valid_format](place.resolve(), overrides), MAX_RUNS + 1))
    if len(runs) > MAX_RUNS:
        raise ConfigError(f"{place} contains more than {MAX_RUNS:,} runs", hint="Import a part of it.")
    if overrides.seed is not None and len(runs) > 1:
        raise ConfigError(
            f"--seed cannot be used, because {place} contains {len(runs)} runs", hint="Import them one by one."
        )
    return [check_run(run, overrides, valid_format) for run in runs]


def list_remarks(runs: list[ForeignRun]) -> Iterator[str]:
    """Yield remarks on imported runs: missing environments and seeds, and different settings that a figure averages."""
    if any(run.env == UNKNOWN_ENV for run in runs):
        yield f'The source does not name the environment. It is stored as "{UNKNOWN_ENV}". Set it with --env smac.'
    if any(run.seed < 0 for run in runs):
        yield "The source does not contain all seeds. Runs without a seed are numbered -1, -2, …"
    groups: dict[tuple[str, str, str], list[ForeignRun]] = {}
    for run in runs:
        groups.setdefault((run.env, run.map, run.algo), []).append(run)
    for (_, map_name, algo), group in groups.items():
        keys = sorted({key for run in group for key in run.settings})
        different = [key for key in keys if len({repr(run.settings.get(key)) for run in group}) > 1]
        if different:
            more = " …" if len(different) > _MAX_LISTED_SETTINGS else ""
            yield (
                f"The {len(group)} runs of {algo} on {map_name} differ in "
                f"{', '.join(different[:_MAX_LISTED_SETTINGS])}{more}, but figures average them. To separate them, "
                "delete them and import each part with another --name."
            )


def read_csv(place: Path, overrides: SourceOverrides) -> Iterator[ParsedRun]:
    """Read the runs of a CSV table. Rows with the same environment, algorithm, map and seed are one run.

    Raises:
        ConfigError: If a column is missing, or a row has another number of cells than the header.
    """
    try:
        table = csv.DictReader(io.StringIO(read_text(place)), strict=True)
        header = [str(name).strip() for name in table.fieldnames or ()]
        table.fieldnames = header
        rows = list(table)
    except csv.Error as error:
        raise ConfigError(f"{place.name} is not a CSV table: {error}") from error
    columns = _find_columns(header, overrides, place.name)
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for number, row in enumerate(rows, start=2):
        if None in row or None in row.values():
            raise ConfigError(f"{place.name}: row {number} must have as many cells as the header")
        groups.setdefault(tuple(str(row.get(name, "")) for name in ("env", *_REQUIRED_COLUMNS)), []).append(row)
    if not groups:
        raise ConfigError(f"{place.name} has no row")
    for (env, algo, map_name, seed), group in groups.items():
        curves = {
            name: [(row[columns["step"]].strip(), cell) for row in group if (cell := row[column].strip())]
            for name, column in columns.items()
            if name != "step"
        }
        where = f"{place.name} ({', '.join(filter(None, (algo, map_name, f'seed {seed}' if seed else '')))})"
        yield ParsedRun(where, curves, env or None, map_name or None, algo or None, seed or None)


def _find_columns(header: Sequence[str], overrides: SourceOverrides, name: str) -> dict[str, str]:
    """Map "step" and the columns of `evaluations` to the columns of a table."""
    repeated = sorted({column for column in header if header.count(column) > 1})
    if repeated:
        raise ConfigError(f"{name} has two columns {shorten(repeated[0])}")
    missing = [column for column in _REQUIRED_COLUMNS if column not in header and getattr(overrides, column) is None]
    step = _find_first(_STEP_COLUMNS, header)
    if missing or step is None:
        names = ", ".join([*missing, *([] if step else ["step"])])
        raise ConfigError(f"{name} has no column {names}. A table needs algo, map, seed, step, and win_rate or return.")
    win_rates = (overrides.win_rate,) if overrides.win_rate else WIN_RATES
    returns = (overrides.return_name,) if overrides.return_name else RETURNS
    columns = {"win_rate": _find_first(win_rates, header), "return_mean": _find_first(returns, header)}
    columns |= {column: name if name in header else None for name, column in _OPTIONAL_COLUMNS.items()}
    return {"step": step, **{column: name for column, name in columns.items() if name}}


def _find_first(names: Sequence[str], container: Collection[str]) -> str | None:
    return next((name for name in names if name in container), None)


def read_marl_eval(place: Path, overrides: SourceOverrides) -> Iterator[ParsedRun]:
    """Read the runs of one JSON file of marl-eval, or of all in a folder: environment → task → algorithm → run → step.

    A run named "seed_3" or "3" has that seed. If the name of run number n contains no seed, the run gets the seed -n.

    Raises:
        ConfigError: If a file has another structure.
    """
    files = sorted(place.rglob("*.json")) if place.is_dir() else [place]
    if not files:
        raise ConfigError(f"{place} contains no JSON file")
    for file in files:
        for (env, task, algo), runs in _list_run_groups(read_json(file), file.name):
            for number, (name, steps) in enumerate(runs.items(), start=1):
                where = f"{file.name} ({algo}, {task}, {name})"
                seed = find_seed(name)
                curves = _average_steps(_sort_steps(steps, where), overrides, where)
                yield ParsedRun(where, curves, env, task, algo, -number if seed is None else seed)


def _list_run_groups(tree: Mapping[str, Any], name: str) -> Iterator[tuple[tuple[str, str, str], Mapping[str, Any]]]:
    for env, tasks in _list_children(tree, name):
        for task, algos in _list_children(tasks, f"{name}, {env}"):
            for algo, runs in _list_children(algos, f"{name}, {env}, {task}"):
                yield (env, task, algo), dict(_list_children(runs, f"{name}, {env}, {task}, {algo}"))


def _list_children(tree: Any, where: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if not isinstance(tree, Mapping) or not all(isinstance(child, Mapping) for child in tree.values()):
        raise ConfigError(
            f"{where[:200]}: a JSON file of marl-eval must have the levels environment → task → algorithm → run → step"
        )
    yield from tree.items()


def _sort_steps(steps: Mapping[str, Any], where: str) -> list[Mapping[str, Any]]:
    """Sort the steps of a run by env step, without the entry "absolute_metrics", the final evaluation of marl-eval."""
    numbered_steps = [step for name, step in steps.items() if name != "absolute_metrics" and isinstance(step, Mapping)]
    if any(read_float(step.get("step_count")) is None for step in numbered_steps):
        raise ConfigError(f"{where}: a step has no step_count")
    return sorted(numbered_steps, key=lambda step: read_float(step["step_count"]) or 0.0)


def _average_steps(steps: Sequence[Mapping[str, Any]], overrides: SourceOverrides, where: str) -> Mapping[str, Curve]:
    """Average the values of each step: one value, or one for each evaluation episode."""
    names_by_column = {
        "win_rate": (overrides.win_rate,) if overrides.win_rate else WIN_RATES,
        "return_mean": (overrides.return_name,) if overrides.return_name else RETURNS,
    }
    curves: dict[str, list[tuple[object, object]]] = {}
    for step in steps:
        env_step = step["step_count"]
        values_by_column = {
            column: _read_values(step, key, where)
            for column, names in names_by_column.items()
            if (key := _find_first(names, step))
        }
        for column, values in values_by_column.items():
            if values:
                curves.setdefault(column, []).append((env_step, _compute_statistic(fmean, values, where)))
        n_episodes = max((len(values) for values in values_by_column.values()), default=0)
        if n_episodes > 1:  # a single value may be a mean of any number of episodes
            curves.setdefault("episodes", []).append((env_step, n_episodes))
        if len(returns := values_by_column.get("return_mean", [])) > 1:
            curves.setdefault("return_std", []).append((env_step, _compute_statistic(stdev, returns, where)))
    return curves


def _compute_statistic(statistic: Callable[[Sequence[float]], float], values: Sequence[float], where: str) -> float:
    """Compute the mean or standard deviation. An overflow becomes a ConfigError."""
    try:
        return statistic(values)
    except OverflowError as error:
        raise ConfigError(f"{where}: the values of a step are too large for their mean") from error


def _read_values(step: Mapping[str, Any], key: str, where: str) -> list[float]:
    raw = step[key] if isinstance(step[key], list) else [step[key]]
    values = [read_float(value) for value in raw]
    if None in values:
        raise ConfigError(f"{where}: {key} must list finite numbers, got {shorten(raw)}")
    return [value for value in values if value is not None]


def read_sacred(place: Path, overrides: SourceOverrides) -> Iterator[ParsedRun]:
    """Read the run in a folder of sacred's file storage, or all runs below it.

    Raises:
        ConfigError: If there is no run, or one is damaged.
    """
    for folder in find_sacred_runs(place):
        yield _read_sacred_run(folder, place, overrides)


def find_sacred_runs(place: Path) -> list[Path]:
    """Find the folders of sacred runs, ordered by the number in their names.

    Raises:
        ConfigError: If there is none.
    """
    configs = [file for depth in range(_SACRED_MAX_DEPTH) for file in place.glob(f"{'*/' * depth}config.json")]
    folders = [
        file.parent for file in configs if any((file.parent / name).exists() for name in ("info.json", "metrics.json"))
    ]
    if not folders:
        raise ConfigError(
            f"{place} contains no run of sacred: no folder with config.json and info.json or metrics.json."
        )
    return sorted(folders, key=lambda folder: (len(folder.name), str(folder)))


def _read_sacred_run(folder: Path, place: Path, overrides: SourceOverrides) -> ParsedRun:
    config = read_json(folder / "config.json")
    metrics, info, run = (
        read_json(file) if (file := folder / f"{name}.json").exists() else {} for name in ("metrics", "info", "run")
    )
    names = {
        "win_rate": (overrides.win_rate,) if overrides.win_rate else SACRED_WIN_RATES,
        "return_mean": (overrides.return_name,) if overrides.return_name else SACRED_RETURNS,
        "return_std": _SACRED_RETURN_STDS,
        "length_mean": _SACRED_LENGTHS,
    }
    where = f"{place.name}/{folder.relative_to(place)}" if folder != place else f"{folder.parent.name}/{folder.name}"
    env, map_name = _get_sacred_task(config)
    return ParsedRun(
        where=where,
        curves={c: curve for c, keys in names.items() if (curve := _find_sacred_curve(metrics, info, keys, where))},
        env=env,
        map=map_name,
        algo=config.get("name"),
        seed=config.get("seed"),
        target_steps=config.get("t_max"),
        is_whole=run.get("status", "COMPLETED") == "COMPLETED",
        settings=flatten_settings(config),
    )


def _find_sacred_curve(
    metrics: Mapping[str, Any], info: Mapping[str, Any], keys: tuple[str | None, ...], where: str
) -> Curve:
    """Return the curve of the first key that the run contains, or an empty curve."""
    for key in keys:
        metric = metrics.get(str(key))
        steps, values = (metric.get("steps"), metric.get("values")) if isinstance(metric, Mapping) else (None, None)
        if steps is None:
            steps, values = info.get(f"{key}_T"), info.get(str(key))
        if steps is None and values is None:
            continue
        if not isinstance(steps, list) or not isinstance(values, list) or len(steps) != len(values):
            raise ConfigError(f"{where}: {key} must have as many env steps as values")
        return list(zip(steps, values, strict=True))
    return []


def _get_sacred_task(config: Mapping[str, Any]) -> tuple[object, object]:
    """Translate environment and map to the names of this program, for instance sc2 to smac.

    An environment that this program has exported for EPyMARL gets its name in this program again.
    """
    env, args = str(config.get("env", "")), config.get("env_args")
    args = args if isinstance(args, Mapping) else {}
    gym_id = str(args.get("key", ""))
    if gym_id.startswith(_EXPORTED_ENV_PREFIX):
        name, _, map_name = gym_id.removeprefix(_EXPORTED_ENV_PREFIX).removesuffix("-v0").partition("-")
        return name, map_name
    if gym_id:
        package, _, name = gym_id.rpartition(":")
        return package or env, name
    if env.startswith("academy_"):
        return "grf", env
    return _SACRED_ENVS.get(env, env), args.get("map_name") or args.get("scenario_name") or args.get("scenario")


def read_tensorboard(place: Path, overrides: SourceOverrides) -> Iterator[ParsedRun]:
    """Read every folder with event files. The seed is in the folder's name ("seed3") or given by the user.

    Raises:
        ConfigError: If there is no event file, or TensorBoard is missing.
    """
    folders = sorted({file.parent for file in place.rglob("*tfevents*") if file.is_file()})
    if not folders:
        raise ConfigError(f"{place} contains no event file of TensorBoard (events.out.tfevents.…)")
    for folder in folders:
        subfolder = folder.relative_to(place)
        where = f"{place.name}/{subfolder}" if subfolder.parts else place.name
        yield ParsedRun(where, _read_event_curves(folder, overrides, where), seed=find_seed(where))


def _read_event_curves(folder: Path, overrides: SourceOverrides, where: str) -> dict[str, Curve]:
    files = list(folder.glob("*tfevents*"))
    if special := [file for file in files if not file.is_file()]:  # reading a pipe would wait forever
        raise ConfigError(f"{special[0]} is not a file", hint="Remove it from the folder.")
    n_bytes = sum(file.stat().st_size for file in files)
    if n_bytes > _MAX_EVENT_BYTES:
        limit = f"at most {_MAX_EVENT_BYTES >> 30} GiB are read"
        raise ConfigError(f"{where} has {n_bytes / 1e9:.1f} GB of event files; {limit}")
    events = _load_events(folder, where)
    tags = set(events.Tags()["scalars"])
    keys = {
        "win_rate": (overrides.win_rate,) if overrides.win_rate else EVENT_WIN_RATES,
        "return_mean": (overrides.return_name,) if overrides.return_name else EVENT_RETURNS,
        "length_mean": _EVENT_LENGTHS,
    }
    columns = {column: _find_first(names, tags) for column, names in keys.items()}
    return {
        column: [(event.step, event.value) for event in events.Scalars(tag)] for column, tag in columns.items() if tag
    }


def _load_events(folder: Path, where: str) -> Any:
    """Load all scalars of a folder with TensorBoard's reader."""
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError as error:
        raise ConfigError(Fault(hint=NO_READER)) from error
    logging.getLogger("tensorboard").setLevel(logging.ERROR)
    limits = {"scalars": MAX_POINTS + 1, "tensors": MAX_POINTS + 1}
    accumulator = EventAccumulator(str(folder), size_guidance=limits)
    try:
        return accumulator.Reload()
    except Exception as error:  # protobuf raises errors of several types for damaged files
        raise ConfigError(f"{where} cannot be read by TensorBoard: {type(error).__name__}") from error


_READERS: Final[dict[Format, Callable[[Path, SourceOverrides], Iterator[ParsedRun]]]] = {
    "sacred": read_sacred,
    "csv": read_csv,
    "marl-eval": read_marl_eval,
    "tensorboard": read_tensorboard,
}
