"""Figures and tables over seeds: learning curves, mu_w, baselines, ablation, final win rates, performance drops.

A curve figure has one panel for each task, one line for each variant, and a band over the seeds of the variant. mu_w
(μ̄_w) is the time average of the win rate. A fall is a drop of the win rate after a high evaluation. The page Compare
passes the runs of all databases that it shows. The other callers read the runs of one database.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import Field

from app.analysis.aggregates import Aggregation, explain_small_samples, interpolate_to_common_grid
from app.analysis.bootstrap import BOOTSTRAP_COVERAGE
from app.analysis.curves import (
    DAGGER,
    ComparedRun,
    Curves,
    ExcludedRun,
    RunTables,
    describe_excluded,
    exclude_without_x,
    format_range,
    read_curves,
    read_tables,
    smooth_curves,
)
from app.analysis.finals import get_eval_episodes, make_curve_scale
from app.analysis.format import format_run_count
from app.analysis.identical_runs import describe_identical_runs
from app.analysis.intervals import CENTER_NAMES
from app.analysis.published import list_published_maps, tabulate_with_published
from app.analysis.quantities import (
    AUTO,
    EVALUATION_QUANTITIES,
    REASONS_WITHOUT_VALUE,
    SELECTED_MU_W,
    SELECTED_RATE,
    WIN_RATE,
    Quantity,
    RateName,
    find_rate,
    uses_selected_rate,
)
from app.analysis.results import select_common_budget, select_finals, select_results
from app.analysis.settings import name_algo, name_change, name_run_algo, parse_steps
from app.analysis.tables import Table, make_plain_table
from app.analysis.variants import Variant
from app.analysis.win_rates import choose_mu_w_steps, tabulate_falls, tabulate_mu_w, tabulate_win_rates
from app.analysis.x_axes import X_AXES
from app.figures.curve_style import AXES, describe_style, with_log_axes
from app.figures.figure import FigureKind, PageSection, StoredRuns, TableKind
from app.figures.kinds.chart import Chart, Line, Panel, Values
from app.figures.options import (
    BudgetOptions,
    CurveOptions,
    FinalRuleOptions,
    Option,
    Options,
    RatedBudgetOptions,
    SeedOptions,
    SeedRateOptions,
    SeedResultOptions,
    WindowOptions,
    convert_with,
    read_step_count,
)
from app.figures.theme import Style, make_styles
from emtc_core.config.resolve import flatten_tree
from emtc_core.errors import ConfigError
from emtc_core.metrics import is_known
from storage.engine import Database
from storage.queries.run_search import TABLE_COLUMNS
from storage.queries.runs import list_runs
from storage.runs.rows import RunRow, format_seed

BASELINES = ("emtc-qplex", "emtc-cds", "dmix", "mappo")
"""Algorithms of the figure `baselines`."""
X_LABEL = X_AXES["env_steps"].label
_ABLATION_NOTE = "No-TCGM: β = 1 everywhere. No-TCSE: the autoencoder without the contrastive loss."


def _read_quantity(key: Any) -> str:
    if key not in EVALUATION_QUANTITIES and not uses_selected_rate(str(key)) and not is_known(str(key)):
        raise ValueError(key)
    return str(key)


def _read_axes(value: Any) -> str:
    """Read the logarithmic axes from a text such as "xy" or a list such as ["x", "y"]."""
    axes = "".join(axis for axis in AXES if axis in value)
    if len(value) > len(axes):
        raise ValueError(value)
    return axes


def _read_names(value: Any) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(map(str, value))


def _read_steps(value: Any) -> tuple[int, ...]:
    steps = tuple(parse_steps(value)) if isinstance(value, str) else tuple(map(int, value))
    if not steps:
        raise ValueError(value)
    return steps


class StyleOptions(Options):
    """How curves are drawn."""

    smooth: Annotated[
        int,
        convert_with(read_step_count),
        Option(
            "Smoothing [env steps]",
            "Each point becomes the mean of its seed over this number of env steps before it, for example 20k. Empty: "
            "no smoothing. The measured values stay as faint lines.",
            rule="a number of env steps such as 20k: each point is the mean over the steps before it",
        ),
    ] = 0
    log_axes: Annotated[
        Literal["", "x", "y", "xy"],
        Field(alias="log"),
        convert_with(_read_axes),
        Option("Log scale", rule="x, y or xy: the logarithmic axes"),
    ] = ""


class StyledCurveOptions(StyleOptions, CurveOptions):
    """Options of win rates over a selectable x axis, with smoothing and logarithmic axes."""


class QuantityOptions(Options):
    """What curves show."""

    quantity: Annotated[
        str,
        convert_with(_read_quantity),
        Option(
            "Quantity",
            "Evaluations, or any number that the runs logged. The Method page explains each.",
            rule="win_rate or mu_w (of greedy episodes), robust_win_rate, robust_mu_w, return, length or the name of a "
            f"metric; {SELECTED_RATE} or {SELECTED_MU_W} for the win rate that --rate names",
            url_parameter="y",
        ),
    ] = SELECTED_RATE
    per_seed: Annotated[
        bool,
        Field(alias="each"),
        Option("Seeds", "Also draw a thin line for each run", rule="true or false: a thin line for every run"),
    ] = False


class LearningCurveOptions(StyleOptions, QuantityOptions, WindowOptions, CurveOptions):
    """Options of the learning curves."""

    hidden_names: Annotated[
        tuple[str, ...],
        Field(alias="hide"),
        convert_with(_read_names),
        Option(rule="a method or the id of a run, or a list of them, that is not drawn"),
    ] = ()


class MuWOptions(SeedRateOptions):
    """Options of the table of mu_w."""

    mu_w_steps: Annotated[
        tuple[int, ...],
        Field(alias="at"),
        convert_with(_read_steps),
        Option(
            "At env steps",
            "For example 0.8M, 1.6M, 2.4M. Empty: for each map the paper's steps if all its runs reached them, "
            "otherwise a quarter, a half and all of the env steps that its runs reached.",
            rule="numbers of env steps, for example 50000, 0.8M or 100k, with commas between them",
        ),
    ] = ()


class FallOptions(SeedOptions, RatedBudgetOptions):
    """Options of the table of falls."""


class PublishedOptions(SeedOptions, BudgetOptions, FinalRuleOptions):
    """Options of the table with published win rates, which are always of greedy episodes."""


class BaselineRuns(NamedTuple):
    """The runs of the figure of baselines, and the other selected runs."""

    tables: RunTables
    others: tuple[ExcludedRun, ...]


def draw_comparison(
    curves: Curves,
    aggregation: Aggregation | None = None,
    *,
    per_seed: bool = False,
    smooth: int = 0,
    log_axes: Sequence[str] = (),
    name: str = "learning-curves",
    title: str = "",
    note: str = "",
) -> Chart:
    """Draw a quantity of each variant: a line for the center over seeds, with a band.

    Args:
        curves: The runs that are drawn.
        aggregation: Center and band. Default: mean ± standard deviation.
        per_seed: Also draw each seed as a faint line, without smoothing.
        smooth: Each value becomes the mean over this number of env steps before it, on every x axis; 0: no smoothing.
        log_axes: The logarithmic axes: "x", "y" or both.
        name: Name of the chart and of exported files.
        title: Title of the figure. Default: made from the quantity.
        note: An additional sentence for the caption.
    """
    aggregation = aggregation or Aggregation()
    quantity = curves.measure
    styles = style_comparison(curves)
    measured = exclude_without_x(curves)
    smoothed = smooth_curves(measured, smooth)
    panels = []
    for task in measured.tasks:
        lines: list[Line] = []
        groups = [group for group in measured.by_variant if group.variant.task == task]
        end_labels = make_end_labels([group.variant for group in groups])
        for group in groups:
            method = group.variant.method
            style = styles[method]
            line_name = measured.name_line(method)
            has_seed_lines = per_seed and group.n > 1
            if has_seed_lines:
                lines += _draw_seeds(group, line_name, style)
            if smooth and not has_seed_lines:
                lines.append(_draw_measured(group, line_name, aggregation, style))
            smoothed_group = smoothed.find_variant(method, task) or group
            label = f"{end_labels[method]}{group.mark}"
            lines.append(draw_line(line_name, smoothed_group, aggregation, style, label=label))
        axis_title = quantity.at(task).title
        panel = Panel(f"{axis_title}, {task}", quantity.unit, tuple(lines), range=quantity.range, axis=axis_title)
        panels.append(panel)
    x_label = measured.x_axis.label
    variants = ", ".join(f"{group.variant.label} (n = {group.n})" for group in measured.by_variant)
    description = f"{quantity.title} over {x_label}, one panel for each of {', '.join(measured.tasks)}: {variants}"
    if not title:
        is_win_rate = quantity.key in (WIN_RATE.key, SELECTED_RATE)
        title = "Learning curves" if is_win_rate else f"{quantity.title} over training"
    sentences = (
        describe_aggregation(measured, aggregation),
        explain_small_samples(aggregation, measured.seed_counts),
        describe_style(smooth, log_axes),
        _describe_x_axis(measured),
        note,
        *_list_notes(measured),
    )
    caption = " ".join(filter(None, sentences)) + describe_excluded(measured.excluded)
    subtitle = make_subtitle(aggregation, is_fraction=quantity.is_fraction)
    if smooth:
        subtitle += f"; smoothed over {smooth:,} env steps"
    all_panels = tuple(panels) or (Panel(quantity.title, quantity.unit, ()),)
    columns = min(3, len(measured.tasks)) or 1
    chart = Chart(name, title, x_label, all_panels, caption, f"{description}.", columns=columns, subtitle=subtitle)
    return with_log_axes(chart, log_axes)


def style_comparison(curves: Curves) -> dict[str, Style]:
    """Return the style of each method. It is the same on every page, and does not change if other lines are hidden."""
    variants = (*(group.variant for group in curves.by_variant), *(run.variant for run in curves.hidden))
    return make_styles({variant.method: variant.style_key for variant in variants})


def make_subtitle(aggregation: Aggregation, *, is_fraction: bool) -> str:
    """Name the statistic of the lines and of the bands, for the subtitle of a figure."""
    band = "" if aggregation.band == "none" else f"; band: {aggregation.name_band(is_fraction=is_fraction)}"
    return f"line: {CENTER_NAMES[aggregation.center]} over seeds{band}"


def describe_aggregation(curves: Curves, aggregation: Aggregation) -> str:
    """Describe the quantity, the average over seeds, the band and the number of seeds, for the caption."""
    quantity: Quantity = curves.measure
    meaning = quantity.meaning[:1].upper() + quantity.meaning[1:]
    first_step = "episodes are averaged per seed first" if quantity.is_evaluation else "each seed is one curve"
    counts = curves.seed_counts or [0]
    n = f"n = {format_range(counts)} seed{'' if set(counts) == {1} else 's'}"
    band_note = "" if aggregation.band == "none" else " A single seed has no band."
    if aggregation.band == "bootstrap":
        band_note = f" Whole seeds are resampled. {BOOTSTRAP_COVERAGE}{band_note}"
    if aggregation.is_symmetric and quantity.is_fraction:
        band_note += " Bands end at 0 and at 1."
    statistic = aggregation.describe(is_fraction=quantity.is_fraction)
    return f"{meaning}; {first_step}, then the line is the {statistic} ({n}).{band_note}"


def _describe_x_axis(curves: Curves) -> str:
    """Describe the x axis and how seeds are aligned on it; empty for the axis of env steps."""
    axis = curves.x_axis
    if not axis.caption or max(curves.seed_counts, default=0) < 2:
        return axis.caption
    return (
        f"{axis.caption} Seeds are interpolated linearly to the same {axis.short_name}s; a line ends where its first "
        "seed ends."
    )


def draw_line(name: str, curves: Curves, aggregation: Aggregation, style: Style, *, label: str = "") -> Line:
    """Draw some runs of one task as one line. The line ends at the last x that all runs reached."""
    quantity = curves.measure.at(curves.runs[0].task)
    x, values = interpolate_to_common_grid([(points.x, points.value) for points in curves.list_points()])
    summary = aggregation.summarize(values, make_curve_scale(quantity, curves, x))
    low, high = summary.low, summary.high
    if quantity.is_fraction:
        low, high = clip_fractions(low), clip_fractions(high)
    return Line(
        name, style.color, x, summary.center, low, high,
        dash=style.dash, marker=style.marker, label=label,
        statistic=aggregation.describe(is_fraction=quantity.is_fraction), n=curves.n,
    )  # fmt: skip


def _draw_measured(group: Curves, line_name: str, aggregation: Aggregation, style: Style) -> Line:
    """Draw the values of a variant before smoothing, as a thin and faint line without a band."""
    line = draw_line(f"{line_name}, as measured", group, aggregation, style)
    return replace(line, low=None, high=None, width=1.0, marker="", faint=True, unsmoothed=True, group=line_name)


def clip_fractions(edge: Values | None) -> Values | None:
    """Limit the edge of a band of fractions to [0, 1]. None if there is no band."""
    return None if edge is None else np.clip(edge, 0.0, 1.0)


def make_end_labels(variants: Sequence[Variant]) -> dict[str, str]:
    """Make a short label for the end of each line of a panel, by method.

    The label contains only the changed settings if all variants have the same algorithm, or if a change is a named
    ablation ("No-..."). If two variants would get the same label, both get their full names.
    """
    is_one_algo = len({variant.algo for variant in variants}) == 1
    labels: dict[str, str] = {}
    for variant in variants:
        algo, _, changes = variant.name.partition(", ")
        is_ablation = any(
            name_change(variant.algo, key, value).startswith("No-") for key, value in variant.changes.items()
        )
        if not changes:
            labels[variant.method] = algo
        elif is_one_algo or is_ablation:
            labels[variant.method] = changes
        else:
            labels[variant.method] = variant.name
    short_labels = list(labels.values())
    for variant in variants:
        if short_labels.count(labels[variant.method]) > 1:
            labels[variant.method] = variant.name
    return labels


def _draw_seeds(group: Curves, name: str, style: Style) -> list[Line]:
    """Draw each run of a variant as a faint line."""
    lines = []
    for run in group.runs:
        points = group.get_points(run.id)
        line = Line(name_seed_line(run), style.color, points.x, points.value, width=1.0, faint=True, group=name)
        lines.append(replace(line, statistic="one seed", n=1))
    return lines


def name_seed_line(run: ComparedRun) -> str:
    """Name the line of one run, which is drawn with the option `each`."""
    return f"{run.variant.method}, {run.id}"


def _list_notes(curves: Curves) -> list[str]:
    """List the notes for the caption: shared settings, win rate, equal episodes, identical runs, unfinished runs."""
    distinct_note = _describe_distinct_episodes(curves)
    identical_note = describe_identical_runs(curves)
    notes = list(filter(None, (curves.shared_note, curves.measure.note, distinct_note, identical_note)))
    unfinished = curves.unfinished
    if unfinished:
        runs = "; ".join(f"run {run.id} {run.progress}" for run in unfinished[:5])
        more = f"; and {len(unfinished) - 5} more" if len(unfinished) > 5 else ""
        notes.append(f"{DAGGER} not finished: {runs}{more}; a line ends where its shortest seed ends.")
    return notes


def _describe_distinct_episodes(curves: Curves) -> str:
    """Write how many episodes of an evaluation differ from each other; empty if this was not counted."""
    counted = curves.points.loc[curves.points["distinct"].notna(), :]
    if not len(counted):
        return ""
    counted_ids = set(counted["run"])
    episodes = {f"{get_eval_episodes(run):g}" for run in curves.runs if run.id in counted_ids}
    n_distinct = counted["distinct"].to_numpy()
    low, high = int(n_distinct.min()), int(n_distinct.max())
    numbers = f"{low} differ" if low == high else f"{low} to {high} differ, median {np.median(n_distinct):g}"
    n_episodes = f"{episodes.pop()} " if len(episodes) == 1 else ""
    n_counted = len(counted_ids)
    coverage = "" if n_counted == curves.n else f" Counted in {n_counted} of the {curves.n} runs."
    return f"Of the {n_episodes}episodes of an evaluation {numbers}.{coverage}"


def read_run_tables(db: Database, rows: Sequence[RunRow], options: Options) -> RunTables:
    """Read the tables from which the curves of the runs are made."""
    return read_tables(db, rows)


def read_finals(tables: RunTables, options: BudgetOptions, rate: RateName) -> Curves:
    """Read a win rate and select the results for final numbers, at the budget of the options."""
    curves = read_curves(tables, rate=rate)
    return select_finals(curves, include_unfinished=options.include_unfinished, budget=options.budget)


def _read_drawn_curves(tables: RunTables, options: CurveOptions, measure: str = SELECTED_RATE) -> Curves:
    """Read the curves of a measure, and select those that the options include.

    Raises:
        ConfigError: If no run has a curve.
    """
    all_curves = read_curves(tables, measure, rate=options.rate, x_axis=options.x_axis)
    curves = select_results(all_curves, include_unfinished=options.include_unfinished)
    if not curves.runs:
        reason = REASONS_WITHOUT_VALUE.get(curves.measure.key, "no evaluation yet")
        run_id = next(iter(tables.rows))
        # the message names the first run, also if there are several
        raise ConfigError(f"Run {run_id} has {reason}", hint="Wait for the first one, or select another run.")
    return curves


def _draw_learning_curves(tables: RunTables, options: LearningCurveOptions) -> Chart:
    key = options.quantity
    is_rate_ignored = options.rate not in (AUTO, find_rate(key, options.rate))
    if is_rate_ignored:
        rule = f"has no effect, because quantity = {key} is drawn"
        raise ConfigError(rule, key="rate", value=options.rate, hint="Remove one of the two.")
    curves = _read_drawn_curves(tables, options, key).hide(options.hidden_names)
    return draw_comparison(
        curves,
        options.aggregation,
        per_seed=options.per_seed,
        smooth=options.smooth,
        log_axes=options.log_axes,
        note=f"Hidden: {format_run_count(len(curves.hidden))}." if curves.hidden else "",
    )


def _draw_mu_w(tables: RunTables, options: StyledCurveOptions) -> Chart:
    curves = _read_drawn_curves(tables, options, SELECTED_MU_W)
    smooth, log_axes = options.smooth, options.log_axes
    return draw_comparison(curves, options.aggregation, smooth=smooth, log_axes=log_axes, name="mu-w")


def _draw_ablation(tables: RunTables, options: CurveOptions) -> Chart:
    curves = _read_drawn_curves(tables, options)
    return draw_comparison(curves, options.aggregation, name="ablation", title="Ablation", note=_ABLATION_NOTE)


def _read_baselines(db: Database, rows: Sequence[RunRow], options: CurveOptions) -> BaselineRuns:
    baseline_rows = [row for row in rows if row.algo in BASELINES]
    if not baseline_rows:
        raise ConfigError(f"baselines compares {', '.join(BASELINES)}. No selected run has one of these algorithms")
    others = [
        ExcludedRun(
            row.id,
            f"{name_run_algo(flatten_tree(row.config))} on {row.map}; {format_seed(row.seed)}",
            "its algorithm is not in this figure",
        )
        for row in rows
        if row.algo not in BASELINES
    ]
    return BaselineRuns(read_tables(db, baseline_rows), tuple(others))


def _draw_baselines(data: BaselineRuns, options: CurveOptions) -> Chart:
    curves = _read_drawn_curves(data.tables, options)
    curves = replace(curves, excluded=(*curves.excluded, *data.others))
    drawn_algos = {run.variant.algo for run in curves.runs}
    algos = [algo for algo in BASELINES if algo in drawn_algos]
    emtc_names = [name_algo(algo) for algo in algos if algo.startswith("emtc-")]
    other_names = [name_algo(algo) for algo in algos if not algo.startswith("emtc-")]
    title = " against ".join(" and ".join(names) for names in (emtc_names, other_names) if names)
    missing = [name_algo(algo) for algo in BASELINES if algo not in drawn_algos]
    note = f"No curve: {', '.join(missing)}." if missing else ""
    return draw_comparison(curves, options.aggregation, name="baselines", title=title, note=note)


def _tabulate_win_rates(tables: RunTables, options: SeedResultOptions) -> Table:
    return tabulate_win_rates(read_finals(tables, options, options.rate), options.aggregation, options.final)


def _tabulate_falls(tables: RunTables, options: FallOptions) -> Table:
    return tabulate_falls(read_finals(tables, options, options.rate), options.aggregation)


def _tabulate_mu_w(tables: RunTables, options: MuWOptions) -> Table:
    curves = select_results(read_curves(tables, rate=options.rate), include_unfinished=True)
    if options.mu_w_steps:
        return tabulate_mu_w(curves, dict.fromkeys(curves.tasks, options.mu_w_steps), options.aggregation)
    return tabulate_mu_w(curves, list_mu_w_steps(tables, options), options.aggregation)


def list_mu_w_steps(tables: RunTables, options: MuWOptions) -> dict[str, tuple[int, ...]]:
    """List the env steps of the table of mu_w for each task, if the option `at` is not set.

    They are computed from the runs with the most common budget of the task. Unfinished runs count if the options
    include them, and on tasks without a finished run.
    """
    curves = read_curves(tables, rate=options.rate)
    with_unfinished = select_results(curves, include_unfinished=True)
    candidates = with_unfinished if options.include_unfinished else select_results(curves, for_final_numbers=True)
    results = select_common_budget(candidates)
    tasks_without_results = set(with_unfinished.tasks) - set(results.tasks)
    unfinished = [group for group in with_unfinished.by_variant if group.variant.task in tasks_without_results]
    return choose_mu_w_steps([*results.by_variant, *unfinished])


def _tabulate_published(tables: RunTables, options: PublishedOptions) -> Table:
    return tabulate_with_published(read_finals(tables, options, "greedy"), options.aggregation, options.final)


def _tabulate_runs(runs: StoredRuns, options: Options) -> Table:
    caption = "win_rate is the win rate of a run's last evaluation."
    return make_plain_table(list_runs(runs.db, limit=None).loc[:, list(TABLE_COLUMNS)], caption=caption)


FIGURES = (
    FigureKind(
        "learning-curves", _draw_learning_curves, read_run_tables, LearningCurveOptions,
        question="How do variants learn, over seeds?",
    ),
    FigureKind(
        "baselines", _draw_baselines, _read_baselines, CurveOptions,
        question="How does EMTC compare with the baselines?", pages=("compare",),
    ),
    FigureKind(
        "mu-w", _draw_mu_w, read_run_tables, StyledCurveOptions,
        question="How does the area under the curve grow?", pages=("compare",),
    ),
    FigureKind(
        "ablation", _draw_ablation, read_run_tables, CurveOptions,
        question="What does each part of EMTC contribute?", pages=("compare",),
    ),
)  # fmt: skip
TABLES = (
    TableKind("runs", _tabulate_runs, selects_runs=False),
    TableKind(
        "win-rates", _tabulate_win_rates, read_run_tables, SeedResultOptions,
        section=PageSection("compare", "Win rates"),
    ),
    TableKind("falls", _tabulate_falls, read_run_tables, FallOptions, section=PageSection("compare", "Falls")),
    TableKind("mu-w", _tabulate_mu_w, read_run_tables, MuWOptions, section=PageSection("compare", "μ̄_w")),
    TableKind(
        "published", _tabulate_published, read_run_tables, PublishedOptions,
        required_runs=f"finished runs on a map with published win rates: {', '.join(list_published_maps())}",
        section=PageSection("compare", "Published results"),
    ),
)  # fmt: skip
