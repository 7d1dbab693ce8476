"""Tables of results as the paper prints them: variants × maps, best in bold, missing cells as a dash.

What lives here: what a cell says and which cell is best. What does not: formats (`app.tables`), statistics
(`app.results.statistics`), which runs count (`app.results.series`).
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd

from app.results.names import show_steps
from app.results.series import DAGGER, Comparison, Group, LeftOut
from app.results.statistics import Curve, Reading, Values, finite, mu_w
from app.tables import MISSING, NESTED, describe_table

_BEST = "Bold is best, ties too."
_UNFINISHED = f"{DAGGER} rests on a run that has not finished and is never bold."


def tabulate_win_rates(comparison: Comparison, reading: Reading | None = None) -> pd.DataFrame:
    """Quote each seed's last test win rate [%]: variants × maps. How many seeds a cell has and should have is told.

    Args:
        comparison: Win rates, settled for final numbers.
        reading: How seeds become one number; None does what `eval.report` of a cell's runs says.
    """

    def quote_cell(group: Group) -> str | None:
        settings = group.seeds[0].settings
        how = reading or (Reading("median", "iqr") if settings.get("eval.report") == "median" else Reading())
        last = np.array([100 * seed.final for seed in group.seeds])
        return f"{quote(last, how)}{group.mark} ({_count(group.n, settings.get('eval.seeds'))})"

    columns = {task: _by_method(comparison, task, quote_cell) for task in comparison.tasks}
    how = str(reading) if reading else "mean ± standard deviation over seeds, or median [quartiles] by eval.report"
    return _tabulate(comparison, columns, f"Last test win rate [%]: {how}; n is the number of seeds. {_BEST}")


def tabulate_mu_w(comparison: Comparison, times: Sequence[int], reading: Reading | None = None) -> pd.DataFrame:
    """Quote mu_w at chosen env steps: variants × (map, step); each seed is integrated first.

    Args:
        comparison: Win rates of every run that was chosen, finished or not.
        times: Env steps; a seed that has not got there is not counted, and listed.
        reading: How seeds become one number.
    """
    how = reading or Reading()

    def quote_at(t: int) -> Callable[[Group], str | None]:
        def quote_cell(group: Group) -> str | None:
            reached = finite(_mu_w_at(seed.curve, t) for seed in group.seeds)
            return f"{quote(reached, how, digits=3)} (n = {len(reached)})" if len(reached) else None

        return quote_cell

    columns = {
        f"{task}{NESTED}{show_steps(t)}": _by_method(comparison, task, quote_at(t))
        for task in comparison.tasks
        for t in times
    }
    caption = (
        f"Normalised overall win rate at env steps: {how}; each seed is integrated from its first evaluation, then "
        f"averaged; n is the number of seeds that got there. {_BEST}"
    )
    return _tabulate(comparison, columns, caption, [*comparison.left_out, *_too_short(comparison, times)])


def quote(values: Values, reading: Reading, digits: int = 1) -> str:
    """Quote numbers of seeds, "97.5 ± 1.0" or "97.5 [96.0–99.0]"; a single seed is just its number."""
    center, low, high = reading.summarize(values)
    if low is None or high is None:
        return f"{center:.{digits}f}"
    if reading.is_symmetric:
        return f"{center:.{digits}f} ± {center - low:.{digits}f}"
    return f"{center:.{digits}f} [{low:.{digits}f}–{high:.{digits}f}]"


def _mu_w_at(curve: Curve, t: int) -> float:
    return float(mu_w(curve, np.array([float(t)]))[0])


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
    """Tell how many seeds a cell rests on; fewer than wanted are told, "n = 2 of 5"."""
    goal = wanted if isinstance(wanted, int) else 5
    return f"n = {n}" if n >= goal else f"n = {n} of {goal}"


def _by_method(comparison: Comparison, task: str, quote_cell: Callable[[Group], str | None]) -> dict[str, str | None]:
    return {group.variant.method: quote_cell(group) for group in comparison.groups if group.variant.task == task}


def _tabulate(
    comparison: Comparison,
    columns: Mapping[str, Mapping[str, str | None]],
    caption: str,
    left_out: Sequence[LeftOut] | None = None,
) -> pd.DataFrame:
    """Lay cells out as variants × columns and find the best of each column."""
    methods = list(comparison.methods)
    best, texts = [], {}
    for name, column in columns.items():
        cells = [column.get(method) for method in methods]
        texts[name] = [cell or MISSING for cell in cells]
        best += [(place, name) for place in find_best(cells)]
    if any(DAGGER in text for column in texts.values() for text in column):
        caption = f"{caption} {_UNFINISHED}"
    if comparison.preset:
        caption = f"{caption} All with preset = {comparison.preset}."
    frame = pd.DataFrame({"variant": pd.Series(list(comparison.methods.values()), dtype="object"), **texts})
    out = comparison.left_out if left_out is None else left_out
    return describe_table(frame, caption=caption, best=best, left_out=[str(each) for each in out])


def find_best(cells: Sequence[str | None]) -> list[int]:
    """Find the greatest of quoted cells, ties as printed included; a cell that is marked never is, nor one alone."""
    shown = [cell.split(" ")[0] if cell and DAGGER not in cell else "" for cell in cells]
    top = max((float(text) for text in shown if text), default=None)
    return [place for place, text in enumerate(shown) if text and len(cells) > 1 and float(text) == top]
