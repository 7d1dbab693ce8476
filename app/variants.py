"""Which runs are one line of a comparison? Those that differ in nothing but their seed.

A variant is an algorithm on a map with whatever was set otherwise than its preset says; its label names just that, so
an ablation never hides behind the algorithm's name. Knows no storage and draws nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pandas as pd

from emtc_core.config.resolve import Value, flatten_tree, resolve
from emtc_core.config.run import list_algos
from emtc_core.errors import ConfigError

_IDENTITY = {"algo", "env.name", "env.map", "seed", "train.t_max"}
_HARMLESS = ("record.", "checkpoint.", "eval.", "train.device", "train.threads")
"""Settings that do not change what is learned."""


@dataclass(frozen=True)
class Variant:
    """Runs that differ in nothing but their seed."""

    method: str
    """Algorithm and what was changed, "emtc-qplex (gate.enabled = false)": the same on every map."""
    task: str
    """Map, and the environment where it is not the embedded one: "3m", "3m [smac]"."""
    algo: str
    map: str
    env: str
    run_ids: tuple[str, ...]

    @property
    def label(self) -> str:
        """Name it where several maps stand together."""
        return _join(self.method, self.task)


def label_variants(configs: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Label every run by what it is a seed of.

    Args:
        configs: Run id → configuration as stored.

    Returns:
        Run id → label, such as "emtc-qplex on 3m (gate.enabled = false)". Budgets are named only where runs that
        are otherwise alike had different ones.
    """
    return {run_id: variant.label for variant in group_variants(configs) for run_id in variant.run_ids}


def group_variants(configs: Mapping[str, Mapping[str, Any]]) -> list[Variant]:
    """Group runs by every setting except the seed: by task, then by algorithm in the paper's order."""
    groups: dict[tuple[str, str], list[str]] = {}
    flat = {run_id: flatten_tree(config) for run_id, config in configs.items()}
    for run_id, key in _keys(flat).items():
        groups.setdefault(key, []).append(run_id)
    variants = []
    for (method, task), run_ids in groups.items():
        values = flat[run_ids[0]]
        algo, map, env = (str(values.get(key)) for key in ("algo", "env.map", "env.name"))
        by_seed = sorted(run_ids, key=lambda each: (str(flat[each].get("seed")).zfill(10), each))
        variants.append(Variant(method, task, algo, map, env, tuple(by_seed)))
    order = {algo: place for place, algo in enumerate(list_algos())}
    return sorted(variants, key=lambda each: (each.task, order.get(each.algo, len(order)), each.method))


def list_differences(configs: Mapping[str, Mapping[str, Any]], variants: Sequence[Variant]) -> pd.DataFrame:
    """List the settings whose values differ between runs: setting × variant, the seeds of a variant in one cell."""
    flat = {run_id: flatten_tree(configs[run_id]) for variant in variants for run_id in variant.run_ids}
    keys = sorted({key for values in flat.values() for key in values})
    differing = [key for key in keys if len({_show(values.get(key)) for values in flat.values()}) > 1]
    columns = {
        variant.label: [_join_values([flat[run_id].get(key) for run_id in variant.run_ids]) for key in differing]
        for variant in variants
    }
    return pd.DataFrame({"setting": differing, **columns}, dtype="object")


def _keys(flat: Mapping[str, Mapping[str, Value]]) -> dict[str, tuple[str, str]]:
    """Name method and task of every run; the budget only where it tells otherwise equal runs apart."""
    keys = {run_id: (_method(values), _task(values)) for run_id, values in flat.items()}
    budgets: dict[tuple[str, str], set[Value]] = {}
    for run_id, key in keys.items():
        budgets.setdefault(key, set()).add(flat[run_id].get("train.t_max"))
    return {
        run_id: (method, task) if len(budgets[method, task]) == 1 else (f"{method}, {_budget(flat[run_id])}", task)
        for run_id, (method, task) in keys.items()
    }


def _budget(values: Mapping[str, Value]) -> str:
    steps = values.get("train.t_max")
    return f"{steps:,} steps" if isinstance(steps, int) else "unknown budget"


def _join(method: str, task: str) -> str:
    """Put the task behind the algorithm's name: "qmix on 3m, 2,000 steps"."""
    cut = min((place for place in (method.find(" ("), method.find(", ")) if place >= 0), default=len(method))
    return f"{method[:cut]} on {task}{method[cut:]}"


def _task(values: Mapping[str, Value]) -> str:
    env = values.get("env.name", "skirmish")
    return str(values.get("env.map")) if env == "skirmish" else f"{values.get('env.map')} [{env}]"


def _method(values: Mapping[str, Value]) -> str:
    changes = [f"{key} = {_show(value)}" for key, value in sorted(_changes(values).items())]
    return f"{values.get('algo')} ({', '.join(changes)})" if changes else str(values.get("algo"))


def _changes(values: Mapping[str, Value]) -> dict[str, Value]:
    """Find what was set otherwise than the preset says, the preset's own name included."""
    steps = values.get("train.t_max")
    usual = _usual(
        str(values.get("env.name")),
        str(values.get("env.map")),
        str(values.get("algo")),
        int(steps) if isinstance(steps, int) else None,
        str(values.get("preset", "paper")),
    )
    changed = {
        key: value
        for key, value in values.items()
        if key not in _IDENTITY and not key.startswith(_HARMLESS) and key in usual and usual[key] != value
    }
    return changed if values.get("preset", "paper") == "paper" else changed | {"preset": values["preset"]}


@lru_cache(maxsize=512)
def _usual(env: str, map: str, algo: str, steps: int | None, preset: str) -> Mapping[str, Value]:
    """Resolve the same task without any change; nothing is usual for a task that this version does not know."""
    try:
        config = resolve(env=env, map=map, algo=algo, steps=steps, preset=preset)
    except ConfigError:
        return {}
    return flatten_tree(config.model_dump(mode="json"))


def _join_values(values: Sequence[Value]) -> str:
    return ", ".join(dict.fromkeys("–" if value is None else _show(value) for value in values))


def _show(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


def matches_settings(config: Mapping[str, Any], wanted: Mapping[str, str]) -> bool:
    """Tell whether a run was configured so: dotted key → value as it is written on the command line."""
    values = flatten_tree(config)
    return all(key in values and _show(values[key]).lower() == text.lower() for key, text in wanted.items())
