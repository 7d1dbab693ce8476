"""A sweep file → the runs that follow from it, each resolved, before anything is created."""

import hashlib
import json
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
from pydantic import ValidationError

from app.analysis.quantities import EVALUATED
from app.analysis.settings import write_value
from app.jobs.launch_request import find_own
from app.jobs.sweeps.file import Leaf, OptunaSearch, Range, SweepFile
from emtc_core.config.base import read_faults
from emtc_core.config.resolve import Value, current_key, describe_fields, flatten, resolve, suggest
from emtc_core.config.run import RunConfig
from emtc_core.errors import ConfigError, Fault
from emtc_core.metrics import METRICS
from storage.runs.sweeps import PlannedRun

MOST_RUNS = 5000
_UNCOUNTED = 10**15
_MOST_FAULTS = 20


@dataclass(frozen=True)
class Cell:
    """One combination of what varies, without its seed."""

    map: str
    algo: str
    variant: str | None
    changes: Mapping[str, Leaf]
    """What this cell sets, the variant's own settings included."""
    label: str
    """What tells it from the other cells of its sweep; empty where nothing varies."""
    preset: str | None = None
    """Preset instead of the file's."""


@dataclass(frozen=True)
class SweepRun:
    """One run of a plan."""

    cell: Cell
    seed: int
    config: RunConfig
    key: str
    name: str


@dataclass(frozen=True)
class Plan:
    """All runs of a sweep file, in the order in which they are started: every cell's first seed comes first."""

    file: SweepFile
    runs: tuple[SweepRun, ...]

    @cached_property
    def id(self) -> str:
        """The sweep's id, made of what it asks for: the same file again is the same sweep, and more seeds extend it."""
        asked = self.file.model_dump(mode="json", exclude={"seeds", "about", "study", "optuna"})
        if self.file.optuna:  # more trials extend a search
            asked["optuna"] = self.file.optuna.model_dump(mode="json", exclude={"trials"})
            asked["seeds"] = list(self.file.seeds)
        return _digest(asked)[:8]

    @cached_property
    def settings(self) -> frozenset[str]:
        """Dotted keys of the settings by which its runs differ, as far as the file decides them."""
        changed = {current_key(key) for run in self.runs for key in run.cell.changes}
        return frozenset({"env.map", "algo", "preset", "seed"} | changed)

    def to_rows(self, seeds: Collection[int] | None = None) -> list[PlannedRun]:
        """List the runs as storage queues them; those of a search are queued one by one, as Optuna chooses them.

        Args:
            seeds: Only runs with these seeds; None lists all.
        """
        return (
            []
            if self.file.optuna
            else [
                PlannedRun(run.key, run.name, run.config.model_dump(mode="json"), run.config.train.t_max, self.settings)
                for run in self.runs
                if seeds is None or run.seed in seeds
            ]
        )

    def to_json(self) -> dict[str, Any]:
        """Give what the database keeps of the plan: the file, and each run's key, cell and seed."""
        runs = [
            {
                "key": run.key,
                "name": run.name,
                "map": run.cell.map,
                "algo": run.cell.algo,
                "label": run.cell.label,
                "seed": run.seed,
            }
            for run in self.runs
        ]
        return {"file": self.file.model_dump(mode="json"), "runs": runs}


def make_plan(file: SweepFile) -> Plan:
    """List and resolve every run of a sweep file.

    Raises:
        ConfigError: With all faults: an unknown key, a value out of bounds, two runs that are the same.
    """
    if (n_runs := count_runs(file)) > MOST_RUNS:
        got = f"{n_runs:,}" if n_runs < _UNCOUNTED else f"{_UNCOUNTED:,} or more"
        raise ConfigError(f"must be at most {MOST_RUNS:,}, the sweep file asks for {got}", key="number of runs")
    plan = Plan(file, ())
    if file.optuna:
        return Plan(file, tuple(_plan_trials(plan, file.optuna)))
    cells = list(_cells(file))
    configs = _resolve_all(file, cells)
    _refuse_twins(cells, configs)
    runs = [
        _make_run(plan, cell, config.model_copy(update={"seed": seed}))
        for seed in file.seeds
        for cell, config in zip(cells, configs, strict=True)
    ]
    return Plan(file, tuple(runs))


def parse_seeds(text: str, plan: Plan) -> frozenset[int]:
    """Read seeds as "1-3,5"; each must be a seed of the plan.

    Raises:
        ConfigError: If the text is malformed, or names a seed that the sweep file does not have.
    """
    seeds: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,10})(?:\s*-\s*(\d{1,10}))?\s*", part)
        if match is None:
            raise ConfigError("must be written as 1-3,5", key="--seeds", value=text)
        first, last = int(match[1]), int(match[2] or match[1])
        if last - first >= MOST_RUNS:
            raise ConfigError(f"must name at most {MOST_RUNS:,} seeds", key="--seeds", value=text)
        seeds |= set(range(first, last + 1))
    known = {run.seed for run in plan.runs}
    if not seeds or not seeds <= known:
        rule = f"must name seeds of the sweep file ({min(known)} to {max(known)})"
        raise ConfigError(rule, key="--seeds", value=text)
    return frozenset(seeds)


def plan_several(config: RunConfig, algos: Sequence[str], seeds: Sequence[int], *, name: str = "") -> Plan:
    """Ask the same of several algorithms: a sweep of a run's task, length and settings, each with these seeds.

    Raises:
        ConfigError: If one of them cannot have these settings.
    """
    settings = flatten(config)
    asked = {
        "name": (name or f"{len(algos)} algorithms on {config.env.map}")[:80],
        "env": config.env.name,
        "map": config.env.map,
        "algo": list(algos),
        "preset": config.preset,
        "steps": config.train.t_max,
        "seeds": list(seeds),
        "set": {key: settings[key] for key in find_own(settings)},
    }
    try:
        return make_plan(SweepFile.model_validate(asked))
    except ValidationError as exc:
        raise ConfigError(*read_faults(exc)) from exc


def make_trial(plan: Plan, number: int, chosen: Mapping[str, Leaf]) -> SweepRun:
    """Make the run of one trial of a search with the settings that were chosen for it.

    Raises:
        ConfigError: If they are no configuration.
    """
    file = plan.file
    label = ", ".join([f"trial {number}", *([_label(file, file.map[0], file.algo[0], None, chosen)] if chosen else [])])
    cell = Cell(file.map[0], file.algo[0], None, dict(chosen), label)
    (config,) = _resolve_all(file, [cell])
    name = " · ".join([file.name, label])
    return SweepRun(cell, config.seed, config, trial_key(plan.id, number), name)


def trial_key(sweep_id: str, number: int) -> str:
    """What tells the run of a trial from every other run."""
    return f"{sweep_id}-trial-{number}"


def _plan_trials(plan: Plan, search: OptunaSearch) -> Iterator[SweepRun]:
    """Stand-ins for the trials of a search, with the settings that nobody chose; first the edges of its space."""
    for key, where in search.space.items():
        for value in where if isinstance(where, tuple) else (where.low, where.high):
            make_trial(plan, 0, {key: as_setting(key, value)})
    if search.metric not in (*EVALUATED, *METRICS):
        hint = suggest(search.metric, [*EVALUATED, *METRICS])
        raise ConfigError("must be a quantity or a logged metric", key="optuna.metric", value=search.metric, hint=hint)
    first = make_trial(plan, 0, {})
    for number in range(search.trials):
        name = f"{plan.file.name} · trial {number}"
        yield replace(
            first, key=trial_key(plan.id, number), name=name, cell=replace(first.cell, label=f"trial {number}")
        )


def as_setting(key: str, value: Leaf) -> Leaf:
    """A number of a range in the type of its setting: whole numbers stay whole."""
    whole = isinstance(value, float) and value.is_integer() and is_whole(key)
    return int(value) if whole else value


def is_whole(key: str) -> bool:
    """Whether a setting is a whole number."""
    return any(info.key == key and info.type == "int" for info in describe_fields())


def count_runs(file: SweepFile) -> int:
    """Count the runs of a sweep file without listing any; where there are very many, at least `_UNCOUNTED`."""
    if file.optuna:
        return file.optuna.trials
    variants = sum(1 if variant.algo else len(file.algo) for variant in file.variant) or len(file.algo)
    samples = file.random.samples if file.random else 1
    n_runs = 1
    for n in (len(file.seeds), len(file.map), variants, samples, *map(len, file.grid.values())):
        n_runs *= n
        if n_runs >= _UNCOUNTED:  # no factor is 0, and the product of a long file has too many digits to be written
            return _UNCOUNTED
    return n_runs


def _resolve_all(file: SweepFile, cells: Iterable[Cell]) -> list[RunConfig]:
    configs: list[RunConfig] = []
    faults: list[Fault] = []
    for cell in cells:
        try:
            configs.append(
                resolve(
                    env=file.env,
                    map=cell.map,
                    algo=cell.algo,
                    steps=file.steps,
                    seed=file.seeds[0],
                    preset=cell.preset or file.preset,
                    overrides={**file.common, **cell.changes},
                )
            )
        except ConfigError as exc:
            faults += [fault for fault in exc.faults if fault not in faults]
            if len(faults) >= _MOST_FAULTS:
                break
    if faults:
        raise ConfigError(*faults)
    return configs


def _refuse_twins(cells: list[Cell], configs: list[RunConfig]) -> None:
    seen: dict[str, Cell] = {}
    for cell, config in zip(cells, configs, strict=True):
        first = seen.setdefault(config.model_dump_json(), cell)
        if first is not cell:
            rule = f'asks for the same run twice: "{first.label}" and "{cell.label}"'
            raise ConfigError(rule, key="sweep file", hint="Remove one of them.")


def _make_run(plan: Plan, cell: Cell, config: RunConfig) -> SweepRun:
    asked = {"map": cell.map, "algo": cell.algo, "set": dict(cell.changes), "variant": cell.variant}
    key = f"{plan.id}-{_digest(asked)[:10]}-{config.seed}"
    parts = [plan.file.name, cell.label, f"seed {config.seed}"]
    return SweepRun(cell, config.seed, config, key, " · ".join(part for part in parts if part))


def _cells(file: SweepFile) -> Iterator[Cell]:
    """Combine maps, algorithms, variants, the grid and the samples; an algorithm of a variant wins over the file's."""
    variants = file.variant or (None,)
    grid = [dict(zip(file.grid, values, strict=True)) for values in product(*file.grid.values())]
    seen: set[tuple[str, str, str | None]] = set()
    for map, algo, variant in product(file.map, file.algo, variants):
        own = variant.algo or algo if variant else algo
        name = variant.name if variant else None
        if (map, own, name) in seen:
            continue
        seen.add((map, own, name))
        fixed = dict(variant.changes) if variant else {}
        for point, sample in product(grid, _samples(file)):
            varied = {**point, **sample}
            label = _label(file, map, own, name, varied)
            yield Cell(map, own, name, {**varied, **fixed}, label, variant.preset if variant else None)


def _samples(file: SweepFile) -> list[dict[str, Leaf]]:
    if file.random is None:
        return [{}]
    rng = np.random.default_rng(file.random.seed)
    ranges = file.random.ranges
    return [{key: _draw(rng, ranges[key]) for key in sorted(ranges)} for _ in range(file.random.samples)]


def _draw(rng: np.random.Generator, where: Range | tuple[Leaf, ...]) -> Leaf:
    if isinstance(where, tuple):
        return where[int(rng.integers(len(where)))]
    if where.log:
        return float(f"{math.exp(rng.uniform(math.log(where.low), math.log(where.high))):.4g}")
    return float(f"{rng.uniform(where.low, where.high):.4g}")


def _label(file: SweepFile, map: str, algo: str, variant: str | None, varied: Mapping[str, Value]) -> str:
    parts = [map] if len(file.map) > 1 else []
    parts += [variant] if variant else []
    parts += [algo] if len(file.algo) > 1 else []
    parts += [f"{key.rpartition('.')[2]} = {write_value(value)}" for key, value in varied.items()]
    return ", ".join(parts)


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
