"""Variants: groups of runs that differ only in their seed. Each is a line of a comparison.

A variant is an algorithm on a map with all settings that differ from its preset (the changes). Its name contains the
changes, so an ablation is never shown under the plain name of the algorithm. The key of its algorithm and changes is
called the method; it is equal on all maps.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import pandas as pd

from app.analysis.settings import (
    FOREIGN_PREFIX,
    IMPORT_LABEL,
    Settings,
    find_changes,
    is_read,
    list_code_warnings,
    name_budget,
    name_method,
    name_task,
    write_value,
)
from emtc_core.config.base import IMPORTED
from emtc_core.config.resolve import Value, flatten_tree
from emtc_core.config.run import list_algos

Key = TypeVar("Key", bound=Hashable)
LENGTH_TOLERANCE: Final = 0.01
"""Lengths of runs [env steps] count as equal if they differ by at most this fraction."""


@dataclass(frozen=True)
class Variant:
    """Runs that differ only in their seed."""

    method: str
    """Key of the algorithm and its changes: "emtc-qplex (gate.enabled = false)". Equal on all maps and in all links."""
    name: str
    """Name of the method in the paper: "EMTC(QPLEX), No-TCGM". It omits `shared`."""
    task: str
    """Map, with the environment unless it is the embedded one: "3m", "3m [smac]"."""
    algo: str
    map: str
    env: str
    run_ids: tuple[str, ...]
    changes: Mapping[str, Value] = field(default_factory=dict)
    """The settings that differ from the preset (`app.analysis.settings.find_changes`)."""
    shared: Mapping[str, Value] = field(default_factory=dict)
    """The preset and the changed settings of `train` that all compared runs share. Captions contain them instead."""

    @property
    def changes_text(self) -> str:
        """Settings in the name, without the preset: "gate.enabled = false"; empty for the plain algorithm."""
        return _write_changes(
            {key: value for key, value in self.changes.items() if key != "preset" and key not in self.shared}
        )

    @property
    def style_key(self) -> tuple[str, str]:
        """Algorithm and changes by which the style of its line is chosen.

        An imported variant has its method instead of the algorithm: an algorithm of another program with an equal name
        must not have the style of ours.
        """
        if IMPORTED in self.changes:
            return write_method(self.algo, self.changes), IMPORTED
        preset = self.changes.get("preset")
        is_preset_in_name = preset is not None and "preset" not in self.shared
        return self.algo, self.changes_text or (f"preset = {write_value(preset)}" if is_preset_in_name else "")

    @property
    def label(self) -> str:
        """Name with the map: "EMTC(QPLEX) on 3m, No-TCGM"."""
        algo, comma, rest = self.name.partition(", ")
        return f"{algo} on {self.task}{comma}{rest}"


def group_variants(configs: Mapping[str, Mapping[str, Any]]) -> list[Variant]:
    """Group runs by all settings except the seed, sorted by task and then by algorithm in the paper's order.

    The training length is part of the method and the name only if runs with otherwise equal settings have different
    lengths.

    Args:
        configs: Stored configurations by run id, nested or flat.
    """
    flat = {run_id: flatten_tree(config) for run_id, config in configs.items()}
    changes_from_preset = {run_id: find_changes(settings) for run_id, settings in flat.items()}
    changes = _add_imported_differences(flat, changes_from_preset)
    shared = _find_shared(changes)
    budgets = _find_budgets(flat)
    groups: dict[tuple[str, str], list[str]] = {}
    for run_id, key in _make_keys(flat, changes, budgets).items():
        groups.setdefault(key, []).append(run_id)
    variants = []
    for (method, task), run_ids in groups.items():
        first = run_ids[0]
        settings = flat[first]
        algo = str(settings.get("algo"))
        named_changes = {key: value for key, value in changes[first].items() if key not in shared}
        name = name_method(algo, named_changes)
        length_suffix = _make_length_suffix(budgets[first])
        if method.endswith(length_suffix):
            name += length_suffix
        variant = Variant(
            method,
            name,
            task,
            algo,
            map=str(settings.get("env.map")),
            env=str(settings.get("env.name")),
            run_ids=tuple(sorted(run_ids, key=lambda run_id: (str(flat[run_id].get("seed")).zfill(10), run_id))),
            changes=changes[first],
            shared=shared,
        )
        variants.append(variant)
    order = {algo: position for position, algo in enumerate(list_algos())}

    def get_order(variant: Variant) -> tuple[str, int, str, str]:
        differing = {key: value for key, value in variant.changes.items() if key not in shared}
        position = order.get(variant.algo, len(order))
        return variant.task, position, write_method(variant.algo, differing), variant.method

    return sorted(variants, key=get_order)


def list_run_code_warnings(configs: Mapping[str, Mapping[str, Any]]) -> tuple[str, ...]:
    """Return a warning per variant whose seeds were trained by different code; see `settings.list_code_warnings`."""
    flat = {run_id: flatten_tree(config) for run_id, config in configs.items()}
    variants = group_variants(configs)
    return list_code_warnings({variant.label: [flat[run_id] for run_id in variant.run_ids] for variant in variants})


def list_differences(configs: Mapping[str, Mapping[str, Any]], variants: Sequence[Variant]) -> pd.DataFrame:
    """Tabulate the settings that differ between runs: setting × variant; a cell has the values of all seeds.

    Only runs whose algorithm reads a setting are compared; the cell of the others is "–".
    """
    flat = {run_id: flatten_tree(configs[run_id]) for variant in variants for run_id in variant.run_ids}
    keys = sorted({key for values in flat.values() for key in values})

    def list_read(key: str, run_ids: Iterable[str]) -> list[Value]:
        return [flat[run_id].get(key) for run_id in run_ids if is_read(key, str(flat[run_id].get("algo")))]

    differing = [key for key in keys if len(set(map(write_value, list_read(key, flat)))) > 1]
    columns = {
        variant.label: [_join_values(list_read(key, variant.run_ids)) for key in differing] for variant in variants
    }
    return pd.DataFrame({"setting": differing, **columns}, dtype="object")


def _find_shared(changes: Mapping[str, Settings]) -> dict[str, Value]:
    """Find the changes that all runs share and that belong to the training, not to the method."""
    changes_of_first_run = next(iter(changes.values()), {})
    shared: dict[str, Value] = {}
    for key, value in changes_of_first_run.items():
        is_of_training = key == "preset" or key.startswith("train.")
        if is_of_training and all(key in other and other[key] == value for other in changes.values()):
            shared[key] = value
    return shared


def _make_keys(
    flat: Mapping[str, Settings], changes: Mapping[str, Settings], budgets: Mapping[str, Value]
) -> dict[str, tuple[str, str]]:
    """Make the key (method, task) of each run, with the training length if otherwise equal runs differ in it."""
    keys = {
        run_id: (write_method(str(values.get("algo")), changes[run_id]), name_task(values))
        for run_id, values in flat.items()
    }
    budgets_by_key: dict[tuple[str, str], set[Value]] = {}
    for run_id, key in keys.items():
        budgets_by_key.setdefault(key, set()).add(budgets[run_id])
    for run_id, (method, task) in keys.items():
        if len(budgets_by_key[method, task]) > 1:
            keys[run_id] = (f"{method}{_make_length_suffix(budgets[run_id])}", task)
    return keys


def _find_budgets(flat: Mapping[str, Settings]) -> dict[str, Value]:
    """Return the training length of each run. Imported runs of a task get one length if theirs differ little."""
    budgets = {run_id: settings.get("train.t_max") for run_id, settings in flat.items()}
    imports: dict[str, dict[str, tuple[int, int]]] = {}  # task → run id → (last env step, evaluation interval)
    for run_id, settings in flat.items():
        steps, interval = budgets[run_id], settings.get("eval.interval")
        if IMPORT_LABEL in settings and isinstance(steps, int):
            interval = interval if isinstance(interval, int) else 0
            imports.setdefault(name_task(settings), {})[run_id] = steps, interval
    for lengths in imports.values():
        budgets |= join_budgets(lengths)
    return budgets


def is_one_budget(steps: int, other: int, eval_interval: int) -> bool:
    """Return whether two imported runs probably have the same budget.

    Only the env steps of their last evaluations are known, and training ends some steps after the last evaluation.

    Args:
        steps: Last env step of a run.
        other: Last env step of another run, or its budget.
        eval_interval: Env steps between two evaluations; 0 if unknown.
    """
    difference = abs(steps - other)
    return difference <= LENGTH_TOLERANCE * max(steps, other) or difference < 2 * eval_interval


def join_budgets(lengths: Mapping[Key, tuple[int, int]]) -> dict[Key, int]:
    """Group imported runs that probably have the same budget, and return the budget of each run.

    Args:
        lengths: Last env step, and env steps between two evaluations (0 if unknown), by run.

    Returns:
        Budget by run: the largest last env step of its group.
    """
    budgets: dict[Key, int] = {}
    group_budget = 0
    # from the longest run to the shortest one: a run that does not fit starts a new group
    for key in sorted(lengths, key=lambda key: lengths[key], reverse=True):
        steps, interval = lengths[key]
        if not budgets or not is_one_budget(steps, group_budget, interval):
            group_budget = steps
        budgets[key] = group_budget
    return budgets


def _add_imported_differences(flat: Mapping[str, Settings], changes: Mapping[str, Settings]) -> dict[str, Settings]:
    """Add settings of the other program to the changes of imported runs that would otherwise be one variant.

    Only the settings in which these runs differ are added.
    """
    groups: dict[tuple[str, str, str], list[str]] = {}
    for run_id, settings in flat.items():
        if IMPORT_LABEL in settings:
            key = (str(settings.get("algo")), name_task(settings), write_method("", changes[run_id]))
            groups.setdefault(key, []).append(run_id)
    result = dict(changes)
    for run_ids in groups.values():
        keys = sorted({key for run_id in run_ids for key in flat[run_id] if key.startswith(FOREIGN_PREFIX)})
        differing = [key for key in keys if len({repr(flat[run_id].get(key)) for run_id in run_ids}) > 1]
        for run_id in run_ids:
            result[run_id] = {key: flat[run_id].get(key) for key in differing} | dict(changes[run_id])
    return result


def write_method(algo: str, changes: Settings) -> str:
    """Write the key of a method: "emtc-qplex (gate.enabled = false)"."""
    text = _write_changes(changes)
    return f"{algo} ({text})" if text else algo


def _write_changes(changes: Settings) -> str:
    return ", ".join(f"{key} = {write_value(value)}" for key, value in sorted(changes.items()))


def _make_length_suffix(budget: Value) -> str:
    return f", {name_budget(budget)}"


def _join_values(values: Sequence[Value]) -> str:
    texts = ["–" if value is None else write_value(value) for value in values]
    return ", ".join(dict.fromkeys(texts)) or "–"
