"""The effect of one setting: the final win rate of each run over the values of a setting that differs between the runs.

The runs of a grid or of a random search also differ in other settings. Then a point of the line is the mean over runs
with different values of the other settings. The line has no interval, and the caption lists the other settings.
"""

from collections.abc import Sequence
from typing import Annotated, Final

import numpy as np

from app.analysis.aggregates import Aggregation, join_summaries
from app.analysis.comparable import BUDGET, describe_excluded, group_seeds
from app.analysis.compared import ComparedRuns
from app.analysis.finals import FinalRule, caption_final, compute_final_rates, get_final_title, make_final_scale
from app.analysis.intervals import CENTER_NAMES
from app.analysis.quantities import UNIT_RANGE, Quantity
from app.analysis.series import SeedRun
from app.analysis.settings import LABEL, is_read, learning_settings, name_run_algo
from app.figures.figure import FigureKind
from app.figures.kinds.chart import Chart, Line, Panel
from app.figures.named.curves import join_finals, make_subtitle, read_comparison
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


def list_varied_settings(seeds: Sequence[SeedRun]) -> list[str]:
    """List the settings with at least two different numbers in these runs, those with the most values first.

    Only runs whose algorithm reads a setting count.
    """
    numbers: dict[str, set[float]] = {}
    for seed in seeds:
        for key in learning_settings(seed.settings):
            if key != BUDGET and (number := _find_number(seed, key)) is not None:
                numbers.setdefault(key, set()).add(number)
    varied = [key for key, values in numbers.items() if len(values) > 1]
    return sorted(varied, key=lambda key: (-len(numbers[key]), key))


def _find_number(seed: SeedRun, key: str) -> float | None:
    """Return the value of a setting; None if it is not a number, or the algorithm does not read it."""
    value = seed.settings.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if is_read(key, str(seed.settings.get("algo"))) else None


def _draw(runs: ComparedRuns, options: SettingEffectOptions) -> Chart:
    comparison = join_finals(runs, options)
    varied = list_varied_settings(comparison.seeds)
    if not varied:
        raise ConfigError("needs finished runs that differ in a setting with numbers", key=_NAME)
    setting = options.setting or varied[0]
    if setting not in varied:
        raise ConfigError(f"must be one of {', '.join(varied)}", key="setting", value=setting)
    others = [key for key in varied if key != setting]
    aggregation = Aggregation(options.center or "mean", "none" if others else "ci")
    rule, quantity = options.final, comparison.quantity
    numbers = {seed.id: number for seed in comparison.seeds if (number := _find_number(seed, setting)) is not None}
    seeds = [seed for seed in comparison.seeds if seed.id in numbers]
    smallest, largest = min(numbers.values()), max(numbers.values())
    is_log = smallest > 0 and largest >= _LOG_RATIO * smallest
    seeds_by_name: dict[str, list[SeedRun]] = {}
    for seed in seeds:
        seeds_by_name.setdefault(name_run_algo(seed.settings), []).append(seed)
    styles = make_styles({name: _get_style_key(name, group[0]) for name, group in seeds_by_name.items()})
    panels = []
    for task in dict.fromkeys(seed.task for seed in seeds):
        lines: list[Line] = []
        for name, group in seeds_by_name.items():
            task_group = [seed for seed in group if seed.task == task]
            if task_group:
                lines += _draw_algo(name, task_group, setting, styles[name], aggregation, rule, quantity.at(task))
        title = get_final_title(rule, quantity.at(task))
        panels.append(Panel(f"{title}, {task}", "fraction", tuple(lines), range=UNIT_RANGE, axis=title))
    sentences = (
        f"A point is a run; the line is the {CENTER_NAMES[aggregation.center]} of the runs with the same value.",
        f"The runs also differ in {', '.join(others)}, so the line has no interval." if others else "",
    )
    caption = caption_final(seeds, rule, *sentences, quantity=quantity, comparison=comparison)
    names = ", ".join(seeds_by_name)
    description = f"Final win rate of {len(seeds)} runs over {setting}: {names}."
    return Chart(
        _NAME, f"Win rate by {setting}", setting, tuple(panels),
        caption + describe_excluded(comparison.excluded_runs), description,
        columns=min(3, len(panels)), subtitle=make_subtitle(aggregation, share=True), x_log=is_log,
    )  # fmt: skip


def _get_style_key(name: str, seed: SeedRun) -> tuple[str, str]:
    """Return the key of the style: the algorithm, or the name of an imported one, which is not one of ours."""
    return (name, IMPORTED) if LABEL in seed.settings else (str(seed.settings.get("algo")), "")


def _draw_algo(
    algo: str,
    seeds: Sequence[SeedRun],
    setting: str,
    style: Style,
    aggregation: Aggregation,
    rule: FinalRule,
    quantity: Quantity,
) -> list[Line]:
    """Draw the runs of one algorithm as points, and the center of the runs with the same value as a line.

    If all runs have different values, there is no line.
    """
    name = f"{algo} (n = {len(seeds)})"
    x = np.array([_find_number(seed, setting) for seed in seeds], np.float64)
    order = np.argsort(x, kind="stable")
    finals = compute_final_rates(seeds, rule)
    marker = style.marker or "circle"
    groups = {float(str(value)): group for (value,), group in group_seeds(seeds, setting).items()}
    is_line = len(groups) < len(seeds)
    points = Line(
        f"{name}, runs" if is_line else name, style.color, x[order], finals[order],
        markers=True, marker=marker, width=0.0, faint=is_line, group=name if is_line else "",
    )  # fmt: skip
    if not is_line:
        return [points]
    summaries = [
        aggregation.summarize(
            compute_final_rates(group, rule)[:, None], make_final_scale(group, rule, quantity=quantity)
        )
        for group in groups.values()
    ]
    line = Line(
        name, style.color, np.array(list(groups)), *join_summaries(summaries),
        dash=style.dash, markers=True, marker=marker,
        statistic=aggregation.describe(is_fraction=True), n=np.array([len(group) for group in groups.values()]),
    )  # fmt: skip
    return [points, line]


FIGURES = (
    FigureKind(
        _NAME, _draw, read_comparison, SettingEffectOptions,
        question="How does the win rate depend on a setting?", pages=("compare",),
    ),
)  # fmt: skip
