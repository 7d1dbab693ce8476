"""A sweep file → the runs that follow from it, each resolved, before anything is created."""

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np

from app.jobs.sweeps.file import Leaf, Range, SweepFile
from emtc_core.config.resolve import Value, resolve
from emtc_core.config.run import RunConfig
from emtc_core.errors import ConfigError
from storage.runs.sweeps import PlannedRun

MOST_RUNS = 5000
_UNCOUNTED = 10**15
_MOST_TOLD = 20


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
        return _digest(self.file.model_dump(mode="json", exclude={"seeds", "about", "study"}))[:8]

    def to_rows(self) -> list[PlannedRun]:
        """List the runs as storage queues them."""
        return [
            PlannedRun(run.key, run.name, run.config.model_dump(mode="json"), run.config.train.t_max)
            for run in self.runs
        ]

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
        ConfigError: One sentence per fault: an unknown key, a value out of bounds, two runs that are the same.
    """
    if (n_runs := count_runs(file)) > MOST_RUNS:
        got = f"{n_runs:,}" if n_runs < _UNCOUNTED else f"{_UNCOUNTED:,} or more"
        raise ConfigError(f"A sweep has {MOST_RUNS:,} runs at most, got {got}.")
    cells = list(_cells(file))
    plan = Plan(file, ())
    configs = _resolve_all(file, cells)
    _refuse_twins(cells, configs)
    runs = [
        _make_run(plan, cell, config.model_copy(update={"seed": seed}))
        for seed in file.seeds
        for cell, config in zip(cells, configs, strict=True)
    ]
    return Plan(file, tuple(runs))


def count_runs(file: SweepFile) -> int:
    """Count the runs of a sweep file without listing any; where there are very many, at least `_UNCOUNTED`."""
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
    faults: dict[str, None] = {}
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
            faults |= dict.fromkeys(str(exc).splitlines())
            if len(faults) >= _MOST_TOLD:
                break
    if faults:
        raise ConfigError("\n".join(faults))
    return configs


def _refuse_twins(cells: list[Cell], configs: list[RunConfig]) -> None:
    seen: dict[str, Cell] = {}
    for cell, config in zip(cells, configs, strict=True):
        first = seen.setdefault(config.model_dump_json(), cell)
        if first is not cell:
            raise ConfigError(f'"{first.label}" and "{cell.label}" are the same run. Remove one of them.')


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
    parts += [f"{key.rpartition('.')[2]} = {_show(value)}" for key, value in varied.items()]
    return ", ".join(parts)


def _show(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
