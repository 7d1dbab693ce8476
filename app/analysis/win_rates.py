"""Tables of results in the form of the paper (variants × maps), and the published numbers next to ours.

This module writes the text of the cells, selects the best (bold) cells and reads the published numbers. The published
numbers were measured on StarCraft II and Google Research Football. `skirmish` is a simulator: its numbers are not
comparable with them, and tables with published numbers state this.
"""

import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
import pandas as pd

from app.analysis.aggregates import Aggregation, compute_mu_w, select_finite
from app.analysis.comparable import get_run_length
from app.analysis.finals import (
    HIGH_WIN_RATE,
    LAST_TENTH,
    LOW_WIN_RATE,
    FinalRule,
    caption_final,
    compute_final_rates,
    count_falls,
    make_final_scale,
    make_mu_w_scale,
    name_final,
)
from app.analysis.intervals import CENTER_NAMES, BinomialScale, Values
from app.analysis.quantities import Quantity, average_over_time
from app.analysis.series import DAGGER, Comparison, ExcludedRun, Group
from app.analysis.settings import format_steps, name_algo, name_method
from app.analysis.tables import MISSING, Cell, Column, Table, make_table

PUBLISHED_WARNING = (
    "The paper's numbers come from StarCraft II 4.10 and Google Research Football. skirmish is a simulator: "
    "its win rates are not comparable with them."
)
_BEST_NOTE = "Bold: best cells with at least two seeds."
_UNFINISHED_NOTE = f"{DAGGER} includes an unfinished run and is never bold."
_DEFAULT_SEEDS = 5
_FALLS_NUMBERS = (Column("falls"), Column("evaluations after"), Column("falls", unit="%"))
_FALLS_COLUMNS = ("task", "variant", "n", f"reached {HIGH_WIN_RATE:g}", *_FALLS_NUMBERS, "each seed")


def tabulate_win_rates(
    comparison: Comparison, reading: Aggregation | None = None, final: FinalRule = LAST_TENTH
) -> Table:
    """Tabulate final win rates [%]: variants × maps. A cell also has its number of seeds and the planned number.

    Args:
        comparison: Win rates of any kind, joined for final numbers.
        reading: Aggregation over seeds; None uses `eval.report` of the runs of each cell.
        final: Definition of the final win rate.
    """
    quantity = comparison.quantity

    def make_cell(group: Group) -> Cell | None:
        settings = group.seeds[0].settings
        aggregation = reading or (
            Aggregation("median", "iqr") if settings.get("eval.report") == "median" else Aggregation()
        )
        of = quantity.at(group.variant.task)
        scale = make_final_scale(group.seeds, final, top=100, of=of)
        name = name_final(final, unit="%", of=of)
        cell = format_aggregate(100 * compute_final_rates(group.seeds, final), aggregation, rate=scale, of=name)
        planned = settings.get("eval.seeds")
        planned = planned if isinstance(planned, int) else _DEFAULT_SEEDS
        n = f"n = {group.n}" if group.n >= planned else f"n = {group.n} of {planned}"
        length = f"; {_write_length(group)}" if group.variant.task in comparison.mixed_length_tasks else ""
        return cell.append(f"{group.mark} ({n}{length})")

    columns = [Column(_name_task(quantity, task)) for task in comparison.tasks]
    cells_by_method = [_by_method(comparison, task, make_cell) for task in comparison.tasks]
    default = "mean ± standard deviation over seeds, or median [quartiles] by eval.report"
    meaning = f"A cell is the {reading.describe(is_fraction=True) if reading else default}; n is the number of seeds."
    best = "" if comparison.mixed_length_tasks else _BEST_NOTE
    caption, notes = caption_final(comparison.seeds, final, meaning, best, unit="%", of=quantity, at=comparison)
    never_best = frozenset(_name_task(quantity, task) for task in comparison.mixed_length_tasks)
    return _tabulate(comparison, columns, cells_by_method, caption, notes=notes, never_best=never_best)


def tabulate_falls(comparison: Comparison, reading: Aggregation | None = None) -> Table:
    """Tabulate the falls of each variant on each task: evaluations with a low win rate after a high one.

    Args:
        comparison: Greedy win rates, joined for final numbers.
        reading: Aggregation over seeds.
    """
    aggregation = reading or Aggregation()
    rows = [
        _make_falls_row(group, aggregation)
        for task in comparison.tasks
        for group in comparison.groups
        if group.variant.task == task
    ]
    caption = (
        f"{comparison.budget_note} Falls: evaluations with a greedy win rate below {LOW_WIN_RATE:g} after the first "
        f"evaluation of at least {HIGH_WIN_RATE:g}. Falls and later evaluations are counted per seed; a cell is the "
        f"{aggregation}. n is the number of seeds; only those that reached {HIGH_WIN_RATE:g} are averaged."
    )
    if aggregation.band == "ci":
        caption += f" Falls [%] is a fraction; its band is a {aggregation.name_band(is_fraction=True)}."
    if any(group.unfinished for group in comparison.groups):
        caption += f" {DAGGER} includes an unfinished run."
    return make_table(
        _FALLS_COLUMNS,
        rows,
        caption=caption.strip(),
        notes=[comparison.budget_if_unequal],
        excluded=comparison.excluded_runs,
    )


def tabulate_mu_w(comparison: Comparison, times: Sequence[int], reading: Aggregation | None = None) -> Table:
    """Tabulate mu_w at given env steps: variants × (map, step). mu_w is computed per seed, then aggregated.

    Args:
        comparison: Win rates of all selected runs, finished or not.
        times: Env steps. A seed that has not reached a step is left out of its column and listed.
        reading: Aggregation over seeds.
    """
    aggregation, quantity = reading or Aggregation(), comparison.quantity
    averaged = average_over_time(quantity)

    def make_cell_at(t: int) -> Callable[[Group], Cell | None]:
        def make_cell(group: Group) -> Cell | None:
            values = select_finite(float(compute_mu_w(seed.curve, np.array([float(t)]))[0]) for seed in group.seeds)
            if not len(values):
                return None
            long_enough = [seed for seed in group.seeds if seed.curve.steps[-1] >= t]
            of = averaged.at(group.variant.task)
            scale = make_mu_w_scale(long_enough, np.float64(t), of)
            return format_aggregate(values, aggregation, digits=3, rate=scale, of=of.title).append(
                f" (n = {len(values)})"
            )

        return make_cell

    places = [(task, t) for task in comparison.tasks for t in times]
    columns = [Column(format_steps(t), group=_name_task(quantity, task)) for task, t in places]
    cells_by_method = [_by_method(comparison, task, make_cell_at(t)) for task, t in places]
    caption = (
        f"{averaged.title}, normalized area under the win rate at env steps: "
        f"{aggregation.describe(is_fraction=True)}. The area of each seed starts at its first evaluation. n is the "
        f"number of seeds that reached the step. "
        f"{f'{quantity.note} ' if quantity.note else ''}{_BEST_NOTE}"
    )
    too_short = [
        ExcludedRun(
            seed.id,
            f"{group.variant.label}; seed {seed.seed_text}",
            f"last evaluated at {int(seed.curve.steps[-1]):,}; {seed.progress}",
        )
        for group in comparison.groups
        for seed in group.seeds
        if times and seed.curve.steps[-1] < max(times)
    ]
    excluded = [*comparison.excluded_runs, *too_short]
    return _tabulate(comparison, columns, cells_by_method, caption, excluded, notes=[quantity.note])


def format_aggregate(
    values: Values, reading: Aggregation, digits: int = 1, *, rate: BinomialScale | None = None, of: str = ""
) -> Cell:
    """Write the aggregate of values as "97.5 ± 1.0" or "97.5 [96.0–99.0]"; a single seed has no band.

    Args:
        values: One value per seed.
        reading: Aggregation over seeds.
        digits: Digits after the decimal point.
        rate: Binomial scale of the values; None if they are not fractions.
        of: Name of the number, for programs that read the table.
    """
    center, low, high = reading.summarize(values, rate)
    statistic = ", ".join(filter(None, (of, f"{CENTER_NAMES[reading.center]} over seeds")))
    if low is None or high is None:
        return Cell(f"{center:.{digits}f}", float(center), n=len(values), statistic=statistic)
    text = f"± {center - low:.{digits}f}" if reading.is_symmetric else f"[{low:.{digits}f}–{high:.{digits}f}]"
    interval = reading.name_band(is_fraction=rate is not None)
    return Cell(f"{center:.{digits}f} {text}", float(center), float(low), float(high), len(values), statistic, interval)


def _make_falls_row(group: Group, aggregation: Aggregation) -> list[Cell | str | int]:
    """Make the row of one variant on one task, with the columns `_FALLS_COLUMNS`."""
    by_seed = [(seed.seed_text, count_falls(seed.curve)) for seed in group.seeds]
    counts = [falls for _, falls in by_seed if falls is not None]
    by_column = ([c.falls for c in counts], [c.after for c in counts], [100 * c.share for c in counts])
    cells = [
        format_aggregate(values, aggregation, rate=scale, of=column.title)
        if len(values := select_finite(numbers))
        else MISSING
        for numbers, scale, column in zip(by_column, (None, None, BinomialScale(100)), _FALLS_NUMBERS, strict=True)
    ]
    seeds = "; ".join(
        f"seed {number}: {f'{falls.falls} of {falls.after}' if falls else f'never {HIGH_WIN_RATE:g}'}"
        for number, falls in by_seed
    )
    return [group.variant.task, f"{group.variant.name}{group.mark}", group.n, len(counts), *cells, seeds]


def _name_task(quantity: Quantity, task: str) -> str:
    """Name the column of a task: "3m", or "3m (robust)" if the tasks have different win rates."""
    return f"{task} ({quantity.at(task).episodes})" if quantity.by_task else task


def _write_length(group: Group) -> str:
    """Write the length of the runs of a cell: "4,000 steps"."""
    lengths = sorted({get_run_length(seed) for seed in group.seeds})
    return f"{lengths[0]:,} steps" if len(lengths) == 1 else f"{lengths[0]:,} to {lengths[-1]:,} steps"


def _by_method(comparison: Comparison, task: str, make_cell: Callable[[Group], Cell | None]) -> dict[str, Cell | None]:
    """Make the cells of a task, by the method of the variant."""
    return {group.variant.method: make_cell(group) for group in comparison.groups if group.variant.task == task}


def _tabulate(
    comparison: Comparison,
    columns: Sequence[Column],
    cells_by_method: Sequence[Mapping[str, Cell | None]],
    caption: str,
    excluded: Sequence[ExcludedRun] | None = None,
    *,
    notes: Sequence[str] = (),
    never_best: Collection[str] = (),
) -> Table:
    """Make a table of variants × columns with the best cells of each column in bold.

    Args:
        comparison: The variants.
        columns: The columns after the name of the variant.
        cells_by_method: The cells of each column, by the method of the variant.
        caption: The caption.
        excluded: Runs that are not in the table. Default: those of the comparison.
        notes: Sentences for the end of a CSV file.
        never_best: Titles of columns without a best cell.
    """
    cells = [[by_method.get(method) for method in comparison.methods] for by_method in cells_by_method]
    best = [
        (row, column.title)
        for column, column_cells in zip(columns, cells, strict=True)
        if column.title not in never_best
        for row in find_best(column_cells)
    ]
    if any(cell and DAGGER in cell.text for column_cells in cells for cell in column_cells):
        caption = f"{caption} {_UNFINISHED_NOTE}"
    if comparison.preset:
        caption = f"{caption} All with preset = {comparison.preset}."
    rows = [
        [name, *(column_cells[row] or MISSING for column_cells in cells)]
        for row, name in enumerate(comparison.methods.values())
    ]
    excluded = comparison.excluded_runs if excluded is None else excluded
    return make_table(["variant", *columns], rows, caption=caption, notes=notes, excluded=excluded, best=best)


def find_best(cells: Sequence[Cell | None]) -> list[int]:
    """Find the rows of the cells with the largest printed number, ties included.

    Cells of a single seed and cells with a dagger are ignored. At least two cells must remain, otherwise none is best.
    """
    values = {
        row: float(cell.text.split(" ")[0])
        for row, cell in enumerate(cells)
        if cell is not None and DAGGER not in cell.text and isinstance(cell.n, int) and cell.n > 1
    }
    return [row for row, value in values.items() if len(values) > 1 and value == max(values.values())]


@dataclass(frozen=True)
class PublishedRate:
    """One published win rate [%]: mean and standard deviation over five seeds."""

    mean: float
    std: float
    where: str

    def __str__(self) -> str:
        return f"{self.mean:.1f} ± {self.std:.1f}"


@dataclass(frozen=True)
class PublishedStudy:
    """Published results of a study: the source, a note, and a table that may be empty."""

    source: str
    note: str
    table: pd.DataFrame


@cache
def read_published() -> Mapping[tuple[str, str, str], PublishedRate]:
    """Read all published win rates by (environment, map, algorithm)."""
    return {
        (env, map, algo): PublishedRate(mean, std, benchmark["label"])
        for benchmark in _read("published.toml").values()
        for algo, row in benchmark["win_rate"].items()
        for map, (mean, std) in zip(benchmark["maps"], row, strict=True)
        for env in benchmark["environments"]
    }


@cache
def published_studies() -> dict[str, PublishedStudy]:
    """Read the published results of all studies by name of the study."""
    return {
        name: PublishedStudy(part["source"], part["note"], pd.DataFrame(part.get("rows"), columns=part.get("columns")))
        for name, part in _read("published_studies.toml").items()
    }


def find_published(study: str, env: str) -> PublishedStudy | None:
    """Find the published results of a study in an environment."""
    studies = published_studies()
    return studies.get(f"{study}-football" if env == "grf" else study) or studies.get(study)


def list_published_maps() -> list[str]:
    """List the maps with published win rates."""
    return list(dict.fromkeys(map for _, map, _ in read_published()))


def tabulate_with_published(
    comparison: Comparison, reading: Aggregation | None = None, final: FinalRule = LAST_TENTH
) -> Table:
    """Tabulate our final greedy win rates [%] next to the published ones; empty if no map has published win rates.

    A variant with changed settings has no published number. A published algorithm without runs has a row with only its
    published number.
    """
    published, aggregation = read_published(), reading or Aggregation()
    columns: list[Column] = []
    cells_by_method: list[dict[str, Cell]] = []
    name = name_final(final, unit="%")
    for task in comparison.tasks:
        groups = [group for group in comparison.groups if group.variant.task == task]
        env_and_map = (groups[0].variant.env, groups[0].variant.map)
        paper = {algo: rate for (env, map, algo), rate in published.items() if (env, map) == env_and_map}
        if not paper:
            continue
        ours = {
            group.variant.method: format_aggregate(
                100 * compute_final_rates(group.seeds, final),
                aggregation,
                rate=make_final_scale(group.seeds, final, top=100),
                of=name,
            ).append(f"{group.mark} (n = {group.n})")
            for group in groups
        }
        columns += [Column("ours", group=task), Column("paper", group=task)]
        cells_by_method += [ours, {algo: _make_published_cell(rate) for algo, rate in paper.items()}]
    methods = list(dict.fromkeys(method for by_method in cells_by_method for method in by_method))
    our_names = {
        group.variant.method: name_method(group.variant.algo, group.variant.changes) for group in comparison.groups
    }
    rows = [
        [our_names.get(method) or name_algo(method), *(by_method.get(method, MISSING) for by_method in cells_by_method)]
        for method in methods
    ]
    published_tasks = {column.group for column in columns}
    seeds = [seed for seed in comparison.seeds if seed.task in published_tasks]
    sources = (
        f"Ours: always greedy episodes, as in the paper; {aggregation.describe(is_fraction=True)}. "
        f"Paper: mean ± standard deviation over five seeds. {PUBLISHED_WARNING}"
    )
    caption, notes = caption_final(seeds, final, sources, unit="%", at=comparison)
    excluded = comparison.excluded_runs
    return make_table(["variant", *columns], rows, caption=caption, notes=notes, excluded=excluded)


def _make_published_cell(rate: PublishedRate) -> Cell:
    low, high = rate.mean - rate.std, rate.mean + rate.std
    statistic = "published test win rate [%], mean over seeds"
    return Cell(str(rate), rate.mean, low, high, 5, statistic, "standard deviation")


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads(files("app.analysis").joinpath(name).read_text(encoding="utf-8"))
