"""Evaluations of comparable runs as the JSON that marl-eval (Gorsane et al., 2022) reads.

marl-eval computes the statistics of the library rliable. It needs the same algorithms on every task, equally many runs
of each algorithm, and equally many evaluations of each run. It also needs "absolute_metrics" of each run: one final
evaluation with more episodes. Here this is the result of `emtc evaluate`, or else the best evaluation of the run.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, NamedTuple

import pandas as pd

from app.analysis.curves import Curves, read_curves, read_tables
from app.analysis.quantities import WIN_RATE
from app.analysis.results import COMMON, Budget, select_finals
from app.analysis.variants import Variant, write_method
from emtc_core.config.base import Value
from emtc_core.errors import ConfigError
from storage.engine import Database
from storage.queries.curves import evaluation_curves, policy_evaluations
from storage.runs.rows import RunRow

MarlEval = Mapping[str, Mapping[str, Mapping[str, Mapping[str, Mapping[str, Any]]]]]
"""environment → task → algorithm → run → step."""


@dataclass(frozen=True)
class MarlEvalExport:
    """The JSON of marl-eval, and remarks for the user."""

    data: MarlEval
    remarks: tuple[str, ...]


class _Result(NamedTuple):
    """The result of one evaluation."""

    env_step: int
    win_rate: float
    return_mean: float


class _RunResults(NamedTuple):
    """A run with its results."""

    id: str
    variant: Variant
    evaluations: list[_Result]
    policy_result: _Result | None
    """Result of `emtc evaluate`; None if the policy of the run was not evaluated by it."""


def to_marl_eval(
    db: Database, rows: Sequence[RunRow], *, include_unfinished: bool = False, budget: Budget = COMMON
) -> MarlEvalExport:
    """Convert the evaluations of some runs, cut to `budget`. A variant is an algorithm, and its seeds are the runs.

    Raises:
        ConfigError: If no run can be compared, or a run has no evaluation with a mean return.
    """
    win_rates = read_curves(read_tables(db, rows), WIN_RATE.key)
    curves = select_finals(win_rates, include_unfinished=include_unfinished, budget=budget)
    if not curves.runs:
        reasons = "; ".join(map(str, curves.excluded)) or "none was evaluated"
        rule = f"must contain a finished run: {reasons}"
        raise ConfigError(rule, key="runs", hint="Include unfinished runs with: --include-unfinished")
    runs = _read_runs(db, curves)
    n_common: dict[str, int] = {}  # evaluations that every run of an environment has
    for run in runs:
        n_evaluations = len(run.evaluations)
        n_common[run.variant.env] = min(n_evaluations, n_common.get(run.variant.env, n_evaluations))
    task_settings = _find_task_settings(curves)
    data: dict[str, Any] = {}
    for run in runs:
        env, map_name = run.variant.env.lower(), run.variant.map.lower()
        algorithm = _name_algorithm(run.variant, task_settings[run.variant.task])
        converted_runs = data.setdefault(env, {}).setdefault(map_name, {}).setdefault(algorithm, {})
        converted_runs[f"run_{len(converted_runs) + 1}"] = _convert_run(run, n_common[run.variant.env])
    remarks = [curves.budget_note, *map(str, curves.excluded), *_list_remarks(runs, n_common)]
    return MarlEvalExport(data, tuple(remarks))


def _read_runs(db: Database, curves: Curves) -> list[_RunResults]:
    """Read the results of the compared runs up to their last steps. Results without win rate or return are ignored.

    Of the results of `emtc evaluate`, those with the most episodes are used, and of these the newest one. Results with
    changed settings of the environment are ignored.
    """
    run_ids = curves.run_ids
    evaluations = _group_by_run(evaluation_curves(db, run_ids))
    policies = policy_evaluations(db, run_ids).sort_values(["episodes", "id"])
    policy_results = _group_by_run(policies.loc[policies["settings"].map(len) == 0])
    runs = []
    for run in curves.runs:
        last_step = curves.get_points(run.id).env_step[-1]
        last_policy_step = last_step if run.comparison_budget else inf
        run_evaluations = [result for result in evaluations[run.id] if result.env_step <= last_step]
        run_policies = [result for result in policy_results[run.id] if result.env_step <= last_policy_step]
        best_policy = run_policies[-1] if run_policies else None  # sorted by number of episodes, then by age
        runs.append(_RunResults(run.id, run.variant, run_evaluations, best_policy))
    return runs


def _group_by_run(frame: pd.DataFrame) -> Mapping[str, list[_Result]]:
    results = defaultdict[str, list[_Result]](list)
    for row in frame.dropna(subset=["win_rate", "return_mean"]).to_dict("records"):
        results[row["run_id"]].append(_Result(row["env_step"], row["win_rate"], row["return_mean"]))
    return results


def _find_task_settings(curves: Curves) -> dict[str, set[tuple[str, Value]]]:
    """Find the changed environment settings that all runs of a task share: they belong to the task."""
    shared: dict[str, set[tuple[str, Value]]] = {}
    for run in curves.runs:
        changes = {(key, value) for key, value in run.variant.changes.items() if key.startswith("env.")}
        shared[run.task] = shared.get(run.task, changes) & changes
    return shared


def _name_algorithm(variant: Variant, task_settings: Collection[tuple[str, Value]]) -> str:
    """Name a variant for marl-eval: without the settings of its task, and without commas, which would end the name."""
    changes = {key: value for key, value in variant.changes.items() if (key, value) not in task_settings}
    method = variant.method
    if len(changes) < len(variant.changes):
        full_name = write_method(variant.algo, variant.changes)
        short_name = write_method(variant.algo, changes)
        method = f"{short_name}{method.removeprefix(full_name)}"  # replaces the settings in the name
    return method.replace(", ", "; ")


def _convert_run(run: _RunResults, n_evaluations: int) -> dict[str, Any]:
    results = run.evaluations[:n_evaluations]
    if not results:
        raise ConfigError("A run has no evaluation with a mean return, which marl-eval needs")
    best = run.policy_result or max(results, key=lambda result: (result.win_rate, result.return_mean))
    steps: dict[str, Any] = {}
    for number, result in enumerate(results, start=1):
        values = {"win_rate": [result.win_rate], "return": [result.return_mean]}
        steps[f"step_{number}"] = {"step_count": result.env_step, **values}
    steps["absolute_metrics"] = {"win_rate": [best.win_rate], "return": [best.return_mean]}
    return steps


def _list_remarks(runs: Sequence[_RunResults], n_common: Mapping[str, int]) -> list[str]:
    remarks = []
    if evaluated := [run.id for run in runs if run.policy_result]:
        remarks.append(f"absolute_metrics of {', '.join(evaluated)} are those of emtc evaluate.")
    if others := [run.id for run in runs if not run.policy_result]:
        remarks.append(
            f"absolute_metrics of {', '.join(others)} are those of the run's best evaluation, because there is no "
            "evaluation with ten times as many episodes. "
            "Make one with: emtc evaluate RUN --checkpoint best --episodes N"
        )
    if shortened := [run.id for run in runs if len(run.evaluations) > n_common[run.variant.env]]:
        remarks.append(
            "marl-eval needs the same number of steps for every run. The last evaluations of "
            f"{', '.join(shortened)} are left out."
        )
    n_runs = Counter(f"{run.variant.method} on {run.variant.task}" for run in runs)
    if len(set(n_runs.values())) > 1:
        numbers = ", ".join(f"{method}: {n}" for method, n in n_runs.items())
        remarks.append(f"marl-eval needs as many runs of each algorithm on each task. The numbers here are {numbers}.")
    return remarks
