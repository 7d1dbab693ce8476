"""Evaluations in the JSON of marl-eval (Gorsane et al., 2022), which feeds rliable's statistics.

environment → task → algorithm → run_1… → step_1… → step_count, win_rate [1 value], return [1 value]; and
absolute_metrics in the place of a last step. Source: the README of instadeepai/marl-eval, checked against its 0.0.4.
Names are lower case, as its tools look them up, and hold no comma, which they refuse. It computes with arrays, so every
run of an environment has the same number of steps here; what that left out is told.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from app.analysis.series import Comparison, read_seeds, settle
from emtc_core.errors import ConfigError
from storage.engine import Database
from storage.queries.curves import evaluation_curves
from storage.runs.rows import RunRow

MarlEval = Mapping[str, Mapping[str, Mapping[str, Mapping[str, Mapping[str, Any]]]]]
"""environment → task → algorithm → run → step."""
Played = tuple[int, float, float]
"""Env step, win rate and mean return of one evaluation."""


@dataclass(frozen=True)
class Exported:
    """The JSON, and what to know about it."""

    data: MarlEval
    remarks: tuple[str, ...]


def to_marl_eval(db: Database, rows: Sequence[RunRow], *, include_unfinished: bool = False) -> Exported:
    """Lay out the evaluations of some runs; an algorithm is a variant, its runs are its seeds.

    Raises:
        ConfigError: If no run counts.
    """
    comparison = settle(read_seeds(db, rows), include_unfinished=include_unfinished, final=True)
    if not comparison.groups:
        reasons = "; ".join(map(str, comparison.left_out)) or "none was evaluated"
        raise ConfigError(f"No run counts: {reasons}. Unfinished ones count with: --include-unfinished")
    runs = _read(db, comparison)
    steps = _steps(comparison, runs)
    data: dict[str, Any] = {}
    for group in comparison.groups:
        variant = group.variant
        tasks = data.setdefault(variant.env.lower(), {}).setdefault(variant.map.lower(), {})
        tasks[variant.method.replace(", ", "; ")] = {
            f"run_{number}": _lay_out(runs[run_id], steps[variant.env])
            for number, run_id in enumerate(group.run_ids, start=1)
        }
    return Exported(data, (*map(str, comparison.left_out), *_remarks(comparison, runs, steps)))


def _read(db: Database, comparison: Comparison) -> dict[str, list[Played]]:
    """Read env step, win rate and return of every evaluation that has both, by run."""
    ids = [run_id for group in comparison.groups for run_id in group.run_ids]
    frame = evaluation_curves(db, ids)
    runs: dict[str, list[Played]] = {run_id: [] for run_id in ids}
    columns = (frame[name].tolist() for name in ("run_id", "env_step", "win_rate", "return_mean"))
    for run_id, step, rate, score in zip(*columns, strict=True):
        if isfinite(rate) and isfinite(score):
            runs[run_id].append((step, rate, score))
    return runs


def _steps(comparison: Comparison, runs: Mapping[str, Sequence[Played]]) -> dict[str, int]:
    """Count the evaluations that every run of an environment has."""
    fewest: dict[str, int] = {}
    for group in comparison.groups:
        for run_id in group.run_ids:
            fewest[group.variant.env] = min(len(runs[run_id]), fewest.get(group.variant.env, len(runs[run_id])))
    return fewest


def _lay_out(played: Sequence[Played], n: int) -> dict[str, Any]:
    shown = played[:n]
    if not shown:
        raise ConfigError("A run's evaluations have no mean return, which marl-eval wants beside the win rate.")
    steps: dict[str, Any] = {
        f"step_{place}": {"step_count": step, "win_rate": [rate], "return": [score]}
        for place, (step, rate, score) in enumerate(shown, start=1)
    }
    _, rate, score = max(shown, key=lambda each: each[1:])
    steps["absolute_metrics"] = {"win_rate": [rate], "return": [score]}
    return steps


def _remarks(comparison: Comparison, runs: Mapping[str, Sequence[Played]], steps: Mapping[str, int]) -> list[str]:
    remarks = ["absolute_metrics are those of a run's best evaluation; none of ten times as many episodes was made."]
    cut = [run for group in comparison.groups for run in group.run_ids if len(runs[run]) > steps[group.variant.env]]
    if cut:
        remarks.append(f"marl-eval wants as many steps of every run; the last evaluations are left out of {cut}.")
    counts = {f"{group.variant.method} on {group.variant.task}": group.n for group in comparison.groups}
    if len(set(counts.values())) > 1:
        said = ", ".join(f"{name}: {n}" for name, n in counts.items())
        remarks.append(f"marl-eval wants as many runs of each algorithm on each task, here are {said}.")
    return remarks
