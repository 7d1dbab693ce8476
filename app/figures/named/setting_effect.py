"""The effect of one setting: the final win rate of each run over the values of a setting that differs between the runs.

The runs of a grid or of a random search also differ in other settings. Then a point of the line is the mean over runs
with different values of the other settings. The line has no interval, and the caption lists the other settings.
"""

from typing import Annotated, Final

import numpy as np

from app.analysis.aggregates import Aggregation, join_summaries
from app.analysis.curves import ComparedRun, Curves, RunTables, describe_excluded
from app.analysis.finals import FinalRule, caption_final, compute_final_rates, get_final_title, make_final_scale
from app.analysis.intervals import CENTER_NAMES
from app.analysis.quantities import UNIT_RANGE
from app.analysis.settings import IMPORT_LABEL, name_run_algo
from app.analysis.varied_settings import find_number, group_by_settings, list_varied_settings
from app.figures.figure import FigureKind
from app.figures.kinds.chart import Chart, Line, Panel
from app.figures.named.curves import make_subtitle, read_finals, read_run_tables
from app.figures.options import CenterOptions, Option, ResultOptions
from app.figures.theme import Style, make_styles
from emtc_core.config.base import IMPORTED
from emtc_core.errors import ConfigError

_NAME: Final = "setting-effect"
_LOG_RATIO: Final = 20.0
"""The axis is logarithmic if the largest value is at least this multiple of the smallest one."""


class SettingEffectOptions(ResultOptions, CenterOptions):
    """Options of the effect of a setting."""

    setting: Annotated[
        str,
        Option(
            "Setting",
            "A setting with numbers that differ between the runs. Default: the one with the most values",
            rule="a setting with different numbers in these runs, for example memory.delta",
        ),
    ] = ""


def _draw(tables: RunTables, options: SettingEffectOptions) -> Chart:
    finals = read_finals(tables, options, options.rate)
    varied = list_varied_settings(finals)
    if not varied:
        raise ConfigError("needs finished runs that differ in a setting with numbers", key=_NAME)
    setting = options.setting or varied[0]
    if setting not in varied:
        raise ConfigError(f"must be one of {', '.join(varied)}", key="setting", value=setting)
    others = [key for key in varied if key != setting]
    aggregation = Aggregation(options.center or "mean", "none" if others else "ci")
    rule, quantity = options.final, finals.measure
    numbers = {run.id: number for run in finals.runs if (number := find_number(run, setting)) is not None}
    curves = finals.keep(run for run in finals.runs if run.id in numbers)
    smallest, largest = min(numbers.values()), max(numbers.values())
    is_log = smallest > 0 and largest >= _LOG_RATIO * smallest
    runs_by_algo: dict[str, list[ComparedRun]] = {}
    for run in curves.runs:
        runs_by_algo.setdefault(name_run_algo(run.settings), []).append(run)
    styles = make_styles({name: _get_style_key(name, runs[0]) for name, runs in runs_by_algo.items()})
    panels = []
    for task in curves.tasks:
        lines: list[Line] = []
        for name, runs in runs_by_algo.items():
            task_curves = curves.keep(run for run in runs if run.task == task)
            if task_curves.runs:
                lines += _draw_algo(name, task_curves, setting, styles[name], aggregation, rule)
        title = get_final_title(rule, quantity.at(task))
        panels.append(Panel(f"{title}, {task}", "fraction", tuple(lines), range=UNIT_RANGE, axis=title))
    sentences = (
        f"A point is a run; the line is the {CENTER_NAMES[aggregation.center]} of the runs with the same value.",
        f"The runs also differ in {', '.join(others)}, so the line has no interval." if others else "",
    )
    caption = caption_final(curves, rule, *sentences) + describe_excluded(curves.excluded)
    description = f"Final win rate of {curves.n} runs over {setting}: {', '.join(runs_by_algo)}."
    return Chart(
        _NAME, f"Win rate by {setting}", setting, tuple(panels), caption, description,
        columns=min(3, len(panels)), subtitle=make_subtitle(aggregation, is_fraction=True), x_log=is_log,
    )  # fmt: skip


def _get_style_key(name: str, run: ComparedRun) -> tuple[str, str]:
    """Return the key of the style: the algorithm, or the name of an imported one, which is not one of ours."""
    return (name, IMPORTED) if IMPORT_LABEL in run.settings else (str(run.settings.get("algo")), "")


def _draw_algo(
    algo: str, curves: Curves, setting: str, style: Style, aggregation: Aggregation, rule: FinalRule
) -> list[Line]:
    """Draw the runs of one algorithm on one task as points, and the center of the runs with the same value as a line.

    If all runs have different values, there is no line.
    """
    name = f"{algo} (n = {curves.n})"
    x = np.array([find_number(run, setting) for run in curves.runs], np.float64)
    order = np.argsort(x, kind="stable")
    finals = compute_final_rates(curves, rule)
    marker = style.marker or "circle"
    groups = {float(str(value)): group for (value,), group in group_by_settings(curves, setting).items()}
    is_line = len(groups) < curves.n
    points = Line(
        f"{name}, runs" if is_line else name, style.color, x[order], finals[order],
        markers=True, marker=marker, width=0.0, faint=is_line, group=name if is_line else "",
    )  # fmt: skip
    if not is_line:
        return [points]
    quantity = curves.measure.at(curves.runs[0].task)
    summaries = []
    for group in groups.values():
        scale = make_final_scale(group, rule, quantity=quantity)
        summaries.append(aggregation.summarize(compute_final_rates(group, rule)[:, None], scale))
    line = Line(
        name, style.color, np.array(list(groups)), *join_summaries(summaries),
        dash=style.dash, markers=True, marker=marker,
        statistic=aggregation.describe(is_fraction=True), n=np.array([group.n for group in groups.values()]),
    )  # fmt: skip
    return [points, line]


FIGURES = (
    FigureKind(
        _NAME, _draw, read_run_tables, SettingEffectOptions,
        question="How does the win rate depend on a setting?", pages=("compare",),
    ),
)  # fmt: skip
