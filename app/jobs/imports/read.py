"""Read and check every run of a source, whichever its format; `storage.runs.imports` writes all of them or none.

TensorBoard's event files are read by its own reader: a folder with such files is a run. Of sacred's file storage
config.json, run.json, and metrics.json or info.json: PyMARL keeps its curves in info.json, as lists `KEY` and
`KEY_T`; EPyMARL in metrics.json, as {steps, values}. One file with many runs is a CSV table with a row for each
evaluation (columns algo, map, seed, step, and win_rate or return or both; env, return_std, length and episodes may be
there), or the JSON of marl-eval, BenchMARL's too.
"""

import csv
import io
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Final, Literal, get_args

from app.jobs.imports.curves import (
    MOST_POINTS,
    MOST_RUNS,
    UNTOLD,
    Curve,
    Given,
    Told,
    check_run,
    keep_settings,
    read_float,
    read_json,
    read_seed,
    read_text,
)
from emtc_core.errors import ConfigError, Fault
from storage.guards import shorten
from storage.runs.imports import ForeignRun

_NEEDED: Final = ("algo", "map", "seed")
_STEPS: Final = ("step", "env_step", "steps", "step_count")
_MORE: Final = {"return_std": "return_std", "length": "length_mean", "episodes": "episodes"}
WIN_RATES: Final = ("win_rate", "battle_won", "test_battle_won_mean")
RETURNS: Final = ("return", "return_mean", "mean_episode_return", "episode_return")


def read_csv(place: Path, given: Given) -> Iterator[Told]:
    """Read the runs of a table: rows of one algorithm, map and seed are one run, in the order of the file.

    Raises:
        ConfigError: If a column is missing, or a row has fewer cells than the head.
    """
    try:
        table = csv.DictReader(io.StringIO(read_text(place)), strict=True)
        heads = [str(name).strip() for name in table.fieldnames or ()]
        table.fieldnames = heads
        rows = list(table)
    except csv.Error as error:
        raise ConfigError(f"{place.name} is no CSV table: {error}") from error
    columns = _columns(heads, given, place.name)
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for number, row in enumerate(rows, start=2):
        if None in row or None in row.values():
            raise ConfigError(f"{place.name}: row {number} has not as many cells as the head")
        groups.setdefault(tuple(str(row.get(name, "")) for name in ("env", *_NEEDED)), []).append(row)
    if not groups:
        raise ConfigError(f"{place.name} has no row")
    for (env, algo, map_name, seed), part in groups.items():
        curves = {name: _curve(part, columns["step"], column) for name, column in columns.items() if name != "step"}
        where = f"{place.name} ({', '.join(filter(None, (algo, map_name, f'seed {seed}' if seed else '')))})"
        yield Told(where, curves, env or None, map_name or None, algo or None, seed or None)


def _columns(heads: Sequence[str], given: Given, name: str) -> dict[str, str]:
    """Find the columns: by their names in `evaluations`, and `step`."""
    doubles = sorted({head for head in heads if heads.count(head) > 1})
    if doubles:
        raise ConfigError(f"{name} has two columns {shorten(doubles[0])}")
    absent = [each for each in _NEEDED if each not in heads and getattr(given, each) is None]
    steps = next((head for head in _STEPS if head in heads), None)
    if absent or steps is None:
        missing = ", ".join([*absent, *([] if steps else ["step"])])
        raise ConfigError(
            f"{name} has no column {missing}. A table needs algo, map, seed, step, and win_rate or return."
        )
    wins = (given.win_rate,) if given.win_rate else WIN_RATES
    scores = (given.score,) if given.score else RETURNS
    found = {"win_rate": _first(wins, heads), "return_mean": _first(scores, heads)}
    found |= {column: head if head in heads else None for head, column in _MORE.items()}
    return {"step": steps, **{column: head for column, head in found.items() if head}}


def _first(names: Sequence[str], there: Sequence[str] | Mapping[str, Any]) -> str | None:
    return next((name for name in names if name in there), None)


def _curve(rows: Sequence[Mapping[str, Any]], steps: str, column: str) -> Curve:
    """A column of one run; empty cells are no values."""
    return [(row[steps].strip(), row[column].strip()) for row in rows if row[column].strip()]


def read_marl_eval(place: Path, given: Given) -> Iterator[Told]:
    """Read the runs of marl-eval's JSON: environment → task → algorithm → run → step, of one file or a folder's.

    A run that is called "seed_3" or "3" has that seed. Of one that is called otherwise none is told: it is run −n.

    Raises:
        ConfigError: If the JSON is not laid out so.
    """
    files = sorted(place.rglob("*.json")) if place.is_dir() else [place]
    if not files:
        raise ConfigError(f"{place} holds no JSON file")
    for file in files:
        for (env, task, algo), runs in _walk(read_json(file), file.name):
            for number, (name, steps) in enumerate(runs.items(), start=1):
                where = f"{file.name} ({algo}, {task}, {name})"
                seed = read_seed(name)
                curves = _curves_of(_in_order(steps, where), given, where)
                yield Told(where, curves, env, task, algo, -number if seed is None else seed)


def _walk(tree: Mapping[str, Any], name: str) -> Iterator[tuple[tuple[str, str, str], Mapping[str, Any]]]:
    for env, tasks in _entries(tree, name):
        for task, algos in _entries(tasks, f"{name}, {env}"):
            for algo, runs in _entries(algos, f"{name}, {env}, {task}"):
                yield (env, task, algo), dict(_entries(runs, f"{name}, {env}, {task}, {algo}"))


def _entries(tree: Any, where: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if not isinstance(tree, Mapping) or not all(isinstance(each, Mapping) for each in tree.values()):
        raise ConfigError(f"{where[:200]}: marl-eval's JSON is environment → task → algorithm → run → step")
    yield from tree.items()


def _in_order(steps: Mapping[str, Any], where: str) -> list[Mapping[str, Any]]:
    """List the steps of a run by their count; the absolute metrics are none of them."""
    told = [step for name, step in steps.items() if name != "absolute_metrics" and isinstance(step, Mapping)]
    if any(read_float(step.get("step_count")) is None for step in told):
        raise ConfigError(f"{where}: a step has no step_count")
    return sorted(told, key=lambda step: read_float(step["step_count"]) or 0.0)


def _curves_of(steps: Sequence[Mapping[str, Any]], given: Given, where: str) -> Mapping[str, Curve]:
    """Average what each step lists: one value, or one for each evaluation episode."""
    keys = {
        "win_rate": (given.win_rate,) if given.win_rate else WIN_RATES,
        "return_mean": (given.score,) if given.score else RETURNS,
    }
    curves: dict[str, list[tuple[object, object]]] = {}
    for step in steps:
        at = step["step_count"]
        listed = {column: _listed(step, key, where) for column, names in keys.items() if (key := _first(names, step))}
        for column, values in listed.items():
            if values:
                curves.setdefault(column, []).append((at, fmean(values)))
        episodes = max((len(values) for values in listed.values()), default=0)
        if episodes > 1:  # one value is a mean of nobody knows how many
            curves.setdefault("episodes", []).append((at, episodes))
        if len(scores := listed.get("return_mean", [])) > 1:
            curves.setdefault("return_std", []).append((at, stdev(scores)))
    return curves


def _listed(step: Mapping[str, Any], key: str, where: str) -> list[float]:
    raw = step[key] if isinstance(step[key], list) else [step[key]]
    values = [read_float(each) for each in raw]
    if None in values:
        raise ConfigError(f"{where}: {key} must list finite numbers, got {shorten(raw)}")
    return [value for value in values if value is not None]


SACRED_WIN_RATES: Final = ("test_battle_won_mean", "test_win_rate_mean", "test_win_rate")
SACRED_RETURNS: Final = ("test_return_mean", "test_total_return_mean")
_SPREADS: Final = ("test_return_std", "test_total_return_std")
_LENGTHS: Final = ("test_ep_length_mean",)
_ENVS: Final = {"sc2": "smac", "gfootball": "grf", "football": "grf"}
_OURS: Final = "emtc_core.envs.epymarl_export:"
_DEEPEST: Final = 6


def read_sacred(place: Path, given: Given) -> Iterator[Told]:
    """Read every run in a folder, or the run whose folder it is.

    Raises:
        ConfigError: If there is none, or one is damaged.
    """
    for folder in find_runs(place):
        yield _read_run(folder, place, given)


def find_runs(place: Path) -> list[Path]:
    """Find the folders of runs, in the order of their names.

    Raises:
        ConfigError: If there is none.
    """
    files = [file for depth in range(_DEEPEST) for file in place.glob(f"{'*/' * depth}config.json")]
    own = [
        file.parent for file in files if any((file.parent / name).exists() for name in ("info.json", "metrics.json"))
    ]
    if not own:
        raise ConfigError(
            f"{place} holds no run of sacred: no folder with config.json beside info.json or metrics.json."
        )
    return sorted(own, key=lambda each: (len(each.name), str(each)))


def _read_run(folder: Path, place: Path, given: Given) -> Told:
    config = read_json(folder / "config.json")
    metrics, info, run = (_read_if_there(folder / f"{name}.json") for name in ("metrics", "info", "run"))
    names = {
        "win_rate": (given.win_rate,) if given.win_rate else SACRED_WIN_RATES,
        "return_mean": (given.score,) if given.score else SACRED_RETURNS,
        "return_std": _SPREADS,
        "length_mean": _LENGTHS,
    }
    where = f"{place.name}/{folder.relative_to(place)}" if folder != place else f"{folder.parent.name}/{folder.name}"
    env, map_name = _name_task(config)
    return Told(
        where=where,
        curves={column: curve for column, keys in names.items() if (curve := _find(metrics, info, keys, where))},
        env=env,
        map=map_name,
        algo=config.get("name"),
        seed=config.get("seed"),
        target_steps=config.get("t_max"),
        is_whole=run.get("status", "COMPLETED") == "COMPLETED",
        settings=keep_settings(config),
    )


def _read_if_there(file: Path) -> dict[str, Any]:
    return read_json(file) if file.exists() else {}


def _find(metrics: Mapping[str, Any], info: Mapping[str, Any], keys: tuple[str | None, ...], where: str) -> Curve:
    """Find the first of these curves that the run has; nothing if it has none."""
    for key in keys:
        told = metrics.get(str(key))
        steps, values = (told.get("steps"), told.get("values")) if isinstance(told, Mapping) else (None, None)
        if steps is None:
            steps, values = info.get(f"{key}_T"), info.get(str(key))
        if steps is None and values is None:
            continue
        if not isinstance(steps, list) or not isinstance(values, list) or len(steps) != len(values):
            raise ConfigError(f"{where}: {key} has not as many env steps as values")
        return list(zip(steps, values, strict=True))
    return []


def _name_task(config: Mapping[str, Any]) -> tuple[object, object]:
    """Environment and map as this program calls them: "smac" and "3m" of sc2, "skirmish" of its own export."""
    env, args = str(config.get("env", "")), config.get("env_args")
    args = args if isinstance(args, Mapping) else {}
    key = str(args.get("key", ""))
    if key.startswith(_OURS):
        name, _, map_name = key.removeprefix(_OURS).removesuffix("-v0").partition("-")
        return name, map_name
    if key:
        package, _, name = key.rpartition(":")
        return package or env, name
    if env.startswith("academy_"):
        return "grf", env
    return _ENVS.get(env, env), args.get("map_name") or args.get("scenario_name") or args.get("scenario")


EVENT_WIN_RATES: Final = ("eval/win_rate", "test_battle_won_mean", "test/battle_won_mean", "test_win_rate")
EVENT_RETURNS: Final = (
    *("eval/return_mean", "test_return_mean", "test_total_return_mean", "test/return_mean"),
    *("eval_reward_episode_reward_mean", "eval/reward/episode_reward_mean"),
)
_EVENT_LENGTHS: Final = ("eval/length_mean", "test_ep_length_mean")
_MOST_BYTES: Final = 2 << 30
NO_READER: Final = "TensorBoard's reader is missing. Install it with: pip install tensorboard"


def read_tensorboard(place: Path, given: Given) -> Iterator[Told]:
    """Read every folder with event files; a seed is told by the folder's name ("seed3") or given.

    Raises:
        ConfigError: If there is none, or TensorBoard is missing.
    """
    folders = sorted({file.parent for file in place.rglob("*tfevents*") if file.is_file()})
    if not folders:
        raise ConfigError(f"{place} holds no event file of TensorBoard (events.out.tfevents.…)")
    for folder in folders:
        inside = folder.relative_to(place)
        where = f"{place.name}/{inside}" if inside.parts else place.name
        yield Told(where, _read_curves(folder, given, where), seed=read_seed(where))


def _read_curves(folder: Path, given: Given, where: str) -> dict[str, Curve]:
    size = sum(file.stat().st_size for file in folder.glob("*tfevents*"))
    if size > _MOST_BYTES:
        raise ConfigError(f"{where} has {size / 1e9:.1f} GB of event files; at most {_MOST_BYTES >> 30} GiB are read")
    events = _load(folder, where)
    tags = set(events.Tags()["scalars"])
    keys = {
        "win_rate": (given.win_rate,) if given.win_rate else EVENT_WIN_RATES,
        "return_mean": (given.score,) if given.score else EVENT_RETURNS,
        "length_mean": _EVENT_LENGTHS,
    }
    found = {column: next((tag for tag in names if tag in tags), None) for column, names in keys.items()}
    return {
        column: [(event.step, event.value) for event in events.Scalars(tag)] for column, tag in found.items() if tag
    }


def _load(folder: Path, where: str) -> Any:
    """Let TensorBoard read a folder, every scalar of it."""
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError as error:
        raise ConfigError(Fault(hint=NO_READER)) from error
    logging.getLogger("tensorboard").setLevel(logging.ERROR)
    wanted = {"scalars": MOST_POINTS + 1, "tensors": MOST_POINTS + 1}
    accumulator = EventAccumulator(str(folder), size_guidance=wanted)
    try:
        return accumulator.Reload()
    except Exception as error:  # of protobuf's parser, for bytes that are no events
        raise ConfigError(f"{where} cannot be read by TensorBoard: {type(error).__name__}") from error


Format = Literal["sacred", "csv", "marl-eval", "tensorboard"]
FORMATS: tuple[Format, ...] = get_args(Format)
_READERS: Final[dict[Format, Callable[[Path, Given], Iterator[Told]]]] = {
    "sacred": read_sacred,
    "csv": read_csv,
    "marl-eval": read_marl_eval,
    "tensorboard": read_tensorboard,
}
_FOLDERS: Final = ("sacred", "tensorboard")
_NAMED: Final = 5


def read_foreign(place: Path, format: str, given: Given) -> list[ForeignRun]:
    """Read and check every run of a source.

    Raises:
        ConfigError: If the format is none, nothing is there, or one run is not sound.
    """
    known: Format | None = next((each for each in FORMATS if each == format), None)
    if known is None:
        raise ConfigError(f"must be one of {', '.join(FORMATS)}", key="--format", value=format)
    if not place.exists():
        raise ConfigError(f"{place} is not there")
    if known in _FOLDERS and not place.is_dir():
        raise ConfigError(f"{place} must be a folder for --format {known}")
    told = list(islice(_READERS[known](place.resolve(), given), MOST_RUNS + 1))
    if len(told) > MOST_RUNS:
        raise ConfigError(f"{place} holds more than {MOST_RUNS:,} runs", hint="Import a part of it.")
    if given.seed is not None and len(told) > 1:
        raise ConfigError(f"--seed is that of one run, and {place} holds {len(told)}", hint="Import them one by one.")
    return [check_run(each, given, known) for each in told]


def remark_on(runs: list[ForeignRun]) -> Iterator[str]:
    """What to know about an import: what was not told, and what was averaged though it differs."""
    if any(run.env == UNTOLD for run in runs):
        yield f'The environment is not told, so that it is called "{UNTOLD}". Say it with --env, as --env smac.'
    if any(run.seed < 0 for run in runs):
        yield "Seeds are not told, and none is made up: a seed below 0 is the number of a run."
    alike: dict[tuple[str, str, str], list[ForeignRun]] = {}
    for run in runs:
        alike.setdefault((run.env, run.map, run.algo), []).append(run)
    for (_, map_name, algo), group in alike.items():
        keys = sorted({key for run in group for key in run.settings})
        differ = [key for key in keys if len({repr(run.settings.get(key)) for run in group}) > 1]
        if differ:
            more = " …" if len(differ) > _NAMED else ""
            yield (
                f"The {len(group)} runs of {algo} on {map_name} differ in {', '.join(differ[:_NAMED])}{more}: as one "
                "line they are averaged all the same. Keep them apart with --name."
            )
