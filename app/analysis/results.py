"""The runs that count as results, and the common budget at which they are compared.

Runs that have finished or have reached their target steps are results. Other runs are left out and listed with the
reason, or included and marked with a dagger.

A budget is a number of env steps. A win rate after 4,000 env steps and one after 40,000 env steps are not comparable,
so the runs of a task are compared at one budget. By default only runs with the most common length of their task are
compared, and each other run is listed with its length. If a budget is given, the evaluations of longer runs after it
are ignored, and each caption states this.
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
        # "drawn": neither hidden nor archived
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


def select_results(curves: Curves, *, include_unfinished: bool = False, final: bool = False) -> Curves:
    """Select the runs that count, and list the others with the reason.

    Args:
        curves: All runs.
        include_unfinished: Include all unfinished runs.
        final: Whether the runs are selected for final numbers. True: all unfinished runs are left out. False: the runs
            are selected for curves, and a variant that has only unfinished runs is included with a dagger.
    """
    reasons: dict[str, str] = {}
    for group in curves.by_variant:
        reasons |= _find_reasons(group, include_unfinished=include_unfinished, final=final)
    return curves.exclude(lambda run: reasons.get(run.id))


def _find_reasons(group: Curves, *, include_unfinished: bool, final: bool) -> dict[str, str]:
    """Find the reason of each run of one variant that is left out, by run id."""
    no_point = REASONS_WITHOUT_VALUE.get(group.measure.key, "no point yet")
    reasons: dict[str, str] = {}
    used_runs: dict[str, ComparedRun] = {}
    # of the runs with the same seed, the newest result is used, or the newest unfinished run if there is no result
    for run in sorted(group.runs, key=lambda run: (run.is_result, run.created_s, run.id)):
        if len(group.get_points(run.id).value):
            used_runs[run.seed_text] = run
        else:
            reasons[run.id] = f"{no_point}; {run.progress}"
    for run in group.runs:
        if run.id not in reasons and run is not used_runs[run.seed_text]:
            reasons[run.id] = f"duplicate of seed {run.seed_text}; run {used_runs[run.seed_text].id} is used"
    if include_unfinished:
        return reasons
    unfinished = {run.id: run.progress for run in used_runs.values() if not run.is_result}
    has_only_unfinished = len(unfinished) == len(used_runs)
    if has_only_unfinished and not final:
        return reasons
    return reasons | unfinished


def select_finals(curves: Curves, *, include_unfinished: bool = False, budget: Budget = COMMON) -> Curves:
    """Select the results for final numbers, and cut them to one budget per task; see `cut_to_budget`."""
    return cut_to_budget(select_results(curves, include_unfinished=include_unfinished, final=True), budget)


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
            return _compare_at_own_ends(curves, mixed_lengths)
        budget = COMMON  # all runs of a task have one length, so the common budget is the end of each run
    if budget == COMMON:
        curves = select_common_budget(curves)

    def find_short(run: ComparedRun) -> str | None:
        length = get_run_length(curves, run)
        if not isinstance(budget, int) or length * _EQUAL_LENGTH_FACTOR >= budget:
            return None
        return f"has {length:,} of the {budget:,} env steps at which runs are compared"

    long_enough = curves.exclude(find_short)
    lengths = _list_lengths_by_task(long_enough)
    if isinstance(budget, int):
        budgets = dict.fromkeys(lengths, budget)
    else:
        budgets = {task: min(task_lengths) for task, task_lengths in lengths.items()}
    cut = _cut_points(long_enough, budgets)

    def find_empty(run: ComparedRun) -> str | None:
        has_points = len(cut.get_points(run.id).value) > 0
        return None if has_points else f"no evaluation up to {budgets[run.task]:,} env steps"

    result = cut.exclude(find_empty)
    sentence = _describe_budget(long_enough, budgets, budget) if budgets else ""
    note = " ".join(filter(None, (sentence, _list_imported(result))))
    return replace(result, budget_note=note, mixed_length_tasks=frozenset())


def _cut_points(curves: Curves, budgets: Mapping[str, int]) -> Curves:
    """Remove the points after the budget of their task from the runs whose target is longer."""
    last_steps = {task: float(steps) for task, steps in budgets.items()}
    for run in curves.runs:
        # the last evaluation of a run that ends at the budget may be a little after it
        if not _is_longer(curves, run, budgets[run.task]):
            last_steps[run.task] = max(last_steps[run.task], _get_last_step(curves, run))
    # The target counts, not the length so far: an unfinished run that has just reached the budget is compared there,
    # not at its target.
    cut_runs = [run.id for run in curves.runs if run.target_steps > budgets[run.task] * _EQUAL_LENGTH_FACTOR]
    if not cut_runs:
        return curves
    points = curves.points
    last_step_of_row = np.array([last_steps[task] for task in points["task"]], np.float64)
    is_after_end = points["env_step"].to_numpy() > _EQUAL_LENGTH_FACTOR * last_step_of_row
    is_removed = points["run"].isin(cut_runs) & is_after_end
    runs = []
    for run in curves.runs:
        runs.append(replace(run, comparison_budget=budgets[run.task]) if run.id in cut_runs else run)
    return replace(curves, table=PointTable(points.loc[~is_removed, :]), runs=tuple(runs))


def select_common_budget(curves: Curves) -> Curves:
    """Keep the runs with the most frequent length of their task; of equally frequent lengths, the greatest one.

    The length of an unfinished run is its target steps.
    """

    def get_planned_length(run: ComparedRun) -> int:
        return get_run_length(curves, run) if run.is_result else run.target_steps

    def find_common(lengths: Sequence[int]) -> int:
        counts: dict[int, int] = {}
        for steps in lengths:
            equal_lengths = [length for length in lengths if steps <= length <= steps * _EQUAL_LENGTH_FACTOR]
            counts[steps] = len(equal_lengths)
        return max(lengths, key=lambda steps: (counts[steps], steps))

    lengths_by_task: dict[str, list[int]] = {}
    for run in curves.runs:
        lengths_by_task.setdefault(run.task, []).append(get_planned_length(run))
    common = {task: find_common(lengths) for task, lengths in lengths_by_task.items()}

    def find_other_length(run: ComparedRun) -> str | None:
        steps = common[run.task]
        length = get_planned_length(run)
        if length <= steps * _EQUAL_LENGTH_FACTOR and steps <= length * _EQUAL_LENGTH_FACTOR:
            return None
        return f"has {length:,} env steps; most runs of its map have {steps:,}"

    return curves.exclude(find_other_length)


def _compare_at_own_ends(curves: Curves, mixed_lengths: Mapping[str, Sequence[int]]) -> Curves:
    """Mark the tasks whose runs have different lengths; `mixed_lengths` has these lengths in ascending order."""
    ranges = "; ".join(f"{task} {steps[0]:,} to {steps[-1]:,}" for task, steps in mixed_lengths.items())
    warning = (
        f"RUNS OF DIFFERENT LENGTHS: each run is evaluated at its own end ({ranges} env steps), so the numbers are not "
        "comparable. Each cell states its length, and no cell is bold."
    )
    note = " ".join(filter(None, (warning, _list_imported(curves))))
    return replace(curves, budget_note=note, mixed_length_tasks=frozenset(mixed_lengths))


def _list_imported(curves: Curves) -> str:
    """Write the sentence that lists the variants that another program trained; empty if there are none."""
    names = sorted({run.variant.name for run in curves.runs if IMPORT_LABEL in run.settings})
    return f"Imported, trained by another program: {'; '.join(names)}." if names else ""


def _list_lengths_by_task(curves: Curves) -> dict[str, list[int]]:
    lengths: dict[str, list[int]] = {}
    for run in curves.runs:
        lengths.setdefault(run.task, []).append(get_run_length(curves, run))
    return lengths


def _list_distinct(lengths: Iterable[int]) -> list[int]:
    """List lengths in ascending order, without those that are equal to the last listed one within the tolerance."""
    distinct: list[int] = []
    for steps in sorted(lengths):
        if not distinct or steps > distinct[-1] * _EQUAL_LENGTH_FACTOR:
            distinct.append(steps)
    return distinct


def _is_longer(curves: Curves, run: ComparedRun, budget: int) -> bool:
    return get_run_length(curves, run) > budget * _EQUAL_LENGTH_FACTOR


def _describe_budget(curves: Curves, budgets: Mapping[str, int], budget: Budget) -> str:
    """Write the sentence of captions on the budget of each task and on the runs that are longer.

    ε is the exploration rate and τ the temperature of the gate; both depend on the configured training length.
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
    if isinstance(budget, int):
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
