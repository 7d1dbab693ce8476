"""Make the plan of a sweep file: the list of its runs with resolved configurations. Nothing is stored here.

A cell is one combination of the values that vary, without a seed. A trial is one run of a search by Optuna.
"""

import hashlib
import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
from pydantic import ValidationError

from app.analysis.quantities import EVALUATION_QUANTITIES
from app.analysis.settings import name_algo, write_value
from app.jobs import launch_request
from app.jobs.sweeps.file import OptunaSearch, Range, SettingValue, SweepFile
from emtc_core.config.base import convert_errors
from emtc_core.config.resolve import Value, describe_fields, flatten, resolve, suggest
from emtc_core.config.run import RunConfig
from emtc_core.envs.registry import find_map_module
from emtc_core.errors import ConfigError, Fault
from emtc_core.metrics import METRICS
from storage.runs.sweeps import PlannedRun

MAX_RUNS = 5000
_MAX_COUNT = 10**15
"""Larger numbers of runs are not counted exactly."""
_MAX_FAULTS = 20


@dataclass(frozen=True)
class SweepCell:
    """One combination of the values that vary in a sweep, without a seed."""

    map: str
    algo: str
    variant: str | None
    changes: Mapping[str, SettingValue]
    """Setting → value, including the settings of the variant."""
    label: str
    """Name of the cell in the sweep, such as "3m, lam = 0.1"; empty if nothing varies."""
    preset: str | None = None
    """Preset instead of the file's."""


@dataclass(frozen=True)
class SweepRun:
    """One run of a plan."""

    cell: SweepCell
    seed: int
    config: RunConfig
    key: str
    """Unique key of the run, made of the sweep's id, the cell and the seed, or of the number of the trial."""
    name: str


@dataclass(frozen=True)
class Plan:
    """All runs of a sweep file in the order of their start: all cells with the first seed, then with the next seed."""

    file: SweepFile
    runs: tuple[SweepRun, ...]

    @cached_property
    def id(self) -> str:
        """Id of the sweep: a digest of the file without its seeds (or trials), so that more seeds extend the sweep."""
        content = self.file.model_dump(mode="json", exclude={"seeds", "about", "study", "optuna"})
        if self.file.optuna:
            content["optuna"] = self.file.optuna.model_dump(mode="json", exclude={"trials"})
            content["seeds"] = list(self.file.seeds)
        return _digest(content)[:8]

    @cached_property
    def settings(self) -> frozenset[str]:
        """Dotted keys of the settings that differ between the runs because of the file."""
        changed = {key for run in self.runs for key in run.cell.changes}
        return frozenset({"env.map", "algo", "preset", "seed"} | changed)

    @property
    def env_modules(self) -> frozenset[str]:
        """Modules of environments that the file names by import path. A process that trains the sweep imports them."""
        modules = {find_map_module(run.config.env) for run in self.runs}
        return frozenset(module for module in modules if module)

    def to_rows(self, seeds: Collection[int] | None = None) -> list[PlannedRun]:
        """List the runs for the queue. The list is empty for a search, because its trials are queued one by one.

        Args:
            seeds: Only runs with these seeds; None lists all.
        """
        if self.file.optuna:
            return []
        return [
            PlannedRun(run.key, run.name, run.config.model_dump(mode="json"), run.config.train.t_max, self.settings)
            for run in self.runs
            if seeds is None or run.seed in seeds
        ]

    def to_json(self) -> dict[str, Any]:
        """Return what the database stores of the plan: the file, and the key, cell and seed of each run."""
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
    """Resolve the configuration of every run of a sweep file.

    Raises:
        ConfigError: With all faults: unknown keys, values out of bounds, two identical runs, too many runs.
    """
    n_runs = count_runs(file)
    if n_runs > MAX_RUNS:
        got = f"{n_runs:,}" if n_runs < _MAX_COUNT else f"{_MAX_COUNT:,} or more"
        raise ConfigError(f"must be at most {MAX_RUNS:,}, the sweep file has {got}", key="number of runs")
    plan = Plan(file, ())  # it has the id of the sweep, from which the keys of the runs are made
    if file.optuna:
        return Plan(file, tuple(_plan_trials(plan, file.optuna)))
    cells = list(_list_cells(file))
    configs = _resolve_all(file, cells)
    _check_distinct(cells, configs)
    runs = [
        _make_run(plan, cell, config.model_copy(update={"seed": seed}))
        for seed in file.seeds
        for cell, config in zip(cells, configs, strict=True)
    ]
    return Plan(file, tuple(runs))


def parse_seeds(text: str, plan: Plan) -> frozenset[int]:
    """Parse seeds such as "1-3,5". Each must be a seed of the plan.

    Raises:
        ConfigError: If the text has another format, or names a seed that is not in the sweep file.
    """
    seeds = frozenset(launch_request.parse_seeds(text, key="--seeds", max_seeds=MAX_RUNS))
    plan_seeds = {run.seed for run in plan.runs}
    if not seeds <= plan_seeds:
        rule = f"must name seeds of the sweep file ({min(plan_seeds)} to {max(plan_seeds)})"
        raise ConfigError(rule, key="--seeds", value=text)
    return seeds


def plan_algorithms(config: RunConfig, algos: Sequence[str], seeds: Sequence[int], *, name: str = "") -> Plan:
    """Plan a sweep that trains several algorithms with the task, length and settings of one configuration.

    Args:
        config: Configuration of a run.
        algos: Algorithms.
        seeds: Seeds of each algorithm.
        name: Name of the sweep; by default it is made of the algorithm, or the number of algorithms, and the map.

    Raises:
        ConfigError: If an algorithm does not support these settings.
    """
    settings = flatten(config)
    algorithms = name_algo(algos[0]) if len(algos) == 1 else f"{len(algos)} algorithms"
    content = {
        "name": (name or f"{algorithms} on {config.env.map}")[:80],
        "env": config.env.name,
        "map": config.env.map,
        "algo": list(algos),
        "preset": config.preset,
        "steps": config.train.t_max,
        "seeds": list(seeds),
        "set": {key: settings[key] for key in launch_request.find_changed_settings(settings)},
    }
    try:
        return make_plan(SweepFile.model_validate(content))
    except ValidationError as exc:
        raise ConfigError(*convert_errors(exc)) from exc


def plan_more_seeds(plan: Plan, number: int, settings: Mapping[str, SettingValue], n_seeds: int) -> Plan:
    """Plan a sweep that trains the settings of a trial with seeds that the search has not used.

    The search selected the trial for its result with the seed of the search, so this seed would favor it.

    Args:
        plan: Plan of the search.
        number: Number of the trial.
        settings: Settings of the trial.
        n_seeds: Number of seeds.

    Raises:
        ConfigError: If the settings are not a valid configuration.
    """
    content = plan.file.model_dump(mode="json", exclude={"optuna"})
    content |= {
        "name": f"{plan.file.name[:60]}, trial {number}",
        "about": f"Trial {number} of the search {plan.id} with other seeds than that of the search.",
        "seeds": [seed for seed in range(1, n_seeds + 2) if seed not in plan.file.seeds][:n_seeds],
        "set": {**plan.file.common, **settings},
    }
    return make_plan(SweepFile.model_validate(content))


def make_trial(plan: Plan, number: int, settings: Mapping[str, SettingValue]) -> SweepRun:
    """Make the run of one trial of a search.

    Args:
        plan: Plan of the search.
        number: Number of the trial.
        settings: Values that Optuna has suggested.

    Raises:
        ConfigError: If the values are not a valid configuration.
    """
    file = plan.file
    label = f"trial {number}"
    if settings:
        label = f"{label}, {_make_label(file, file.map[0], file.algo[0], None, settings)}"
    cell = SweepCell(file.map[0], file.algo[0], None, dict(settings), label)
    (config,) = _resolve_all(file, [cell])
    return SweepRun(cell, config.seed, config, trial_key(plan.id, number), f"{file.name} · {label}")


def trial_key(sweep_id: str, number: int) -> str:
    """Return the unique key of a trial's run."""
    return f"{sweep_id}-trial-{number}"


def convert_to_setting_type(key: str, value: SettingValue) -> SettingValue:
    """Convert a number of a range to the type of its setting: 8.0 becomes 8 for an integer setting."""
    is_integer = isinstance(value, float) and value.is_integer() and is_integer_setting(key)
    return int(value) if is_integer else value


def is_integer_setting(key: str) -> bool:
    """Whether a setting is an integer."""
    return any(info.key == key and info.type == "int" for info in describe_fields())


def count_runs(file: SweepFile) -> int:
    """Count the runs of a sweep file without listing them, up to `_MAX_COUNT`."""
    if file.optuna:
        return file.optuna.trials
    # A variant with its own algorithm is trained once, another variant with each algorithm of the file.
    n_variants = sum(1 if variant.algo else len(file.algo) for variant in file.variant) or len(file.algo)
    n_samples = file.random.samples if file.random else 1
    n_runs = 1
    for n in (len(file.seeds), len(file.map), n_variants, n_samples, *map(len, file.grid.values())):
        n_runs *= n
        if n_runs >= _MAX_COUNT:  # the full product of a long file would have too many digits for a message
            return _MAX_COUNT
    return n_runs


def _plan_trials(plan: Plan, search: OptunaSearch) -> Iterator[SweepRun]:
    """Check the search and yield a run for each trial with the settings that the search does not vary.

    Raises:
        ConfigError: If a bound or a choice of the space is not a valid value, or the metric is unknown.
    """
    for key, space in search.space.items():
        values = space if isinstance(space, tuple) else (space.low, space.high)
        for value in values:
            make_trial(plan, 0, {key: convert_to_setting_type(key, value)})  # raises if the value is invalid
    if search.metric not in (*EVALUATION_QUANTITIES, *METRICS):
        hint = suggest(search.metric, [*EVALUATION_QUANTITIES, *METRICS])
        raise ConfigError("must be a quantity or a logged metric", key="optuna.metric", value=search.metric, hint=hint)
    first = make_trial(plan, 0, {})
    for number in range(search.trials):
        label = f"trial {number}"
        cell = replace(first.cell, label=label)
        yield replace(first, key=trial_key(plan.id, number), name=f"{plan.file.name} · {label}", cell=cell)


def _resolve_all(file: SweepFile, cells: Iterable[SweepCell]) -> list[RunConfig]:
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
            if len(faults) >= _MAX_FAULTS:
                break
    if faults:
        raise ConfigError(*faults)
    return configs


def _check_distinct(cells: list[SweepCell], configs: list[RunConfig]) -> None:
    """Raise if two cells have the same configuration."""
    first_cells: dict[str, SweepCell] = {}
    for cell, config in zip(cells, configs, strict=True):
        first = first_cells.setdefault(config.model_dump_json(), cell)
        if first is not cell:
            rule = f'contains the same run twice: "{first.label}" and "{cell.label}"'
            raise ConfigError(rule, key="sweep file", hint="Remove one of them.")


def _make_run(plan: Plan, cell: SweepCell, config: RunConfig) -> SweepRun:
    content = {"map": cell.map, "algo": cell.algo, "set": dict(cell.changes), "variant": cell.variant}
    key = f"{plan.id}-{_digest(content)[:10]}-{config.seed}"
    parts = [plan.file.name, cell.label, f"seed {config.seed}"]
    return SweepRun(cell, config.seed, config, key, " · ".join(part for part in parts if part))


def _list_cells(file: SweepFile) -> Iterator[SweepCell]:
    """Combine maps, algorithms, variants, grid and samples. The algorithm of a variant replaces that of the file."""
    variants = file.variant or (None,)
    grid = [dict(zip(file.grid, values, strict=True)) for values in product(*file.grid.values())]
    combinations: set[tuple[str, str, str | None]] = set()  # a variant with its own algorithm occurs several times
    for map, file_algo, variant in product(file.map, file.algo, variants):
        algo = file_algo
        name = None
        if variant:
            algo = variant.algo or file_algo
            name = variant.name
        if (map, algo, name) in combinations:
            continue
        combinations.add((map, algo, name))
        variant_settings = dict(variant.changes) if variant else {}
        for point, sample in product(grid, _draw_samples(file)):
            varied = {**point, **sample}
            label = _make_label(file, map, algo, name, varied)
            preset = variant.preset if variant else None
            yield SweepCell(map, algo, name, {**varied, **variant_settings}, label, preset)


def _draw_samples(file: SweepFile) -> list[dict[str, SettingValue]]:
    if file.random is None:
        return [{}]
    rng = np.random.default_rng(file.random.seed)
    ranges = file.random.ranges
    return [{key: _draw(rng, ranges[key]) for key in sorted(ranges)} for _ in range(file.random.samples)]


def _draw(rng: np.random.Generator, space: Range | tuple[SettingValue, ...]) -> SettingValue:
    """Draw a value with four significant digits from a range, or one value of a list."""
    if isinstance(space, tuple):
        return space[int(rng.integers(len(space)))]
    if space.log:
        value = math.exp(rng.uniform(math.log(space.low), math.log(space.high)))
    else:
        value = rng.uniform(space.low, space.high)
    return float(f"{value:.4g}")


def _make_label(file: SweepFile, map: str, algo: str, variant: str | None, varied: Mapping[str, Value]) -> str:
    """Write the values of a cell that vary in the file, such as "3m, lam = 0.1"."""
    parts: list[str] = []
    if len(file.map) > 1:
        parts.append(map)
    if variant:
        parts.append(variant)
    if len(file.algo) > 1:
        parts.append(algo)
    parts += [f"{key.rpartition('.')[2]} = {write_value(value)}" for key, value in varied.items()]
    return ", ".join(parts)


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
