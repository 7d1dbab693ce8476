"""Runs out of one file: a CSV table with a row for each evaluation, or the JSON of marl-eval, BenchMARL's too.

CSV columns: algo, map, seed, step, and win_rate or return or both; env, return_std, length and episodes may be there.
"""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Final

from app.jobs.imports.curves import Curve, Given, Told, read_float, read_json, read_seed, read_text
from emtc_core.errors import ConfigError
from storage.guards import shorten

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
        raise ConfigError(f"{place.name} is no CSV table: {error}.") from error
    columns = _columns(heads, given, place.name)
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for number, row in enumerate(rows, start=2):
        if None in row or None in row.values():
            raise ConfigError(f"{place.name}: row {number} has not as many cells as the head.")
        groups.setdefault(tuple(str(row.get(name, "")) for name in ("env", *_NEEDED)), []).append(row)
    if not groups:
        raise ConfigError(f"{place.name} has no row.")
    for (env, algo, map_name, seed), part in groups.items():
        curves = {name: _curve(part, columns["step"], column) for name, column in columns.items() if name != "step"}
        where = f"{place.name} ({', '.join(filter(None, (algo, map_name, f'seed {seed}' if seed else '')))})"
        yield Told(where, curves, env or None, map_name or None, algo or None, seed or None)


def _columns(heads: Sequence[str], given: Given, name: str) -> dict[str, str]:
    """Find the columns: by their names in `evaluations`, and `step`."""
    doubles = sorted({head for head in heads if heads.count(head) > 1})
    if doubles:
        raise ConfigError(f"{name} has two columns {shorten(doubles[0])}.")
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
        raise ConfigError(f"{place} holds no JSON file.")
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
        raise ConfigError(f"{where[:200]}: marl-eval's JSON is environment → task → algorithm → run → step.")
    yield from tree.items()


def _in_order(steps: Mapping[str, Any], where: str) -> list[Mapping[str, Any]]:
    """List the steps of a run by their count; the absolute metrics are none of them."""
    told = [step for name, step in steps.items() if name != "absolute_metrics" and isinstance(step, Mapping)]
    if any(read_float(step.get("step_count")) is None for step in told):
        raise ConfigError(f"{where}: a step has no step_count.")
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
        raise ConfigError(f"{where}: {key} must list finite numbers, got {shorten(raw)}.")
    return [value for value in values if value is not None]
