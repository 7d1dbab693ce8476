"""Choice of the win rate by which the runs of a task are compared: greedy, robust, or that of the training episodes.

On skirmish the greedy episodes of an evaluation start from the same fixed positions and are nearly identical, so the
win rate of 16 episodes has the variance of one or two independent episodes. Robust episodes start from shifted
positions and vary like independent episodes. The default of a task is therefore the robust win rate if every run of
the task has robust evaluations. All runs of a task always use the same win rate. `choose_rates` is the only rule; the
pages, `emtc export`, notebooks and `db.figure` all use it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import pandas as pd

from app.analysis.quantities import ROBUST, SELECTED_RATE, TRAINING_WIN_RATE, WIN_RATE, Quantity, RateName

REASON_FOR_ROBUST = "greedy episodes from fixed starts are nearly identical"
_GREEDY_NOTE = "Win rates of greedy episodes from the default starts of the task."
_MAX_LISTED_RUNS = 3
"""Maximum number of runs that a reason lists."""


class TaskRate(NamedTuple):
    """The default win rate of one task, and the reason."""

    rate: Literal["greedy", "robust"]
    reason: str = ""
    """Why it is greedy although a run has robust evaluations; otherwise empty."""


class _EvaluationCounts(NamedTuple):
    """Number of evaluations of one run with a greedy win rate, and with a robust win rate."""

    greedy: int
    robust: int


def make_rate(rate: RateName, evaluations: pd.DataFrame, tasks: Mapping[str, str]) -> Quantity:
    """Make the quantity of a win rate.

    Args:
        rate: "greedy", "robust" or "training" for all runs; "auto" for the default of each task.
        evaluations: Evaluations with the columns run_id, win_rate and robust_win_rate.
        tasks: Task of each run, in the order in which runs are listed.
    """
    if rate == "greedy":
        return replace(WIN_RATE, note=_GREEDY_NOTE)
    if rate == "robust":
        return ROBUST
    if rate == "training":
        return TRAINING_WIN_RATE
    return _make_default_rate(choose_rates(evaluations, tasks))


def choose_rates(evaluations: pd.DataFrame, tasks: Mapping[str, str]) -> dict[str, TaskRate]:
    """Choose the default win rate of each task: robust if every evaluated run has it, otherwise greedy.

    Runs without evaluations are ignored. A run counts as robust only if each of its evaluations has a robust win rate.

    Args:
        evaluations: Evaluations with the columns run_id, win_rate and robust_win_rate.
        tasks: Task of each run, in the order in which runs are listed.
    """
    n_values = evaluations.groupby("run_id")[["win_rate", "robust_win_rate"]].count()  # NaN is not counted
    counts_by_task: dict[str, dict[str, _EvaluationCounts]] = {}
    for run_id, task in tasks.items():
        if run_id not in n_values.index:
            continue
        n_greedy, n_robust = n_values.loc[run_id]
        if n_greedy:
            counts_by_task.setdefault(task, {})[run_id] = _EvaluationCounts(int(n_greedy), int(n_robust))
    return {task: _choose_task_rate(counts) for task, counts in counts_by_task.items()}


def _choose_task_rate(counts: Mapping[str, _EvaluationCounts]) -> TaskRate:
    """Choose the win rate of one task from the counts of its runs."""
    if not any(count.robust for count in counts.values()):
        return TaskRate("greedy")
    incomplete = [run_id for run_id, count in counts.items() if count.robust < count.greedy]
    if not incomplete:
        return TaskRate("robust")
    return TaskRate("greedy", _describe_missing(incomplete))


def _describe_missing(run_ids: Sequence[str]) -> str:
    """Describe the runs without a robust win rate: "run a1 has evaluations without a robust win rate"."""
    ids = ", ".join(run_ids[:_MAX_LISTED_RUNS])
    more = f" and {len(run_ids) - _MAX_LISTED_RUNS} more" if len(run_ids) > _MAX_LISTED_RUNS else ""
    runs, have = ("runs", "have") if len(run_ids) > 1 else ("run", "has")
    return f"{runs} {ids}{more} {have} evaluations without a robust win rate"


def _make_default_rate(task_rates: Mapping[str, TaskRate]) -> Quantity:
    """Make the quantity of the default win rates: the same for all tasks, or one per task."""
    note = _write_note(task_rates)
    rates = {choice.rate for choice in task_rates.values()}
    if "robust" not in rates:
        return replace(WIN_RATE, note=note)
    if rates == {"robust"}:
        return replace(ROBUST, note=note)
    quantities: dict[Literal["greedy", "robust"], Quantity] = {
        "greedy": replace(WIN_RATE, title=f"greedy {WIN_RATE.title}"),
        "robust": ROBUST,
    }
    by_task = tuple((task, quantities[choice.rate]) for task, choice in sorted(task_rates.items()))
    meanings = "; ".join(f"{task}: {quantity.meaning}" for task, quantity in by_task)
    meaning = f"win rate of its task ({meanings})"
    return replace(WIN_RATE, key=SELECTED_RATE, meaning=meaning, by_task=by_task, note=note)


def _write_note(task_rates: Mapping[str, TaskRate]) -> str:
    """Explain the default win rates for a caption; empty if no run has a robust win rate."""
    robust = sorted(task for task, choice in task_rates.items() if choice.rate == "robust")
    with_reason = sorted((task, choice.reason) for task, choice in task_rates.items() if choice.reason)
    greedy_only = sorted(task for task, choice in task_rates.items() if choice.rate == "greedy" and not choice.reason)
    if not (robust or with_reason):
        return ""
    sentences = []
    if robust:
        on_tasks = f" on {', '.join(robust)}" if len(robust) < len(task_rates) else ""
        sentences.append(f"Robust win rates (shifted starts){on_tasks}, because {REASON_FOR_ROBUST}.")
    sentences += [f"Greedy win rates on {task}, because {reason}." for task, reason in with_reason]
    if greedy_only:
        sentences.append(f"Greedy win rates on {', '.join(greedy_only)}, because no run has a robust win rate.")
    return " ".join(sentences)
