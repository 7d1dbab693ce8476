"""Choice of the win rate by which the runs of a task are compared: greedy, robust or training.

On skirmish the greedy episodes of an evaluation start from the same fixed positions and are nearly identical, so the
win rate of 16 episodes has the variance of one or two independent episodes. Robust episodes start from shifted
positions and vary like independent episodes. The default of a task is therefore the robust win rate if every run of
the task has robust evaluations. All runs of a task always use the same win rate. `choose_rates` is the only rule; the
pages, `emtc export`, notebooks and `db.figure` all use it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

from app.analysis.aggregates import compute_mu_w_curve
from app.analysis.quantities import (
    AUTO,
    ROBUST,
    SELECTED_RATE,
    TRAINING_WIN_RATE,
    WIN_RATE,
    Quantity,
    RateName,
    average_over_time,
)
from app.analysis.series import NO_CURVE, SeedRun, read_seeds
from storage.engine import Database
from storage.runs.rows import RunRow

REASON_FOR_ROBUST = "greedy episodes from fixed starts are nearly identical"
_GREEDY_NOTE = "Win rates of greedy episodes from the default starts of the task."
_MAX_LISTED = 3


class RatedSeeds(NamedTuple):
    """Runs with their curves, and the quantity of the curves: the first arguments of `join_seeds`."""

    seeds: list[SeedRun]
    quantity: Quantity


class TaskRate(NamedTuple):
    """The default win rate of one task."""

    rate: Literal["greedy", "robust"]
    reason: str = ""
    """Why it is greedy although a run has robust evaluations; otherwise empty."""


def choose_rates(seeds: Iterable[SeedRun]) -> dict[str, TaskRate]:
    """Choose the default win rate of each task: robust if every evaluated run has it, otherwise greedy.

    Runs without evaluations are ignored. A run counts as robust only if each of its evaluations has a robust win rate.

    Args:
        seeds: Runs with their greedy curves.
    """
    by_task: dict[str, list[SeedRun]] = {}
    for seed in seeds:
        if len(seed.curve.steps):
            by_task.setdefault(seed.task, []).append(seed)
    return {task: _choose(runs) for task, runs in by_task.items()}


def _choose(seeds: Sequence[SeedRun]) -> TaskRate:
    if not any(len(seed.robust.steps) for seed in seeds):
        return TaskRate("greedy")
    without = [seed.id for seed in seeds if len(seed.robust.steps) < len(seed.curve.steps)]
    if without:
        ids = ", ".join(without[:_MAX_LISTED])
        more = f" and {len(without) - _MAX_LISTED} more" if len(without) > _MAX_LISTED else ""
        runs, have = ("runs", "have") if len(without) > 1 else ("run", "has")
        return TaskRate("greedy", f"{runs} {ids}{more} {have} evaluations without a robust win rate")
    return TaskRate("robust")


def apply_rate(seeds: Sequence[SeedRun], rate: Literal["auto", "greedy", "robust"] = "auto") -> RatedSeeds:
    """Replace the curve of each run by the curve of the selected win rate.

    Args:
        seeds: Runs with their greedy curves.
        rate: "greedy" or "robust" for all runs; "auto" for the default of each task.
    """
    if rate == "greedy":
        return RatedSeeds(list(seeds), replace(WIN_RATE, note=_GREEDY_NOTE))
    if rate == "robust":
        return RatedSeeds([_with_robust(seed) for seed in seeds], ROBUST)
    task_rates = choose_rates(seeds)
    robust = {task for task, choice in task_rates.items() if choice.rate == "robust"}
    rated = [_with_robust(seed) if seed.task in robust else seed for seed in seeds]
    return RatedSeeds(rated, _make_quantity(task_rates))


def _with_robust(seed: SeedRun) -> SeedRun:
    return replace(seed, curve=seed.robust, distinct_episodes=NO_CURVE.values)


def _make_quantity(task_rates: dict[str, TaskRate]) -> Quantity:
    """Make the quantity of the default win rates: the same for all tasks, or one per task."""
    note, rates = _write_note(task_rates), {choice.rate for choice in task_rates.values()}
    if "robust" not in rates:
        return replace(WIN_RATE, note=note)
    if rates == {"robust"}:
        return replace(ROBUST, note=note)
    greedy = replace(WIN_RATE, title=f"greedy {WIN_RATE.title}")
    by_task = tuple(
        (task, ROBUST if choice.rate == "robust" else greedy) for task, choice in sorted(task_rates.items())
    )
    meaning = f"win rate of its task ({'; '.join(f'{task}: {quantity.meaning}' for task, quantity in by_task)})"
    return replace(WIN_RATE, key=SELECTED_RATE, meaning=meaning, by_task=by_task, note=note)


def _write_note(task_rates: dict[str, TaskRate]) -> str:
    """Explain the default win rates for a caption; empty if no run has a robust win rate."""
    robust = sorted(task for task, choice in task_rates.items() if choice.rate == "robust")
    with_reason = sorted((task, choice.reason) for task, choice in task_rates.items() if choice.reason)
    greedy_only = sorted(task for task, choice in task_rates.items() if choice.rate == "greedy" and not choice.reason)
    if not (robust or with_reason):
        return ""
    sentences = []
    if robust:
        where = f" on {', '.join(robust)}" if len(robust) < len(task_rates) else ""
        sentences.append(f"Robust win rates (shifted starts){where}, because {REASON_FOR_ROBUST}.")
    sentences += [f"Greedy win rates on {task}, because {why}." for task, why in with_reason]
    if greedy_only:
        sentences.append(f"Greedy win rates on {', '.join(greedy_only)}, because no run has a robust win rate.")
    return " ".join(sentences)


def average_curves(rated: RatedSeeds) -> RatedSeeds:
    """Replace the curve of each run by its running time average, mu_w."""
    seeds = [
        replace(seed, curve=compute_mu_w_curve(seed.curve), distinct_episodes=NO_CURVE.values) for seed in rated.seeds
    ]
    return RatedSeeds(seeds, average_over_time(rated.quantity))


def read_rates(db: Database, rows: Sequence[RunRow], rate: RateName = AUTO) -> RatedSeeds:
    """Read the win rates by which runs are compared, with one SQL statement."""
    if rate == "training":
        return RatedSeeds(read_seeds(db, rows, TRAINING_WIN_RATE), TRAINING_WIN_RATE)
    return apply_rate(read_seeds(db, rows), rate)
