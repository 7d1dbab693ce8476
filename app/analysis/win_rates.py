"""Tables of win rates in the form of the paper: variants × maps, with the best cells in bold.

A variant is an algorithm with changed settings; its runs differ only in their seed. There are tables of the final win
rate, of its time average mu_w, and of falls: evaluations with a low win rate after a high one.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from app.analysis.aggregates import Aggregation, compute_mu_w, explain_small_samples, select_finite
from app.analysis.curves import DAGGER, Curves, ExcludedRun
from app.analysis.finals import (
    HIGH_WIN_RATE,
    LAST_TENTH,
    FinalRule,
    caption_final,
    compute_final_rates,
    count_falls,
    define_falls,
    make_final_scale,
    make_mu_w_scale,
    name_final,
)
from app.analysis.format import count_decimals, format_seed_count
from app.analysis.identical_runs import describe_identical_runs
from app.analysis.intervals import CENTER_NAMES, BinomialScale, Values
from app.analysis.quantities import Quantity, average_over_time
from app.analysis.results import get_run_length
from app.analysis.settings import format_steps
from app.analysis.tables import MISSING, Cell, Column, Table, make_table

BEST_NOTE = "Bold: best cells with at least two seeds, unless all cells are equal."
PAPER_MU_W_STEPS = (800_000, 1_600_000, 2_400_000)
"""Env steps at which the paper reports mu_w."""
_UNFINISHED_NOTE = f"{DAGGER} includes an unfinished run and is never bold."
# The columns with numbers: number of falls, number of later evaluations, and falls as a percentage of the latter.
_FALLS_NUMBERS = (Column("falls"), Column("evaluations after"), Column("falls", unit="%"))
_FALLS_COLUMNS = ("task", "variant", "n", f"reached {HIGH_WIN_RATE:g}", *_FALLS_NUMBERS, "each seed")


def tabulate_win_rates(curves: Curves, aggregation: Aggregation | None = None, final: FinalRule = LAST_TENTH) -> Table:
    """Tabulate final win rates [%]: variants × maps. A cell also has its number of seeds.

    Args:
        curves: Win rates, greedy or robust (from shifted starts), cut by `app.analysis.results` to one budget per task.
        aggregation: Aggregation over seeds. None: mean or median, by the setting `eval.report` of the runs of a cell.
        final: Definition of the final win rate.
    """
    quantity = curves.measure

    def make_cell(group: Curves) -> Cell:
        task = group.variant.task
        reports_median = group.runs[0].settings.get("eval.report") == "median"
        default_aggregation = Aggregation("median", "iqr") if reports_median else Aggregation()
        cell_aggregation = aggregation or default_aggregation
        # `top` is the value of a win rate of 1: 100 for percentages.
        scale = make_final_scale(group, final, top=100, quantity=quantity.at(task))
        name = name_final(final, unit="%", quantity=quantity.at(task))
        cell = format_aggregate(100 * compute_final_rates(group, final), cell_aggregation, scale=scale, name=name)
        length = f"; {_write_length(group)}" if task in curves.mixed_length_tasks else ""
        suffix = f"{group.mark} ({format_seed_count(group.n)}{length})"
        return cell.append(suffix, includes_unfinished=bool(group.unfinished))

    columns = [Column(_name_task(quantity, task)) for task in curves.tasks]
    columns_of_cells = [_make_cells(curves, task, make_cell) for task in curves.tasks]
    statistic = "mean ± standard deviation over seeds, or median [quartiles] by eval.report"
    if aggregation:
        statistic = aggregation.describe(is_fraction=True)
    meaning = f"A cell is the {statistic}."
    best = "" if curves.mixed_length_tasks else BEST_NOTE
    few_seeds = explain_small_samples(aggregation, curves.seed_counts)
    caption = caption_final(curves, final, meaning, few_seeds, best, unit="%")
    never_best = frozenset(_name_task(quantity, task) for task in curves.mixed_length_tasks)
    return _tabulate(curves, columns, columns_of_cells, caption, never_best=never_best)


def tabulate_falls(curves: Curves, aggregation: Aggregation | None = None) -> Table:
    """Tabulate the falls of each variant on each task: evaluations with a low win rate after a high one.

    Args:
        curves: Win rates, greedy or robust (from shifted starts), cut by `app.analysis.results` to one budget per task.
        aggregation: Aggregation over seeds. Counts have no confidence interval: it could contain negative counts.
    """
    aggregation = aggregation or Aggregation()
    rows = [_make_falls_row(group, aggregation) for group in curves.by_variant]
    definition = f"Falls: {define_falls(curves.measure)}."
    rule = (
        f"Falls and later evaluations are counted per seed; a cell is the {aggregation}. n is the number of seeds; "
        f"only those that reached {HIGH_WIN_RATE:g} are averaged."
    )
    caption = " ".join(filter(None, (definition, curves.budget_note, curves.measure.note, rule)))
    if aggregation.band == "ci":
        caption += f" Only falls [%] has an interval: {aggregation.name_band(is_fraction=True)}."
    if curves.unfinished:
        caption += f" {DAGGER} includes an unfinished run."
    return make_table(_FALLS_COLUMNS, rows, caption=caption, excluded=curves.excluded)


def choose_mu_w_steps(groups: Sequence[Curves]) -> dict[str, tuple[int, ...]]:
    """Choose the env steps of the table of mu_w for each task; tasks without a curve are missing.

    They are the paper's 0.8M, 1.6M and 2.4M if every run of the task reached them; otherwise a quarter, a half and all
    of the env steps that every run of the task reached.
    """
    shortest: dict[str, float] = {}
    for group in groups:
        task = group.variant.task
        last_steps = [float(points.env_step[-1]) for points in group.list_points()]
        shortest[task] = min([*last_steps, shortest.get(task, np.inf)])
    steps_by_task: dict[str, tuple[int, ...]] = {}
    for task, steps in shortest.items():
        if steps >= np.inf or steps <= 0:  # infinite: no run of the task has a point
            continue
        if steps >= PAPER_MU_W_STEPS[-1]:
            steps_by_task[task] = PAPER_MU_W_STEPS
        else:
            steps_by_task[task] = (int(steps / 4), int(steps / 2), int(steps))
    return steps_by_task


def tabulate_mu_w(
    curves: Curves, steps_by_task: Mapping[str, Sequence[int]], aggregation: Aggregation | None = None
) -> Table:
    """Tabulate mu_w at given env steps: variants × (map, step). mu_w is computed per seed, then aggregated.

    Args:
        curves: Win rates of all selected runs, finished or not.
        steps_by_task: Env steps of each task. The column of a step omits the seeds that have not reached it; they
            are listed as excluded runs.
        aggregation: Aggregation over seeds.
    """
    aggregation = aggregation or Aggregation()
    averaged = average_over_time(curves.measure)

    def make_cell_at(t: int) -> Callable[[Curves], Cell | None]:
        """Return the function that makes a cell of the column of step `t`."""

        def make_cell(group: Curves) -> Cell | None:
            all_points = group.list_points()
            at = np.array([float(t)])
            values = select_finite(float(compute_mu_w(points.env_step, points.value, at)[0]) for points in all_points)
            if not len(values):
                return None
            long_enough = group.keep(run for run in group.runs if group.get_points(run.id).env_step[-1] >= t)
            task_quantity = averaged.at(group.variant.task)
            scale = make_mu_w_scale(long_enough, np.float64(t), task_quantity)
            cell = format_aggregate(values, aggregation, digits=3, scale=scale, name=task_quantity.title)
            return cell.append(f" ({format_seed_count(len(values))})")

        return make_cell

    task_steps = [(task, t) for task in curves.tasks for t in steps_by_task.get(task, ())]
    columns = [Column(format_steps(t), group=_name_task(curves.measure, task)) for task, t in task_steps]
    columns_of_cells = [_make_cells(curves, task, make_cell_at(t)) for task, t in task_steps]
    few_seeds = explain_small_samples(aggregation, curves.seed_counts)
    caption = (
        f"{averaged.title}, normalized area under the win rate at env steps: "
        f"{aggregation.describe(is_fraction=True)}. The area of each seed starts at its first evaluation. The "
        f"number of seeds is that of the seeds that reached the step. "
        f"{' '.join(filter(None, (curves.measure.note, few_seeds, BEST_NOTE)))}"
    )
    too_short = []
    for run in curves.runs:
        last_step = curves.get_points(run.id).env_step[-1]
        if last_step < max(steps_by_task.get(run.task, ()), default=0):
            too_short.append(run.make_excluded(f"last evaluated at {int(last_step):,}; {run.progress}"))
    return _tabulate(curves, columns, columns_of_cells, caption, [*curves.excluded, *too_short])


def format_aggregate(
    values: Values, aggregation: Aggregation, digits: int = 1, *, scale: BinomialScale | None = None, name: str = ""
) -> Cell:
    """Write the aggregate of values as "97.5 ± 1.0" or "97.5 [96.0–99.0]"; a single seed has no band.

    Args:
        values: One value per seed.
        aggregation: Aggregation over seeds.
        digits: Digits after the decimal point.
        scale: Binomial scale of the values; None if they are not fractions.
        name: Name of the number, for the column "statistic" of CSV and Parquet files.
    """
    center, low, high = aggregation.summarize(values, scale)
    statistic = ", ".join(filter(None, (name, f"{CENTER_NAMES[aggregation.center]} over seeds")))
    digits = count_decimals(float(center), digits)
    text = f"{center:.{digits}f}"
    if low is None or high is None:
        return Cell(text, float(center), n=len(values), statistic=statistic, digits=digits)
    if aggregation.is_symmetric:
        text += f" ± {center - low:.{digits}f}"
    else:
        text += f" [{low:.{digits}f}–{high:.{digits}f}]"
    interval = aggregation.name_band(is_fraction=scale is not None)
    return Cell(text, float(center), float(low), float(high), len(values), statistic, interval, digits)


def _make_falls_row(group: Curves, aggregation: Aggregation) -> list[Cell | str | int]:
    """Make the row of one variant on one task, with the columns `_FALLS_COLUMNS`."""
    by_seed = [(run.seed_text, count_falls(group.get_points(run.id).value)) for run in group.runs]
    counts = [falls for _, falls in by_seed if falls is not None]
    count_aggregation = replace(aggregation, band="none") if aggregation.band == "ci" else aggregation
    falls_column, later_column, percent_column = _FALLS_NUMBERS
    cells = [
        _format_finite([count.n_falls for count in counts], count_aggregation, falls_column),
        _format_finite([count.n_later for count in counts], count_aggregation, later_column),
        _format_finite([100 * count.fraction for count in counts], aggregation, percent_column, BinomialScale(100)),
    ]
    seed_texts = []
    for seed, falls in by_seed:
        result = f"never {HIGH_WIN_RATE:g}" if falls is None else f"{falls.n_falls} of {falls.n_later}"
        seed_texts.append(f"seed {seed}: {result}")
    task = _name_task(group.measure, group.variant.task)
    return [task, f"{group.variant.name}{group.mark}", group.n, len(counts), *cells, "; ".join(seed_texts)]


def _format_finite(
    numbers: Sequence[float], aggregation: Aggregation, column: Column, scale: BinomialScale | None = None
) -> Cell | str:
    """Write the aggregate of the finite numbers of a column, or the mark for a missing number."""
    values = select_finite(numbers)
    return format_aggregate(values, aggregation, scale=scale, name=column.title) if len(values) else MISSING


def _name_task(quantity: Quantity, task: str) -> str:
    """Name the column of a task: "3m". If some tasks have greedy and others robust win rates: "3m (robust)"."""
    return f"{task} ({quantity.at(task).episodes})" if quantity.by_task else task


def _write_length(group: Curves) -> str:
    """Write the length of the runs of a cell: "4,000 steps"."""
    lengths = sorted({get_run_length(group, run) for run in group.runs})
    return f"{lengths[0]:,} steps" if len(lengths) == 1 else f"{lengths[0]:,} to {lengths[-1]:,} steps"


def _make_cells(curves: Curves, task: str, make_cell: Callable[[Curves], Cell | None]) -> dict[str, Cell | None]:
    """Make the cells of a task, by the method of the variant: the key of its algorithm and changed settings."""
    groups = [group for group in curves.by_variant if group.variant.task == task]
    return {group.variant.method: make_cell(group) for group in groups}


def _tabulate(
    curves: Curves,
    columns: Sequence[Column],
    columns_of_cells: Sequence[Mapping[str, Cell | None]],
    caption: str,
    excluded: Sequence[ExcludedRun] | None = None,
    *,
    never_best: Collection[str] = (),
) -> Table:
    """Make a table of variants × columns with the best cells of each column in bold.

    Args:
        curves: The variants.
        columns: The columns after the name of the variant.
        columns_of_cells: The cells of each column, by the method of the variant.
        caption: The caption.
        excluded: Runs that are not in the table. Default: the excluded runs of `curves`.
        never_best: Titles of columns without a best cell.
    """
    cells = [[cells_of_column.get(method) for method in curves.methods] for cells_of_column in columns_of_cells]
    best = [
        (row, column.title)
        for column, column_cells in zip(columns, cells, strict=True)
        if column.title not in never_best
        for row in find_best(column_cells)
    ]
    if any(cell and cell.includes_unfinished for column_cells in cells for cell in column_cells):
        caption = f"{caption} {_UNFINISHED_NOTE}"
    caption = " ".join(filter(None, (caption, describe_identical_runs(curves), curves.shared_note)))
    rows = [
        [name, *(column_cells[row] or MISSING for column_cells in cells)]
        for row, name in enumerate(curves.methods.values())
    ]
    excluded = curves.excluded if excluded is None else excluded
    return make_table(["variant", *columns], rows, caption=caption, excluded=excluded, best=best)


def find_best(cells: Sequence[Cell | None]) -> list[int]:
    """Find the rows of the cells with the largest printed number, ties included.

    Cells of a single seed and cells with an unfinished run are ignored. If the other cells are all equal, none is best.
    """
    printed_values: dict[int, float] = {}
    for row, cell in enumerate(cells):
        if cell is None or cell.value is None or cell.includes_unfinished:
            continue
        if isinstance(cell.n, int) and cell.n > 1:
            printed_values[row] = round(cell.value, cell.digits)
    if len(set(printed_values.values())) < 2:
        return []
    largest = max(printed_values.values())
    return [row for row, value in printed_values.items() if value == largest]
