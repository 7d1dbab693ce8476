"""The runs that count as results, and the common budget at which they are compared.

Runs that have finished or have reached their target steps are results. Other runs are left out and listed with the
reason, or included and marked with a dagger.

A budget is a number of env steps. A win rate after 4,000 env steps and one after 40,000 env steps are not comparable,
so the runs of a task are compared at one budget. A task is a map of an environment. By default only runs with the most
common length of their task are compared, and each other run is listed with its length. If the user gives a budget,
evaluations after the budget are ignored, and each caption states this.

A variant is an algorithm with its settings; its runs differ only in the seed.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, Literal

import numpy as np

from app.analysis.curves import ComparedRun, Curves, PointTable
from app.analysis.quantities import REASONS_WITHOUT_VALUE
from app.analysis.settings import IMPORT_LABEL, parse_steps
from app.analysis.variants import LENGTH_TOLERANCE
from storage.engine import Database
from storage.queries.run_search import RunFilter, matching_ids
from storage.queries.runs import get_rows
from storage.runs.rows import RunRow, find_run

Budget = int | Literal["common", "own"]
"""Env steps; "common": the most common one of a task's runs; "own": the end of each run."""
COMMON: Final = "common"
OWN_END: Final = "own"
_EQUAL_LENGTH_FACTOR: Final = 1 + LENGTH_TOLERANCE
"""Two lengths are equal if the longer one is at most this factor times the shorter one.

Training ends only after the episodes that have started, so a run can be a little longer than its target steps.
"""


def select_runs(
    db: Database,
    names: Sequence[str] | None = None,
    *,
    maps: Collection[str] | None = None,
    algos: Collection[str] | None = None,
) -> list[RunRow]:
    """List the named runs in their order, or all evaluated runs, newest first. Unfinished runs are included.

    Args:
        db: An open database.
        names: Run ids or prefixes. Hidden and archived runs are listed only if they are named.
        maps: Only runs on these maps.
        algos: Only runs of these algorithms.

    Raises:
        RunNotFoundError: If a name is not the id of a run or a prefix of one.
    """
    if names:
        named_rows = [find_run(db, name) for name in dict.fromkeys(names)]
        rows = list({row.id: row for row in named_rows}.values())
    else:
        # "drawn" selects the runs that are neither hidden nor archived.
        run_filter = RunFilter(visibility="drawn", evaluated=True)
        rows = get_rows(db, matching_ids(db, run_filter, sort="-created"))
    return [row for row in rows if (not maps or row.map in maps) and (not algos or row.algo in algos)]


def parse_budget(text: object) -> Budget:
    """Parse a budget of the command line, a link or a script: common, own, 20000, 0.8M.

    Raises:
        ValueError: If it is not a budget.
    """
    if text == COMMON:
        return COMMON
    if text == OWN_END:
        return OWN_END
    steps = parse_steps(str(text))
    if len(steps) != 1:
        raise ValueError(f"a budget is common, own or a number of env steps such as 20000 or 0.8M, got {text!r}")
    return steps[0]


def select_results(curves: Curves, *, include_unfinished: bool = False, for_final_numbers: bool = False) -> Curves:
    """Select the runs that count, and list the others with the reason.

    Args:
        curves: All runs.
        include_unfinished: Include all unfinished runs.
        for_final_numbers: If true, all unfinished runs are left out. If false, the runs are for curves, and a variant
            that has only unfinished runs is included with a dagger.
    """
    reasons: dict[str, str] = {}
    for group in curves.by_variant:
        reasons |= _find_exclusion_reasons(
            group, include_unfinished=include_unfinished, for_final_numbers=for_final_numbers
        )
    return curves.exclude(lambda run: reasons.get(run.id))


def _find_exclusion_reasons(group: Curves, *, include_unfinished: bool, for_final_numbers: bool) -> dict[str, str]:
    """Return why runs of one variant are left out: run id → reason. Runs that count are absent."""
    reason_without_points = REASONS_WITHOUT_VALUE.get(group.measure.key, "no point yet")
    reasons: dict[str, str] = {}
    used_runs: dict[str, ComparedRun] = {}
    # One run is used per seed: the newest result, or the newest unfinished run if there is no result. After the sort,
    # this run is the last one with its seed, so it replaces the others in `used_runs`.
    for run in sorted(group.runs, key=lambda run: (run.is_result, run.created_s, run.id)):
        if len(group.get_points(run.id).value):
            used_runs[run.seed_text] = run
        else:
            reasons[run.id] = f"{reason_without_points}; {run.progress}"
    for run in group.runs:
        if run.id not in reasons and run is not used_runs[run.seed_text]:
            reasons[run.id] = f"duplicate of seed {run.seed_text}; run {used_runs[run.seed_text].id} is used"
    if include_unfinished:
        return reasons
    # `run.progress` is a text such as "stopped at 2,942 of 15,000 env steps".
    unfinished = {run.id: run.progress for run in used_runs.values() if not run.is_result}
    has_only_unfinished = len(unfinished) == len(used_runs)
    if has_only_unfinished and not for_final_numbers:
        return reasons
    return reasons | unfinished


def select_finals(curves: Curves, *, include_unfinished: bool = False, budget: Budget = COMMON) -> Curves:
    """Select the results for final numbers, and cut them to one budget per task; see `cut_to_budget`."""
    results = select_results(curves, include_unfinished=include_unfinished, for_final_numbers=True)
    return cut_to_budget(results, budget)


def get_run_length(curves: Curves, run: ComparedRun) -> int:
    """Return the length of a run [env steps]: the smaller number of its target steps and of the steps trained so far.

    Without both numbers, it is the env step of the last point.
    """
    lengths = [steps for steps in (run.target_steps, run.env_steps) if steps > 0]
    return min(lengths) if lengths else _get_last_step(curves, run)


def _get_last_step(curves: Curves, run: ComparedRun) -> int:
    """Return the env step of the last point of a run; 0 without a point."""
    steps = curves.get_points(run.id).env_step
    return int(steps[-1]) if len(steps) else 0


def list_budgets(curves: Curves) -> list[int]:
    """List the different lengths of the runs [env steps], ascending; those equal within the tolerance only once."""
    return _list_distinct(get_run_length(curves, run) for run in curves.runs)


def cut_to_budget(curves: Curves, budget: Budget = COMMON) -> Curves:
    """Cut the curves of all runs to one budget per task.

    Args:
        curves: Runs that count as results.
        budget: The budget.

            * A number of env steps: shorter runs are left out, longer runs are cut.
            * "common": runs whose target is not the most common length of the task are left out. The others are cut to
              the largest number of env steps that all reached, which matters if unfinished runs are included.
            * "own": no curve is cut. Tasks with runs of different lengths are listed in `Curves.mixed_length_tasks`.
    """
    if budget == OWN_END:
        lengths = {task: _list_distinct(task_lengths) for task, task_lengths in _list_lengths_by_task(curves).items()}
        mixed_lengths = {task: task_lengths for task, task_lengths in lengths.items() if len(task_lengths) > 1}
        if mixed_lengths:
            return _mark_mixed_lengths(curves, mixed_lengths)
        # All runs of a task have one length, so the common budget is the end of each run.
    if isinstance(budget, int):
        long_enough = _exclude_shorter_runs(curves, budget)
        budgets = dict.fromkeys((run.task for run in long_enough.runs), budget)
    else:
        long_enough = select_common_budget(curves)
        budgets = {task: min(lengths) for task, lengths in _list_lengths_by_task(long_enough).items()}
    cut = _cut_points(long_enough, budgets)

    def explain_no_points(run: ComparedRun) -> str | None:
        has_points = len(cut.get_points(run.id).value) > 0
        return None if has_points else f"no evaluation up to {budgets[run.task]:,} env steps"

    result = cut.exclude(explain_no_points)
    sentence = _describe_budget(long_enough, budgets, is_requested=isinstance(budget, int)) if budgets else ""
    note = " ".join(filter(None, (sentence, _describe_imported(result))))
    return replace(result, budget_note=note, mixed_length_tasks=frozenset())


def _exclude_shorter_runs(curves: Curves, budget: int) -> Curves:
    """Exclude the runs that are shorter than a budget."""

    def explain_too_short(run: ComparedRun) -> str | None:
        length = get_run_length(curves, run)
        if length * _EQUAL_LENGTH_FACTOR >= budget:
            return None
        return f"has {length:,} of the {budget:,} env steps at which runs are compared"

    return curves.exclude(explain_too_short)


def _cut_points(curves: Curves, budgets: Mapping[str, int]) -> Curves:
    """Cut the runs that were planned to train longer than the budget of their task [env steps].

    An unfinished run that has just reached the budget also has greater target steps. It is compared at the budget
    (`comparison_budget`), and not at its target.
    """
    planned_longer = [run.id for run in curves.runs if run.target_steps > budgets[run.task] * _EQUAL_LENGTH_FACTOR]
    if not planned_longer:
        return curves
    # The last evaluation of a run that ends at the budget may be a little after the budget. Then the other runs of the
    # task are cut at this evaluation.
    last_steps = dict(budgets)
    for run in curves.runs:
        if not _is_longer(curves, run, budgets[run.task]):
            last_steps[run.task] = max(last_steps[run.task], _get_last_step(curves, run))
    # Evaluations of two runs at the same planned env step can also differ a little, therefore the factor.
    points = curves.points
    last_step_of_row = np.array([last_steps[task] for task in points["task"]], np.float64)
    is_after_end = points["env_step"].to_numpy() > _EQUAL_LENGTH_FACTOR * last_step_of_row
    is_removed = points["run"].isin(planned_longer) & is_after_end
    runs = []
    for run in curves.runs:
        runs.append(replace(run, comparison_budget=budgets[run.task]) if run.id in planned_longer else run)
    return replace(curves, table=PointTable(points.loc[~is_removed, :]), runs=tuple(runs))


def select_common_budget(curves: Curves) -> Curves:
    """Keep the runs with the most frequent length of their task; of equally frequent lengths, the greatest one.

    The length of an unfinished run is its target steps.
    """

    def get_planned_length(run: ComparedRun) -> int:
        return get_run_length(curves, run) if run.is_result else run.target_steps

    def find_common(lengths: Sequence[int]) -> int:
        n_runs: dict[int, int] = {}  # length → number of runs with this length or a little more
        for steps in lengths:
            n_runs[steps] = sum(steps <= length <= steps * _EQUAL_LENGTH_FACTOR for length in lengths)
        return max(lengths, key=lambda steps: (n_runs[steps], steps))

    lengths_by_task: dict[str, list[int]] = {}
    for run in curves.runs:
        lengths_by_task.setdefault(run.task, []).append(get_planned_length(run))
    common = {task: find_common(lengths) for task, lengths in lengths_by_task.items()}

    def explain_other_length(run: ComparedRun) -> str | None:
        steps = common[run.task]
        length = get_planned_length(run)
        if length <= steps * _EQUAL_LENGTH_FACTOR and steps <= length * _EQUAL_LENGTH_FACTOR:
            return None
        return f"has {length:,} env steps; most runs of its map have {steps:,}"

    return curves.exclude(explain_other_length)


def _mark_mixed_lengths(curves: Curves, mixed_lengths: Mapping[str, Sequence[int]]) -> Curves:
    """Mark the tasks whose runs have different lengths; `mixed_lengths` has these lengths in ascending order."""
    ranges = "; ".join(f"{task} {steps[0]:,} to {steps[-1]:,}" for task, steps in mixed_lengths.items())
    warning = (
        f"RUNS OF DIFFERENT LENGTHS: each run is evaluated at its own end ({ranges} env steps), so the numbers are not "
        "comparable. Each cell states its length, and no cell is bold."
    )
    note = " ".join(filter(None, (warning, _describe_imported(curves))))
    return replace(curves, budget_note=note, mixed_length_tasks=frozenset(mixed_lengths))


def _describe_imported(curves: Curves) -> str:
    """Return a sentence that lists the variants that another program trained; empty if there are none."""
    names = sorted({run.variant.name for run in curves.runs if IMPORT_LABEL in run.settings})
    return f"Imported, trained by another program: {'; '.join(names)}." if names else ""


def _list_lengths_by_task(curves: Curves) -> dict[str, list[int]]:
    lengths: dict[str, list[int]] = {}
    for run in curves.runs:
        lengths.setdefault(run.task, []).append(get_run_length(curves, run))
    return lengths


def _list_distinct(lengths: Iterable[int]) -> list[int]:
    """List lengths in ascending order. A length that equals the last listed one within the tolerance is left out."""
    distinct: list[int] = []
    for steps in sorted(lengths):
        if not distinct or steps > distinct[-1] * _EQUAL_LENGTH_FACTOR:
            distinct.append(steps)
    return distinct


def _is_longer(curves: Curves, run: ComparedRun, budget: int) -> bool:
    return get_run_length(curves, run) > budget * _EQUAL_LENGTH_FACTOR


def _describe_budget(curves: Curves, budgets: Mapping[str, int], *, is_requested: bool) -> str:
    """Return the sentences of captions about the budget of each task and the runs that are longer.

    ε is the exploration rate. τ is the temperature of the gate. The gate multiplies the incentive of the memory by a
    number from 0 to 1. Both depend on the configured training length.

    Args:
        curves: The compared runs.
        budgets: Task → budget [env steps].
        is_requested: Whether the user gave the budget.
    """
    values = sorted(set(budgets.values()))
    if len(values) == 1:
        steps = f"{values[0]:,}"
    else:
        steps = "; ".join(f"{task} {task_steps:,}" for task, task_steps in budgets.items())
    shortest = [run.id for run in curves.runs if not _is_longer(curves, run, budgets[run.task])]
    n_longer = curves.n - len(shortest)
    if not n_longer:
        return f"All runs at {steps} env steps." if len(values) == 1 else f"All runs at these env steps: {steps}."
    if is_requested:
        reason = "the requested budget"
    else:
        reason = "the largest number that all runs reached"
        if len(shortest) <= 3:
            reason += f" (shortest: run{'s' if len(shortest) > 1 else ''} {', '.join(shortest)})"
    longer = "1 run is" if n_longer == 1 else f"{n_longer} runs are"
    return (
        f"Compared at {steps} env steps, {reason}. {longer} longer: later evaluations are ignored, and the schedules "
        "(ε, τ) were set for the full length."
    )
