"""Which runs are one line of a comparison? Those that differ in nothing but their seed.

A variant is an algorithm on a map with whatever was set otherwise than its preset says; its label names just that, so
an ablation never hides behind the algorithm's name. Knows no storage and draws nothing.
"""

from collections.abc import Mapping
from typing import Any

from emtc_core.config.resolve import Value, flatten_tree, resolve
from emtc_core.errors import ConfigError

_IDENTITY = {"algo", "env.name", "env.map", "seed", "train.t_max"}
_HARMLESS = ("record.", "checkpoint.", "eval.", "train.device", "train.threads")
"""Settings that do not change what is learned."""


def label_variants(configs: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Label every run by what it is a seed of.

    Args:
        configs: Run id → configuration as stored.

    Returns:
        Run id → label, such as "emtc-qplex on 3m (gate.enabled = false)". Budgets are named only where runs that
        are otherwise alike had different ones.
    """
    flat = {run_id: flatten_tree(config) for run_id, config in configs.items()}
    labels = {run_id: _label(values) for run_id, values in flat.items()}
    budgets: dict[str, set[Value]] = {}
    for run_id, label in labels.items():
        budgets.setdefault(label, set()).add(flat[run_id].get("train.t_max"))
    return {
        run_id: label if len(budgets[label]) == 1 else f"{label}, {flat[run_id].get('train.t_max'):,} steps"
        for run_id, label in labels.items()
    }


def _label(values: Mapping[str, Value]) -> str:
    name = f"{values.get('algo')} on {values.get('env.map')}"
    if values.get("env.name", "skirmish") != "skirmish":
        name += f" [{values['env.name']}]"
    changes = [f"{key} = {_show(value)}" for key, value in sorted(_changes(values).items())]
    return f"{name} ({', '.join(changes)})" if changes else name


def _changes(values: Mapping[str, Value]) -> dict[str, Value]:
    """Find what was set otherwise than the preset says, the preset's own name included."""
    usual = _usual(values)
    changed = {
        key: value
        for key, value in values.items()
        if key not in _IDENTITY and not key.startswith(_HARMLESS) and key in usual and usual[key] != value
    }
    return changed if values.get("preset", "paper") == "paper" else changed | {"preset": values["preset"]}


def _usual(values: Mapping[str, Value]) -> Mapping[str, Value]:
    """Resolve the same task without any change; nothing is usual for a task that this version does not know."""
    try:
        steps = values.get("train.t_max")
        config = resolve(
            env=str(values.get("env.name")),
            map=str(values.get("env.map")),
            algo=str(values.get("algo")),
            steps=int(steps) if isinstance(steps, int) else None,
            preset=str(values.get("preset", "paper")),
        )
    except ConfigError:
        return {}
    return flatten_tree(config.model_dump(mode="json"))


def _show(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)
