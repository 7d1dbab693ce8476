"""Figures and tables over seeds: learning curves, mu_w, baselines, ablation; final win rates, falls.

Curves over seeds have one panel for each task, one line for each variant, and a band over its seeds.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from app.analysis.comparable import at_budget, read_study, tell_left_out
from app.analysis.finals import episodes_of, rate_of_curve
from app.analysis.quantities import (
    AUTO,
    CHOSEN_MU_W,
    CHOSEN_RATE,
    EVALUATED,
    WIN_RATE,
    WITHOUT,
    Quantity,
    find_rate,
    follows_rate,
)
from app.analysis.rates import read_drawn, read_rates
from app.analysis.series import (
    DAGGER,
    NO_CURVE,
    Comparison,
    Group,
    Seed,
    default_times,
    join_seeds,
    read_seeds,
)
from app.analysis.settings import name_algo, name_change
from app.analysis.statistics import BOOTSTRAP_COVERS, CENTER_NAMES, Reading, align
from app.analysis.tables import describe_table
from app.analysis.variants import Variant
from app.analysis.win_rates import tabulate_falls, tabulate_mu_w, tabulate_win_rates
from app.figures.chart_choices import AS_MEASURED, AXES, Look
from app.figures.figure import AT_A_BUDGET, AT_THE_END, OF_A_RATE, WINDOW, FigureKind, Options, Own, TableKind
from app.figures.kinds.chart import Chart, Line, Panel
from app.figures.theme import Style, style_methods
from emtc_core.errors import ConfigError
from emtc_core.metrics import is_known
from storage.engine import Database
from storage.queries.runs import list_runs
from storage.runs.rows import RunRow

BASELINES = ("emtc-qplex", "emtc-cds", "dmix", "mappo")
_PARTS = "No-TCGM: β = 1 everywhere. No-TCSE: the autoencoder alone, without contrast."


def _learning_curves(db: Database, rows: Sequence[RunRow], options: Options) -> Chart:
    key, each = options.get("quantity", CHOSEN_RATE), options.get("each", False)
    if options.rate not in (None, AUTO, find_rate(key, options.rate_name)):
        rule = f"would change nothing, because quantity = {key} is drawn"
        raise ConfigError(rule, key="rate", value=options.rate, hint="Leave one out.")
    return _draw(db, rows, options, key, "learning-curves", per_seed=each)


def _baselines(db: Database, rows: Sequence[RunRow], options: Options) -> Chart:
    chosen = [row for row in rows if row.algo in BASELINES]
    if not chosen:
        raise ConfigError(f"baselines compares {', '.join(BASELINES)}, and no chosen run is one of them")
    missing = [name_algo(algo) for algo in BASELINES if algo not in {row.algo for row in chosen}]
    note = f"Not run: {', '.join(missing)}." if missing else ""
    return _draw(db, chosen, options, CHOSEN_RATE, "baselines", "EMTC against DMIX and MAPPO", note)


def _draw(
    db: Database,
    rows: Sequence[RunRow],
    options: Options,
    key: str,
    name: str,
    title: str = "",
    note: str = "",
    *,
    per_seed: bool = False,
) -> Chart:
    drawn = read_drawn(db, rows, key, options.rate_name)
    comparison = join_seeds(*drawn, include_unfinished=options.include_unfinished)
    if not comparison.groups:
        reason = WITHOUT.get(comparison.quantity.key, "no evaluation yet")
        raise ConfigError(f"Run {rows[0].id} has {reason}", hint="Wait for its first, or name another.")
    look = Look(options.get("smooth", 0), options.get("log", ()))
    return draw_comparison(comparison, options.reading, per_seed=per_seed, look=look, name=name, title=title, note=note)


def _win_rates(db: Database, rows: Sequence[RunRow], options: Options) -> pd.DataFrame:
    unfinished, rate = options.include_unfinished, options.rate_name
    comparison = read_study(db, rows, include_unfinished=unfinished, rate=rate, budget=options.read_at)
    return tabulate_win_rates(comparison, options.reading, options.final_rule)


def _falls(db: Database, rows: Sequence[RunRow], options: Options) -> pd.DataFrame:
    greedy = join_seeds(read_seeds(db, rows), include_unfinished=options.include_unfinished, final=True)
    return tabulate_falls(at_budget(greedy, options.read_at), options.reading)


def _mu_w_table(db: Database, rows: Sequence[RunRow], options: Options) -> pd.DataFrame:
    rated = read_rates(db, rows, options.rate_name)
    everything = join_seeds(*rated, include_unfinished=True)
    results = everything if options.include_unfinished else join_seeds(*rated, final=True)
    return tabulate_mu_w(everything, default_times(results.groups or everything.groups), options.reading)


def _runs(db: Database, rows: Sequence[RunRow], options: Options) -> pd.DataFrame:
    columns = ["id", "name", "env", "map", "algo", "seed", "status", "env_steps", "target_steps", "win_rate", "device"]
    return describe_table(
        list_runs(db, limit=None).loc[:, columns], caption="win_rate is that of a run's last evaluation."
    )


def _read_quantity(key: Any) -> str:
    if key not in EVALUATED and not follows_rate(str(key)) and not is_known(str(key)):
        raise ValueError(key)
    return str(key)


def _read_smooth(value: Any) -> int:
    steps = int(value)
    if steps < 0:
        raise ValueError(value)
    return steps


def _read_axes(value: Any) -> tuple[str, ...]:
    axes = tuple(axis for axis in AXES if axis in value)
    if not axes or len(value) > len(axes):
        raise ValueError(value)
    return axes


_LOOK = (
    Own("smooth", _read_smooth, "a number of env steps: each point is the mean of those before it"),
    Own("log", _read_axes, "x, y or xy: which axes are logarithmic"),
)
FIGURES = (
    FigureKind(
        "learning-curves", _learning_curves, OF_A_RATE, question="How do variants learn, over seeds?",
        own=(
            WINDOW,
            Own(
                "quantity", _read_quantity,
                "win_rate or mu_w (of greedy episodes), robust_win_rate, robust_mu_w, return, length or the name of a "
                f"metric; {CHOSEN_RATE} or {CHOSEN_MU_W} for the win rate that --rate names",
            ),
            Own("each", bool, "true or false: a thin line for every run"),
            *_LOOK,
        ),
    ),
    FigureKind(
        "baselines", _baselines, OF_A_RATE, question="How does EMTC stand against DMIX and MAPPO?", pages=("compare",)
    ),
    FigureKind(
        "mu-w", partial(_draw, key=CHOSEN_MU_W, name="mu-w"), OF_A_RATE,
        question="How does the area under the curve grow?", pages=("compare",), own=_LOOK,
    ),
    FigureKind(
        "ablation", partial(_draw, key=CHOSEN_RATE, name="ablation", title="Ablation", note=_PARTS), OF_A_RATE,
        question="What does each part of EMTC contribute?", pages=("compare",),
    ),
)  # fmt: skip
TABLES = (
    TableKind("runs", _runs, takes_runs=False),
    TableKind("win-rates", _win_rates, AT_THE_END),
    TableKind("falls", _falls, AT_A_BUDGET),
    TableKind("mu-w", _mu_w_table, OF_A_RATE),
)


X_LABEL = "training env steps"


def draw_comparison(
    comparison: Comparison,
    reading: Reading | None = None,
    *,
    per_seed: bool = False,
    look: Look = AS_MEASURED,
    name: str = "learning-curves",
    title: str = "",
    note: str = "",
) -> Chart:
    """Draw a quantity of every variant: its centre over seeds, a band, and each seed as a faint line when wanted.

    Args:
        comparison: Variants with the curves of their seeds.
        reading: Centre and band; mean ± standard deviation when missing.
        per_seed: Draw each seed too, as it was measured.
        look: Smoothing and logarithmic axes.
        name: Of the chart and its files.
        title: Over the figure; made from the quantity when missing.
        note: A sentence of the caption.
    """
    reading, quantity = reading or Reading(), comparison.quantity
    styles = style_comparison(comparison)
    measured = {(each.variant.task, each.variant.method): each for each in comparison.groups}
    comparison = look.smoothed(comparison)
    panels = []
    for task in comparison.tasks:
        lines: list[Line] = []
        here_drawn = quantity.at(task)
        here = [each for each in comparison.groups if each.variant.task == task]
        labels = label_ends([group.variant for group in here])
        for group in here:
            style = styles[group.variant.method]
            named = comparison.name_line(group.variant.method)
            raw = measured[task, group.variant.method]
            lines += _seeds(raw, named, style) if per_seed else []
            if look.smooth and not (per_seed and group.n > 1):
                lines.append(_behind(draw_line(named, raw.seeds, reading, style, quantity=here_drawn)))
            label = f"{labels[group.variant.method]}{group.mark}"
            lines.append(draw_line(named, group.seeds, reading, style, quantity=here_drawn, label=label))
        title_here = here_drawn.title
        panels.append(
            Panel(f"{title_here}, {task}", quantity.unit, tuple(lines), range=quantity.range, axis=title_here)
        )
    described = f"{quantity.title} over {X_LABEL}, one panel for each of {', '.join(comparison.tasks)}: " + ", ".join(
        f"{group.variant.label} (n = {group.n})" for group in comparison.groups
    )
    is_usual = quantity.key in (WIN_RATE.key, CHOSEN_RATE)
    title = title or ("Learning curves" if is_usual else f"{quantity.title} over training")
    caption = " ".join(filter(None, (describe_reading(comparison, reading), look.words, note, *_remarks(comparison))))
    caption += tell_left_out(comparison.left_out)
    columns = min(3, len(comparison.tasks)) or 1
    shown = tuple(panels) or (Panel(quantity.title, quantity.unit, ()),)
    subtitle = say_reading(reading, share=quantity.is_share)
    subtitle += f"; smoothed over {look.smooth:,} env steps" if look.smooth else ""
    drawn = Chart(name, title, X_LABEL, shown, caption, f"{described}.", columns=columns, subtitle=subtitle)
    return look.on_axes(drawn)


def _behind(line: Line) -> Line:
    """What was measured, faint behind its smoothed line."""
    name = f"{line.name}, as measured"
    return replace(line, name=name, low=None, high=None, width=1.0, faint=True, marker="", group=line.name)


def style_comparison(comparison: Comparison) -> dict[str, Style]:
    """Give every method its style: the one that it has on every page."""
    return style_methods(
        {group.variant.method: (group.variant.algo, group.variant.changed) for group in comparison.groups}
    )


def split_panels(chart: Chart) -> list[Chart]:
    """Give each panel a chart of its own, so that each task has its own x axis on the page."""
    return [replace(chart, panels=(panel,), columns=1) for panel in chart.panels]


def say_reading(reading: Reading, *, share: bool) -> str:
    """What a line and its band are, in few words for the figure itself."""
    band = "" if reading.band == "none" else f"; band: {reading.name_band(share=share)}"
    return f"line: {CENTER_NAMES[reading.center]} over seeds{band}"


def describe_reading(comparison: Comparison, reading: Reading) -> str:
    """What was averaged over what, what the band is, and over how many seeds."""
    quantity: Quantity = comparison.quantity
    what = quantity.meaning[:1].upper() + quantity.meaning[1:]
    each = "episodes are averaged per seed first" if quantity.is_evaluation else "each seed is one curve"
    counts = sorted({group.n for group in comparison.groups}) or [0]
    n = f"n = {counts[0]}" if len(counts) == 1 else f"n = {counts[0]} to {counts[-1]}"
    band = "" if reading.band == "none" else " A single seed has no band."
    if reading.band == "bootstrap":
        band = f" Whole seeds are resampled. {BOOTSTRAP_COVERS}{band}"
    said = reading.say(share=quantity.is_share)
    return f"{what}; {each}, then the line is the {said} ({n} seeds, in the legend).{band}"


def draw_line(
    name: str, seeds: Sequence[Seed], reading: Reading, style: Style, *, quantity: Quantity = WIN_RATE, label: str = ""
) -> Line:
    """Draw a quantity of some seeds as one line over the stretch that all of them reached."""
    steps, values = align([seed.curve for seed in seeds])
    summary = reading.summarize(values, rate_of_curve(quantity, seeds, steps))
    return Line(
        name, style.color, steps, summary.center, summary.low, summary.high,
        dash=style.dash, marker=style.marker, label=label,
        statistic=reading.say(share=quantity.is_share), n=len(seeds),
    )  # fmt: skip


def label_ends(variants: Sequence[Variant]) -> dict[str, str]:
    """Give each line of a panel its label, by method: what it changes, where that alone says which line is meant.

    It does where all lines are of one algorithm, and for an ablation by its name; of two that would read alike both
    have their whole names.
    """
    algos = {variant.algo for variant in variants}
    short = {each.method: _shorten(each, alone=len(algos) == 1) for each in variants}
    read = list(short.values())
    return {each.method: label if read.count(label := short[each.method]) == 1 else each.name for each in variants}


def _shorten(variant: Variant, *, alone: bool) -> str:
    algo, _, changes = variant.name.partition(", ")
    clear = alone or any(name_change(variant.algo, *each).startswith("No-") for each in variant.changes.items())
    return changes if changes and clear else variant.name if changes else algo


def _remarks(comparison: Comparison) -> list[str]:
    remarks = [f"All lines: preset = {comparison.preset}."] if comparison.preset else []
    remarks += filter(None, (comparison.quantity.note, _tell_distinct(comparison.seeds)))
    unfinished = [seed for group in comparison.groups for seed in group.unfinished]
    if unfinished:
        told = "; ".join(f"run {seed.id} {seed.progress}" for seed in unfinished[:5])
        more = f"; and {len(unfinished) - 5} more" if len(unfinished) > 5 else ""
        remarks.append(f"{DAGGER} not finished: {told}{more}; a line ends where its shortest seed does.")
    return remarks


def _tell_distinct(seeds: Sequence[Seed]) -> str:
    """How many episodes of an evaluation differ; empty where none was counted."""
    counted = [seed for seed in seeds if len(seed.distinct)]
    if not counted:
        return ""
    played, differ = {f"{episodes_of(seed):g}" for seed in counted}, np.concatenate([seed.distinct for seed in counted])
    low, high = int(differ.min()), int(differ.max())
    told = f"{low} differ" if low == high else f"{low} to {high} differ, median {np.median(differ):g}"
    here = "" if len(counted) == len(seeds) else f" Counted in {len(counted)} of the {len(seeds)} runs."
    return f"Of the {f'{played.pop()} ' if len(played) == 1 else ''}episodes of an evaluation {told}.{here}"


def _seeds(group: Group, name: str, style: Style) -> list[Line]:
    if group.n < 2:
        return []
    usual = Line(name, style.color, *NO_CURVE, width=1.0, faint=True, group=name, statistic="one seed", n=1)
    return [
        replace(usual, name=f"{group.variant.method}, {seed.id}", x=seed.curve.steps, y=seed.curve.values)
        for seed in group.seeds
    ]
