"""Tables of results as the paper prints them, variants × maps, and the paper's own numbers beside ours.

What lives here: what a cell says, a dash where one is missing, which cell is best and bold, and the paper's numbers as
data. Those were obtained on StarCraft II and on Google Research Football. `skirmish` is a simulator: its numbers are
not comparable, and every table here says so. What does not: formats (`app.analysis.tables`), statistics
(`app.analysis.statistics`), which runs count (`app.analysis.series`).
"""

import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
import pandas as pd

from app.analysis.comparable import reach
from app.analysis.finals import (
    FALLEN,
    LAST_TENTH,
    MADE_IT,
    Falls,
    FinalRule,
    caption_final,
    count_falls,
    final_rates,
    name_final,
    rate_of_final,
    rate_of_mu_w,
)
from app.analysis.quantities import Quantity, average_over_time
from app.analysis.series import DAGGER, Comparison, Group, LeftOut
from app.analysis.settings import name_algo, name_method, show_steps
from app.analysis.statistics import CENTER_NAMES, Rate, Reading, Values, finite, mu_w
from app.analysis.tables import MISSING, NESTED, Cell, Number, describe_table

_BEST = "Bold is best of the cells with two seeds or more, ties too."
_COUNTED = ("falls", "evaluations after", "falls [%]")
_FALLS = ("task", "variant", "n", f"reached {MADE_IT:g}", *_COUNTED, "each seed")
_UNFINISHED = f"{DAGGER} rests on a run that has not finished and is never bold."

WARNING = (
    "The paper's numbers come from StarCraft II 4.10 and Google Research Football. skirmish is a simulator: "
    "its win rates are not comparable with them."
)


def tabulate_win_rates(
    comparison: Comparison, reading: Reading | None = None, final: FinalRule = LAST_TENTH
) -> pd.DataFrame:
    """Quote each seed's final win rate [%]: variants × maps. How many seeds a cell has and should have is told.

    Args:
        comparison: Win rates, greedy or others, joined for final numbers.
        reading: How seeds become one number; None does what `eval.report` of a cell's runs says.
        final: Which win rate stands for the end of a run.
    """
    quantity = comparison.quantity

    def quote_cell(group: Group) -> Cell | None:
        settings = group.seeds[0].settings
        how = reading or (Reading("median", "iqr") if settings.get("eval.report") == "median" else Reading())
        of = quantity.at(group.variant.task)
        rate = rate_of_final(group.seeds, final, top=100, of=of)
        named = name_final(final, unit="%", of=of)
        quoted = quote(100 * final_rates(group.seeds, final), how, rate=rate, of=named)
        length = f"; {_say_length(group)}" if group.variant.task in comparison.mixed else ""
        return quoted.followed_by(f"{group.mark} ({_count(group.n, settings.get('eval.seeds'))}{length})")

    columns = {_head(quantity, task): _by_method(comparison, task, quote_cell) for task in comparison.tasks}
    usual = "mean ± standard deviation over seeds, or median [quartiles] by eval.report"
    said = f"A cell is the {reading.say(share=True) if reading else usual}; n is the number of seeds."
    best = "" if comparison.mixed else _BEST
    caption, about = caption_final(comparison.seeds, final, said, best, unit="%", of=quantity, at=comparison)
    never_best = frozenset(_head(quantity, task) for task in comparison.mixed)
    return _tabulate(comparison, columns, caption, about=about, never_best=never_best)


def _head(quantity: Quantity, task: str) -> str:
    """The head of a task's column, "3m (robust)" where tasks have different win rates."""
    if not quantity.by_task:
        return task
    return f"{task} ({quantity.at(task).episodes})"


def tabulate_falls(comparison: Comparison, reading: Reading | None = None) -> pd.DataFrame:
    """Count for each variant how often a run that had once won nearly all lost most again: variant and task × numbers.

    Args:
        comparison: Greedy win rates, joined for final numbers.
        reading: How seeds become one number.
    """
    how = reading or Reading()
    rows = [_row_of_falls(g, how) for task in comparison.tasks for g in comparison.groups if g.variant.task == task]
    caption = (
        f"{comparison.budget} Falls: evaluations with a greedy win rate below {FALLEN:g} "
        f"after a run's first of at least {MADE_IT:g}, counted for "
        f"each seed, and of how many evaluations after it; then {how}. n is the number of seeds; only those that "
        f"reached {MADE_IT:g} are averaged."
    )
    if how.band == "ci":
        caption += f" Falls [%] is a share; its band is a {how.name_band(share=True)}."
    if any(group.unfinished for group in comparison.groups):
        caption += f" {DAGGER} rests on a run that has not finished."
    frame = pd.DataFrame(rows, columns=pd.Index(_FALLS), dtype="object")
    left_out = [str(each) for each in comparison.left_out]
    cells = dict(zip(_FALLS, zip(*rows, strict=True), strict=False))
    return describe_table(frame, caption=caption.strip(), left_out=left_out, about=[comparison.unequal], cells=cells)


def tabulate_mu_w(comparison: Comparison, times: Sequence[int], reading: Reading | None = None) -> pd.DataFrame:
    """Quote mu_w at chosen env steps: variants × (map, step); each seed is integrated first.

    Args:
        comparison: Win rates of every run that was chosen, finished or not.
        times: Env steps; a seed that has not got there is not counted, and listed.
        reading: How seeds become one number.
    """
    how, quantity = reading or Reading(), comparison.quantity
    averaged = average_over_time(quantity)

    def quote_at(t: int) -> Callable[[Group], Cell | None]:
        def quote_cell(group: Group) -> Cell | None:
            reached = finite(float(mu_w(seed.curve, np.array([float(t)]))[0]) for seed in group.seeds)
            if not len(reached):
                return None
            there = [seed for seed in group.seeds if seed.curve.steps[-1] >= t]
            of = averaged.at(group.variant.task)
            rate = rate_of_mu_w(there, np.float64(t), of)
            return quote(reached, how, digits=3, rate=rate, of=of.title).followed_by(f" (n = {len(reached)})")

        return quote_cell

    columns = {
        f"{_head(quantity, task)}{NESTED}{show_steps(t)}": _by_method(comparison, task, quote_at(t))
        for task in comparison.tasks
        for t in times
    }
    caption = (
        f"{averaged.title}, normalised overall win rate at env steps: {how.say(share=True)}; each seed is integrated "
        f"from its first evaluation, then averaged; n is the number of seeds that got there. "
        f"{f'{quantity.note} ' if quantity.note else ''}{_BEST}"
    )
    left_out = [*comparison.left_out, *_too_short(comparison, times)]
    return _tabulate(comparison, columns, caption, left_out, about=[quantity.note])


def quote(values: Values, reading: Reading, digits: int = 1, *, rate: Rate | None = None, of: str = "") -> Cell:
    """Quote numbers of seeds, "97.5 ± 1.0" or "97.5 [96.0–99.0]"; a single seed is just its number.

    Args:
        values: One for each seed.
        reading: How they become one number.
        digits: After the point.
        rate: What they are shares of, where they are shares.
        of: What a number is, for those who read the table with a program.
    """
    center, low, high = reading.summarize(values, rate)
    statistic = ", ".join(filter(None, (of, f"{CENTER_NAMES[reading.center]} over seeds")))
    if low is None or high is None:
        return Cell(f"{center:.{digits}f}", Number(float(center), n=len(values), statistic=statistic))
    text = f"± {center - low:.{digits}f}" if reading.is_symmetric else f"[{low:.{digits}f}–{high:.{digits}f}]"
    interval = reading.name_band(share=rate is not None)
    number = Number(float(center), float(low), float(high), len(values), statistic, interval)
    return Cell(f"{center:.{digits}f} {text}", number)


def _row_of_falls(group: Group, reading: Reading) -> list[str | int]:
    """Lay out one variant on one task, as `_FALLS` names it."""
    counted = [(seed.number, count_falls(seed.curve)) for seed in group.seeds]
    known = [falls for _, falls in counted if falls is not None]
    numbers = ([each.falls for each in known], [each.after for each in known], [100 * each.share for each in known])
    cells = [
        quote(values, reading, rate=rate, of=of) if len(values := finite(each)) else MISSING
        for each, rate, of in zip(numbers, (None, None, Rate(100)), _COUNTED, strict=True)
    ]
    told = "; ".join(f"seed {number}: {_say_falls(falls)}" for number, falls in counted)
    return [group.variant.task, f"{group.variant.name}{group.mark}", group.n, len(known), *cells, told]


def _say_falls(falls: Falls | None) -> str:
    return f"{falls.falls} of {falls.after}" if falls else f"never {MADE_IT:g}"


def _too_short(comparison: Comparison, times: Sequence[int]) -> list[LeftOut]:
    """List the seeds that did not get to every step, with how far they came."""
    return [
        LeftOut(
            seed.id,
            f"{group.variant.label}; seed {seed.number}",
            f"last evaluated at {int(seed.curve.steps[-1]):,}; {seed.progress}",
        )
        for group in comparison.groups
        for seed in group.seeds
        if times and seed.curve.steps[-1] < max(times)
    ]


def _count(n: int, wanted: object) -> str:
    """How many seeds a cell rests on; fewer than wanted are told, "n = 2 of 5"."""
    goal = wanted if isinstance(wanted, int) else 5
    return f"n = {n}" if n >= goal else f"n = {n} of {goal}"


def _say_length(group: Group) -> str:
    """How long the runs of a cell were: "4,000 steps"."""
    lengths = sorted({reach(seed) for seed in group.seeds})
    return f"{lengths[0]:,} steps" if len(lengths) == 1 else f"{lengths[0]:,} to {lengths[-1]:,} steps"


def _by_method(comparison: Comparison, task: str, quote_cell: Callable[[Group], Cell | None]) -> dict[str, Cell | None]:
    return {group.variant.method: quote_cell(group) for group in comparison.groups if group.variant.task == task}


def _tabulate(
    comparison: Comparison,
    columns: Mapping[str, Mapping[str, Cell | None]],
    caption: str,
    left_out: Sequence[LeftOut] | None = None,
    about: Sequence[str] = (),
    never_best: Collection[str] = (),
) -> pd.DataFrame:
    """Lay cells out as variants × columns and find the best of each column."""
    methods = list(comparison.methods)
    best, texts = [], {}
    quoted = {name: [column.get(method) for method in methods] for name, column in columns.items()}
    for name, cells in quoted.items():
        texts[name] = [cell or MISSING for cell in cells]
        best += [(place, name) for place in find_best([] if name in never_best else cells)]
    if any(DAGGER in text for column in texts.values() for text in column):
        caption = f"{caption} {_UNFINISHED}"
    if comparison.preset:
        caption = f"{caption} All with preset = {comparison.preset}."
    frame = pd.DataFrame({"variant": pd.Series(list(comparison.methods.values()), dtype="object"), **texts})
    out = [str(each) for each in (comparison.left_out if left_out is None else left_out)]
    return describe_table(frame, caption=caption, best=best, left_out=out, about=about, cells=quoted)


def find_best(cells: Sequence[str | None]) -> list[int]:
    """Find the greatest of quoted cells, ties as printed included, where two cells of two seeds or more compare.

    A cell of a single seed never is, nor one with a dagger.
    """
    shown = {place: float(cell.split(" ")[0]) for place, cell in enumerate(cells) if cell and _may_be_best(cell)}
    return [place for place, value in shown.items() if len(shown) > 1 and value == max(shown.values())]


def _may_be_best(cell: str) -> bool:
    seeds = cell.number.n if isinstance(cell, Cell) else 0
    return DAGGER not in cell and isinstance(seeds, int) and seeds > 1


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
    """What the paper reports for a study: where it was measured, a sentence, and a table that may be empty."""

    source: str
    note: str
    table: pd.DataFrame


@cache
def read_published() -> Mapping[tuple[str, str, str], PublishedRate]:
    """Read every published win rate: (environment, map, algorithm) → number."""
    return {
        (env, map, algo): PublishedRate(mean, std, benchmark["label"])
        for benchmark in _read("published.toml").values()
        for algo, row in benchmark["win_rate"].items()
        for map, (mean, std) in zip(benchmark["maps"], row, strict=True)
        for env in benchmark["environments"]
    }


@cache
def published_studies() -> dict[str, PublishedStudy]:
    """Read every study's published numbers by the study's name."""
    return {
        name: PublishedStudy(part["source"], part["note"], pd.DataFrame(part.get("rows"), columns=part.get("columns")))
        for name, part in _read("published_studies.toml").items()
    }


def find_published(study: str, env: str) -> PublishedStudy | None:
    """Find what the paper reports for a study in an environment."""
    known = published_studies()
    return known.get(f"{study}-football" if env == "grf" else study) or known.get(study)


def list_published_maps() -> list[str]:
    """List the maps for which the paper prints win rates."""
    return list(dict.fromkeys(map for _, map, _ in read_published()))


def tabulate_beside_published(
    comparison: Comparison, reading: Reading | None = None, final: FinalRule = LAST_TENTH
) -> pd.DataFrame:
    """Put our final greedy win rates [%] beside the paper's, for the maps that it has; empty when it has none of them.

    A variant with changed settings has no published number of its own. An algorithm of the paper that was not run
    has a row with the paper's number alone.
    """
    rates, how = read_published(), reading or Reading()
    columns: dict[str, dict[str, str]] = {}
    at_end = name_final(final, unit="%")
    for task in comparison.tasks:
        here = [group for group in comparison.groups if group.variant.task == task]
        place = (here[0].variant.env, here[0].variant.map)
        paper = {algo: value for (env, map, algo), value in rates.items() if (env, map) == place}
        if not paper:
            continue
        columns[f"{task}{NESTED}ours"] = {
            group.variant.method: quote(
                100 * final_rates(group.seeds, final), how, rate=rate_of_final(group.seeds, final, top=100), of=at_end
            ).followed_by(f"{group.mark} (n = {group.n})")
            for group in here
        }
        columns[f"{task}{NESTED}paper"] = {algo: Cell(str(rate), _quoted(rate)) for algo, rate in paper.items()}
    methods = list(dict.fromkeys(method for column in columns.values() for method in column))
    ours = {each.variant.method: name_method(each.variant.algo, each.variant.changes) for each in comparison.groups}
    names = [ours.get(method) or name_algo(method) for method in methods]
    texts = {name: [column.get(method, MISSING) for method in methods] for name, column in columns.items()}
    frame = pd.DataFrame({"variant": pd.Series(names, dtype="object"), **texts})
    ours_alone = [seed for seed in comparison.seeds if f"{seed.task}{NESTED}ours" in columns]
    said = (
        f"Ours: greedy episodes, as the paper's, whatever win rate is chosen; {how.say(share=True)}. "
        f"Paper: mean ± standard deviation over five seeds. {WARNING}"
    )
    caption, about = caption_final(ours_alone, final, said, unit="%", at=comparison)
    left_out = [str(each) for each in comparison.left_out]
    return describe_table(frame, caption=caption, left_out=left_out, about=about, cells=texts)


def _quoted(rate: PublishedRate) -> Number:
    low, high = rate.mean - rate.std, rate.mean + rate.std
    return Number(rate.mean, low, high, 5, "published test win rate [%], mean over seeds", "standard deviation")


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads(files("app.analysis").joinpath(name).read_text(encoding="utf-8"))
