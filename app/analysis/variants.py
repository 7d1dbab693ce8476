"""Which runs are one line of a comparison? Those that differ in nothing but their seed.

A variant is an algorithm on a map with whatever was set otherwise than its preset says; its name tells just that, so
an ablation never hides behind the algorithm's name. Knows no storage and draws nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from app.analysis.settings import (
    Settings,
    doubt_seeds,
    find_changes,
    name_budget,
    name_method,
    name_task,
    read_origins,
    write_value,
)
from emtc_core.config.resolve import Value, flatten_tree
from emtc_core.config.run import list_algos


@dataclass(frozen=True)
class Variant:
    """Runs that differ in nothing but their seed."""

    method: str
    """Algorithm and what was changed, "emtc-qplex (gate.enabled = false)": the same on every map and in every link."""
    name: str
    """The same in the paper's words, "EMTC(QPLEX), No-TCGM"; a preset that all share is left to the caption."""
    task: str
    """Map, and the environment where it is not the embedded one: "3m", "3m [smac]"."""
    algo: str
    map: str
    env: str
    run_ids: tuple[str, ...]
    changes: Mapping[str, Value] = field(default_factory=dict)

    @property
    def changed(self) -> str:
        """What was set otherwise than any preset says, "gate.enabled = false"; empty for the plain algorithm."""
        return _write_changes({key: value for key, value in self.changes.items() if key != "preset"})

    @property
    def label(self) -> str:
        """Its name where several maps stand together: "EMTC(QPLEX) on 3m, No-TCGM"."""
        algo, comma, rest = self.name.partition(", ")
        return f"{algo} on {self.task}{comma}{rest}"


def group_variants(configs: Mapping[str, Mapping[str, Any]]) -> list[Variant]:
    """Group runs by every setting except the seed: by task, then by algorithm in the paper's order.

    Args:
        configs: Run id → configuration as stored, nested or flat. Budgets are named only where runs that are otherwise
            alike had different ones.
    """
    flat = {run_id: flatten_tree(config) for run_id, config in configs.items()}
    changes = {run_id: find_changes(settings) for run_id, settings in flat.items()}
    presets = {str(each.get("preset", "")) for each in changes.values()}
    groups: dict[tuple[str, str], list[str]] = {}
    for run_id, key in _keys(flat, changes).items():
        groups.setdefault(key, []).append(run_id)
    variants = []
    for (method, task), run_ids in groups.items():
        first = run_ids[0]
        values = flat[first]
        algo, map, env = (str(values.get(key)) for key in ("algo", "env.map", "env.name"))
        told = {key: value for key, value in changes[first].items() if key != "preset" or len(presets) > 1}
        budget = f", {name_budget(values.get('train.t_max'))}" if method.endswith(_budget(values)) else ""
        by_seed = sorted(run_ids, key=lambda each: (str(flat[each].get("seed")).zfill(10), each))
        name = name_method(algo, told, read_origins(values)) + budget
        variants.append(Variant(method, name, task, algo, map, env, tuple(by_seed), changes[first]))
    order = {algo: place for place, algo in enumerate(list_algos())}
    return sorted(variants, key=lambda each: (each.task, order.get(each.algo, len(order)), each.method))


def doubt_runs(configs: Mapping[str, Mapping[str, Any]]) -> tuple[str, ...]:
    """Say of which variants the seeds were trained by code that differs; see `code.doubt_seeds`."""
    flat = {run_id: flatten_tree(config) for run_id, config in configs.items()}
    variants = group_variants(configs)
    return doubt_seeds({variant.label: [flat[run_id] for run_id in variant.run_ids] for variant in variants})


def list_differences(configs: Mapping[str, Mapping[str, Any]], variants: Sequence[Variant]) -> pd.DataFrame:
    """List the settings whose values differ between runs: setting × variant, the seeds of a variant in one cell."""
    flat = {run_id: flatten_tree(configs[run_id]) for variant in variants for run_id in variant.run_ids}
    keys = sorted({key for values in flat.values() for key in values})
    differing = [key for key in keys if len({write_value(values.get(key)) for values in flat.values()}) > 1]
    columns = {
        variant.label: [_join_values([flat[run_id].get(key) for run_id in variant.run_ids]) for key in differing]
        for variant in variants
    }
    return pd.DataFrame({"setting": differing, **columns}, dtype="object")


def _keys(flat: Mapping[str, Settings], changes: Mapping[str, Settings]) -> dict[str, tuple[str, str]]:
    """Method and task of every run by name; the budget only where it tells otherwise equal runs apart."""
    keys = {run_id: (_method(values, changes[run_id]), name_task(values)) for run_id, values in flat.items()}
    budgets: dict[tuple[str, str], set[Value]] = {}
    for run_id, key in keys.items():
        budgets.setdefault(key, set()).add(flat[run_id].get("train.t_max"))
    return {
        run_id: (method, task) if len(budgets[method, task]) == 1 else (f"{method}{_budget(flat[run_id])}", task)
        for run_id, (method, task) in keys.items()
    }


def _method(values: Settings, changes: Settings) -> str:
    return write_method(str(values.get("algo")), changes)


def write_method(algo: str, changes: Settings) -> str:
    """Write what makes a method: "emtc-qplex (gate.enabled = false)"."""
    said = _write_changes(changes)
    return f"{algo} ({said})" if said else algo


def _write_changes(changes: Settings) -> str:
    return ", ".join(f"{key} = {write_value(value)}" for key, value in sorted(changes.items()))


def _budget(values: Settings) -> str:
    return f", {name_budget(values.get('train.t_max'))}"


def _join_values(values: Sequence[Value]) -> str:
    return ", ".join(dict.fromkeys("–" if value is None else write_value(value) for value in values))
