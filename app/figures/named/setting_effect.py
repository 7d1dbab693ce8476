"""The figure `setting-effect`: the final win rate of each run over the values of one setting.

The runs of a grid or of a random search also differ in other settings. In this case a point of the line is the mean
over runs with different values of the other settings. The line has no interval, and the caption lists these settings.
"""

from typing import Annotated, Final

import numpy as np

from app.analysis.aggregates import Aggregation, join_summaries
from app.analysis.curves import ComparedRun, Curves, RunTables, describe_excluded
from app.analysis.finals import FinalRule, caption_final, compute_final_rates, get_final_title, make_final_scale
from app.analysis.format import format_run_count
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
_MIN_LOG_RATIO: Final = 20.0
"""The x axis is logarithmic if the largest value is at least this multiple of the smallest one."""


class SettingEffectOptions(ResultOptions, CenterOptions):
    """Options of the effect of a setting."""

    setting: Annotated[
        str,
        Option(
            "Setting",
            "A setting with numbers that differ between the runs. Default: the one with the most values",
            # the end of the error message "must be …"
            rule="a setting with different numbers in these runs, for example memory.delta",
        ),
    ] = ""


def _draw(tables: RunTables, options: SettingEffectOptions) -> Chart:
    # Select the setting. `finals` contains the finished runs, and `curves` those of them with a number for the setting.
    finals = read_finals(tables, options, options.rate)
    varied = list_varied_settings(finals)
    if not varied:
        # the message starts with the key: "setting-effect needs finished runs …"
        raise ConfigError("needs finished runs that differ in a setting with numbers", key=_NAME)
    setting = options.setting or varied[0]  # the first one has the most different values
    if setting not in varied:
        raise ConfigError(f"must be one of {', '.join(varied)}", key="setting", value=setting)
    other_settings = [key for key in varied if key != setting]
    values = {run.id: value for run in finals.runs if (value := find_number(run, setting)) is not None}
    curves = finals.keep(run for run in finals.runs if run.id in values)
    runs_by_algo: dict[str, list[ComparedRun]] = {}
    for run in curves.runs:
        runs_by_algo.setdefault(name_run_algo(run.settings), []).append(run)

    # Draw one panel for each task.
    aggregation = Aggregation(center=options.center or "mean", band="none" if other_settings else "ci")
    final_rule = options.final
    styles = make_styles({algo: _get_style_key(algo, runs[0]) for algo, runs in runs_by_algo.items()})
    panels = []
    for task in curves.tasks:
        lines: list[Line] = []
        for algo, runs in runs_by_algo.items():
            task_curves = curves.keep(run for run in runs if run.task == task)
            if task_curves.runs:
                lines += _draw_algo(algo, task_curves, setting, styles[algo], aggregation, final_rule)
        quantity = finals.measure.at(task)  # the win rate that is measured on this task, for example robust
        title = get_final_title(final_rule, quantity)
        panels.append(Panel(f"{title}, {task}", "fraction", tuple(lines), range=UNIT_RANGE, axis=title))

    sentences = [
        f"A point is a run; the line is the {CENTER_NAMES[aggregation.center]} of the runs with the same value."
    ]
    if other_settings:
        sentences.append(f"The runs also differ in {', '.join(other_settings)}, so the line has no interval.")
    smallest = min(values.values())
    largest = max(values.values())
    return Chart(
        _NAME,
        title=f"Win rate by {setting}",
        x_label=setting,
        panels=tuple(panels),
        caption=caption_final(curves, final_rule, *sentences) + describe_excluded(curves.excluded),
        description=f"Final win rate of {format_run_count(curves.n)} over {setting}: {', '.join(runs_by_algo)}.",
        columns=min(3, len(panels)),
        subtitle=make_subtitle(aggregation, is_fraction=True),
        x_log=smallest > 0 and largest >= _MIN_LOG_RATIO * smallest,
    )


def _get_style_key(algo: str, run: ComparedRun) -> tuple[str, str]:
    """Return the argument of `make_styles` for one algorithm: its name, and the text "imported" for an imported run.

    So an imported run never gets the style of our algorithms. The second text is empty for the other runs.
    """
    is_imported_run = IMPORT_LABEL in run.settings
    if is_imported_run:
        return (algo, IMPORTED)
    return (str(run.settings.get("algo")), "")


def _draw_algo(
    algo: str, curves: Curves, setting: str, style: Style, aggregation: Aggregation, final_rule: FinalRule
) -> list[Line]:
    """Draw the runs of one algorithm on one task as points, and the center of the runs with the same value as a line.

    If all runs have different values, there is no line.
    """
    name = f"{algo} (n = {curves.n})"
    x = np.array([find_number(run, setting) for run in curves.runs], np.float64)
    order = np.argsort(x, kind="stable")
    final_rates = compute_final_rates(curves, final_rule)
    marker = style.marker or "circle"
    # Value → runs. `str` because the type of a setting includes texts. `_draw` has selected the runs with a number.
    groups = {float(str(value)): group for (value,), group in group_by_settings(curves, setting).items()}
    has_line = len(groups) < curves.n
    # if there is a line, the points are faint and `group` is the name of the line
    points = Line(
        f"{name}, runs" if has_line else name, style.color, x[order], final_rates[order],
        markers=True, marker=marker, width=0.0, faint=has_line, group=name if has_line else "",
    )  # fmt: skip
    if not has_line:
        return [points]
    quantity = curves.measure.at(curves.runs[0].task)
    summaries = []
    for group in groups.values():
        scale = make_final_scale(group, final_rule, quantity=quantity)
        rates_of_runs = compute_final_rates(group, final_rule)[:, None]  # [runs, 1 point of the line]
        summaries.append(aggregation.summarize(rates_of_runs, scale))
    summary = join_summaries(summaries)
    line = Line(
        name,
        style.color,
        x=np.array(list(groups)),
        y=summary.center,
        low=summary.low,
        high=summary.high,
        dash=style.dash,
        markers=True,
        marker=marker,
        statistic=aggregation.describe(is_fraction=True),
        n=np.array([group.n for group in groups.values()]),
    )
    return [points, line]


FIGURES = (
    FigureKind(
        _NAME, _draw, read_run_tables, SettingEffectOptions,
        question="How does the win rate depend on a setting?", pages=("compare",),
    ),
)  # fmt: skip
