"""Figures and tables of the studies in the paper: loss weights, gate temperature, merge radius, augmentation.

A study varies one or two settings: gate temperature τ (of the weight β of the episodic incentive), merge radius δ of
the memory, type of embedder, loss weights λ or augmentation. μ̄_w is the time average of the win rate. The settings of
a run are read from its configuration, not from its name. Runs that differ in other settings are rejected. A cell
without a usable run is empty, and a line without a usable run is not drawn.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from app.analysis.aggregates import Aggregation, explain_small_samples, join_summaries, select_finite
from app.analysis.curves import DAGGER, ComparedRun, Curves, RunTables, describe_excluded, format_range, read_curves
from app.analysis.finals import (
    caption_final,
    compute_final_rates,
    compute_mu_w_at,
    get_final_title,
    make_final_scale,
    make_mu_w_scale_at_fraction,
    name_final,
)
from app.analysis.format import format_percent, format_seed_count
from app.analysis.identical_runs import describe_identical_runs
from app.analysis.intervals import CENTER_NAMES, BinomialScale, Values, compute_center
from app.analysis.quantities import UNIT_RANGE, average_over_time
from app.analysis.results import select_results
from app.analysis.settings import EMBEDDER_NAMES, format_value, name_run_algo, name_task
from app.analysis.tables import Cell, Column, Table, make_table
from app.analysis.varied_settings import (
    AUGMENTATION,
    DELTA,
    EMBEDDER,
    LAMBDAS,
    TAUS,
    check_one_study,
    find_studies,
    group_by_settings,
)
from app.analysis.win_rates import find_best, format_aggregate
from app.figures.figure import FigureKind, TableKind
from app.figures.kinds.chart import Chart, Line, Panel
from app.figures.kinds.maps import Grid, Heatmap
from app.figures.named.curves import (
    X_LABEL,
    clip_fractions,
    draw_line,
    make_subtitle,
    read_finals,
    read_run_tables,
)
from app.figures.options import (
    CenterOptions,
    RatedBudgetOptions,
    ResultOptions,
    SeedOptions,
    SeedRateOptions,
    SeedResultOptions,
)
from app.figures.theme import Style, make_styles
from emtc_core.config.resolve import Value, flatten_tree
from emtc_core.errors import ConfigError

ComputeNumbers = Callable[[Curves], Values]
"""Computes one number of each run, for example its final win rate."""
MakeScale = Callable[[Curves], BinomialScale]
"""Makes the scale of these numbers, from which their intervals are computed."""
TRAINING_FRACTIONS = (1 / 3, 2 / 3, 1.0)
"""Fractions of the training after which the table of embedders states μ̄_w."""


class HeatmapOptions(ResultOptions, CenterOptions):
    """Options of a heat map of final win rates."""


class EmbedderOptions(SeedOptions, RatedBudgetOptions):
    """Options of the table of the embedders."""


def _draw_lambda_heatmap(tables: RunTables, options: HeatmapOptions) -> Heatmap:
    labels = ("λ_rcon", "λ_cl")
    return _draw_heatmap(tables, options, "lambda-heatmap", "Loss weights of the embedder", LAMBDAS, labels)


def _draw_augmentation_heatmap(tables: RunTables, options: HeatmapOptions) -> Heatmap:
    labels = ("p_mask [fraction]", "σ [normalised state]")
    return _draw_heatmap(tables, options, "augmentation", "Augmentation of the embedder", AUGMENTATION, labels)


def _draw_tau_study(tables: RunTables, options: SeedRateOptions) -> Chart:
    """Draw the win rate for each temperature schedule, and the schedules in the last panel."""
    all_curves = read_curves(tables, rate=options.rate)
    curves = select_results(all_curves, include_unfinished=options.include_unfinished)
    aggregation = options.aggregation or Aggregation()
    quantity = curves.measure
    check_one_study("tau-study", curves, TAUS)
    groups = group_by_settings(curves, *TAUS)
    first_runs = {_name_schedule(taus): group.runs[0] for taus, group in groups.items()}
    styles = make_styles({name: run.variant.style_key for name, run in first_runs.items()})
    panels = []
    for task in curves.tasks:
        lines = []
        for taus, group in group_by_settings(curves.on_task(task), *TAUS).items():
            name = _name_schedule(taus)
            line_name = f"{name} (n = {group.n})"
            lines.append(draw_line(line_name, group, aggregation, styles[name], label=name))
        panels.append(Panel(f"{quantity.at(task).title}, {task}", "fraction", tuple(lines), range=UNIT_RANGE))
    schedules = [_draw_schedule(taus, group.runs[0], styles[_name_schedule(taus)]) for taus, group in groups.items()]
    panels.append(Panel("τ", "return", tuple(schedules), from_zero=True))
    definition = f"{quantity.title} ({quantity.meaning})"
    caption = (
        f"{definition[:1].upper()}{definition[1:]}, {_describe_aggregation(aggregation)}. The panel below shows the "
        "gate's temperature τ for each line."
    )
    if quantity.note:
        caption += f" {quantity.note}"
    return _make_chart("tau-study", "Gate temperature", X_LABEL, panels, caption, curves, aggregation)


def _draw_mu_w_by_delta(tables: RunTables, options: SeedResultOptions) -> Chart:
    """Draw μ̄_w and the final win rate of each embedder over log₁₀ of the merge radius δ."""
    curves = read_finals(tables, options, options.rate)
    aggregation = options.aggregation or Aggregation()
    final_rule = options.final
    quantity = curves.measure
    check_one_study("mu-w-by-delta", curves, (DELTA, EMBEDDER))
    if not curves.runs:
        raise ConfigError("mu-w-by-delta needs a finished run", hint="Wait until one finishes, or select other runs.")
    panels = []
    for task in curves.tasks:
        task_curves = curves.on_task(task)
        task_quantity = quantity.at(task)
        mu_w_lines = _draw_over_delta(
            task_curves,
            partial(compute_mu_w_at, fraction=1.0),
            partial(make_mu_w_scale_at_fraction, quantity=task_quantity),
            aggregation,
        )
        final_lines = _draw_over_delta(
            task_curves,
            partial(compute_final_rates, rule=final_rule),
            partial(make_final_scale, rule=final_rule, quantity=task_quantity),
            aggregation,
        )
        mu_w_title = average_over_time(task_quantity).title
        final_title = get_final_title(final_rule, task_quantity)
        panels.append(Panel(f"{mu_w_title}, {task}", "fraction", mu_w_lines, from_zero=True))
        panels.append(Panel(f"{final_title}, {task}", "fraction", final_lines, from_zero=True))
    gate = "on" if curves.runs[0].settings.get("gate.enabled") else "off"
    explanation = (
        f"μ̄_w is the time average of the {quantity.title} over the whole run (area under its curve, trapezoid rule); "
        f"each seed first, then {_describe_aggregation(aggregation)}. Gate {gate}. The axis shows the logarithm of δ."
    )
    caption = caption_final(curves, final_rule, explanation)
    return _make_chart("mu-w-by-delta", "Merge radius", "log₁₀ δ", panels, caption, curves, aggregation)


def _draw_heatmap(
    tables: RunTables,
    options: HeatmapOptions,
    name: str,
    title: str,
    keys: tuple[str, str],
    labels: tuple[str, str],
) -> Heatmap:
    """Draw the final win rate for each combination of two settings, one grid for each task.

    Args:
        tables: The runs.
        options: Options of the figure.
        name: Name of the figure.
        title: Title of the figure.
        keys: Names of the two settings: first that of the y axis, then that of the x axis.
        labels: Labels of the two axes, in the same order.
    """
    curves = read_finals(tables, options, options.rate)
    check_one_study(name, curves, keys)
    settings = [flatten_tree(row.config) for row in tables.rows.values()]
    y_key, x_key = keys
    ys = _list_numbers(settings, y_key)
    xs = _list_numbers(settings, x_key)
    if not (ys and xs):  # imported runs do not have these settings
        raise ConfigError(f"{name} needs runs with the settings {' and '.join(keys)}")
    aggregation = options.aggregation or Aggregation()
    final_rule = options.final
    grids = []
    for task in dict.fromkeys(map(name_task, settings)):
        values = np.full((len(ys), len(xs)), np.nan)
        counts = np.zeros((len(ys), len(xs)), np.int64)
        for (y, x), group in group_by_settings(curves.on_task(task), *keys).items():
            final_rates = select_finite(compute_final_rates(group, final_rule))
            if len(final_rates) and y in ys and x in xs:
                cell = (ys.index(y), xs.index(x))
                values[cell] = compute_center(final_rates, aggregation.center)
                counts[cell] = len(final_rates)
        grids.append(Grid(task, values, counts))
    explanation = (
        f"{CENTER_NAMES[aggregation.center].capitalize()} over the seeds of each combination. ★ marks the best value "
        "of a map among the cells with at least two seeds. Cells without a usable run are empty. "
        f"{curves.n} of {len(tables.rows)} runs are used."
    )
    notes = (explain_small_samples(aggregation, curves.seed_counts), describe_identical_runs(curves))
    explanation = " ".join(filter(None, (explanation, *notes))) + describe_excluded(curves.excluded)
    quantity = curves.measure
    caption = caption_final(curves, final_rule, explanation)
    x_texts = tuple(map(format_value, xs))
    y_texts = tuple(map(format_value, ys))
    statistic = f"{name_final(final_rule, quantity=quantity)}, {CENTER_NAMES[aggregation.center]} over seeds"
    value_label = f"{get_final_title(final_rule, quantity)} [fraction]"
    y_label, x_label = labels
    return Heatmap(
        name, title, x_label, y_label, x_texts, y_texts, tuple(grids), value_label, caption, statistic=statistic
    )


def _list_numbers(settings: Sequence[Mapping[str, Value]], key: str) -> list[int | float]:
    """List the different numbers that a setting has in these runs, ascending."""
    return sorted({value for run in settings if isinstance(value := run.get(key), int | float)})


def _draw_over_delta(
    curves: Curves, compute_numbers: ComputeNumbers, make_scale: MakeScale, aggregation: Aggregation
) -> tuple[Line, ...]:
    """Draw a number of the runs over log₁₀ δ: one line for each embedder.

    A line has a band only if each of its points has at least two seeds.
    """
    styles = _style_embedders(curves)
    lines = []
    for embedder, name in EMBEDDER_NAMES.items():
        embedder_curves = curves.keep(run for run in curves.runs if run.settings.get(EMBEDDER) == embedder)
        x, summaries, n_seeds = [], [], []
        for (delta,), group in group_by_settings(embedder_curves, DELTA).items():
            numbers = select_finite(compute_numbers(group))
            if isinstance(delta, int | float) and len(numbers):
                x.append(np.log10(float(delta)))
                summaries.append(aggregation.summarize(numbers[:, None], make_scale(group)))
                n_seeds.append(len(numbers))
        if not x:
            continue
        summary = join_summaries(summaries)
        style = styles[name]
        lines.append(
            Line(
                f"{name} (n = {format_range(n_seeds)})",
                style.color,
                np.array(x),
                summary.center,
                clip_fractions(summary.low),
                clip_fractions(summary.high),
                style.dash,
                markers=True,
                marker=style.marker or "circle",
                label=name,
                statistic=aggregation.describe(is_fraction=True),
                n=np.array(n_seeds),
            )
        )
    return tuple(lines)


def _style_embedders(curves: Curves) -> dict[str, Style]:
    """Return the style of each embedder: TCSE as the unchanged algorithm, the others as its variants."""
    algo = str(curves.runs[0].settings.get("algo")) if curves.runs else ""
    changes = {name: "" if key == "tcse" else f"{EMBEDDER} = {key}" for key, name in EMBEDDER_NAMES.items()}
    return make_styles({name: (algo, change) for name, change in changes.items()})


def _name_schedule(taus: tuple[Value, ...]) -> str:
    """Name a schedule of τ. `taus` are the values at the start and at the end, see `TAUS`."""
    start, end = map(format_value, taus)
    return f"τ = {start}" if start == end else f"τ from {start} to {end}"


def _draw_schedule(taus: tuple[Value, ...], run: ComparedRun, style: Style) -> Line:
    """Draw τ over the env steps of a run: linear decay, then constant."""
    tau_start, tau_end = (float(tau or 0) for tau in taus)
    decay_steps = run.settings.get("gate.tau_decay_steps")
    last_step = run.training_length
    decay_end = last_step / 2  # without the setting, τ decays over the first half of the training
    if isinstance(decay_steps, int | float):
        decay_end = min(float(decay_steps), last_step)
    x = np.array([0.0, decay_end, last_step])
    y = np.array([tau_start, tau_end, tau_end])
    return Line(_name_schedule(taus), style.color, x, y, dash=style.dash, marker=style.marker)


def _describe_aggregation(aggregation: Aggregation) -> str:
    band = aggregation.name_band(is_fraction=True)
    return f"{CENTER_NAMES[aggregation.center]} over seeds, band: {band} (n in the legend; none for a single seed)"


def _make_chart(
    name: str,
    title: str,
    x_label: str,
    panels: Sequence[Panel],
    caption: str,
    curves: Curves,
    aggregation: Aggregation,
) -> Chart:
    """Make a chart of a study. The caption starts with the algorithms and ends with the runs that are left out."""
    algos = dict.fromkeys(name_run_algo(run.settings) for run in curves.runs)
    lines = dict.fromkeys(line.name for panel in panels for line in panel.lines)
    titles = ", ".join(panel.title for panel in panels)
    description = f"{title} in {len(panels)} panels ({titles}): {', '.join(lines)}."
    notes = [explain_small_samples(aggregation, curves.seed_counts), describe_identical_runs(curves)]
    caption = " ".join(filter(None, (f"{', '.join(algos)}. {caption}", *notes)))
    caption += describe_excluded(curves.excluded)
    subtitle = make_subtitle(aggregation, is_fraction=True)
    return Chart(name, title, x_label, tuple(panels), caption, description, subtitle=subtitle)


def _tabulate_embedders(tables: RunTables, options: EmbedderOptions) -> Table:
    """Make the table of μ̄_w over seeds of runs without gate.

    There is one row for each task and merge radius, and one column for each training fraction and embedder.
    """
    aggregation = options.aggregation or Aggregation()
    finals = read_finals(tables, options, options.rate)
    ungated = finals.keep(run for run in finals.runs if not run.settings.get("gate.enabled"))
    curves = find_studies(ungated, (EMBEDDER, DELTA), lambda run: EMBEDDER in run.settings)
    columns_by_fraction = {
        fraction: [Column(name, group=format_percent(fraction)) for name in EMBEDDER_NAMES.values()]
        for fraction in TRAINING_FRACTIONS
    }
    rows: list[list[Cell | str]] = []
    best: list[tuple[int, str]] = []  # row and column of the best cells
    for task in curves.tasks:
        quantity = curves.measure.at(task)
        for (delta,), group in group_by_settings(curves.on_task(task), DELTA).items():
            row: list[Cell | str] = [task, format_value(delta)]
            for fraction, columns in columns_by_fraction.items():
                scale = make_mu_w_scale_at_fraction(group, fraction, quantity)
                cells = [
                    _format_number(
                        group.keep(run for run in group.runs if run.settings.get(EMBEDDER) == embedder),
                        partial(compute_mu_w_at, fraction=fraction),
                        aggregation,
                        scale,
                        name=average_over_time(quantity).title,
                    )
                    for embedder in EMBEDDER_NAMES
                ]
                best += [(len(rows), columns[i].title) for i in find_best(cells)]
                row += [cell or "" for cell in cells]
            rows.append(row)
    title = average_over_time(finals.measure).title
    statistic = aggregation.describe(is_fraction=True)
    definition = f"{title} after a third, two thirds and all of the training, {statistic}, gate off."
    small_samples_note = explain_small_samples(aggregation, finals.seed_counts)
    notes = (definition, small_samples_note, finals.measure.note, finals.budget_note)
    caption = " ".join(filter(None, notes))
    columns = ["task", "δ", *(column for group in columns_by_fraction.values() for column in group)]
    return _make_table(rows, columns, caption, best, finals)


def _tabulate_augmentation(tables: RunTables, options: SeedResultOptions) -> Table:
    """Make the table of final win rates: one row for each combination of masking and noise, one column per task."""
    aggregation = options.aggregation or Aggregation()
    finals = read_finals(tables, options, options.rate)
    curves = find_studies(finals, AUGMENTATION, lambda run: run.settings.get(EMBEDDER) == "tcse")
    tasks = curves.tasks
    final_rule = options.final
    rows: list[list[Cell | str]] = []
    cells_by_task: dict[str, list[Cell | None]] = {task: [] for task in tasks}
    for (p_mask, sigma), group in group_by_settings(curves, *AUGMENTATION).items():
        row: list[Cell | str] = [format_value(p_mask), format_value(sigma)]
        for task in tasks:
            task_curves = group.on_task(task)
            quantity = curves.measure.at(task)
            scale = make_final_scale(task_curves, final_rule, quantity=quantity)
            compute_finals = partial(compute_final_rates, rule=final_rule)
            name = name_final(final_rule, quantity=quantity)
            cell = _format_number(task_curves, compute_finals, aggregation, scale, name=name)
            cells_by_task[task].append(cell)
            row.append(cell or "")
        rows.append(row)
    best = [(i, task) for task in tasks for i in find_best(cells_by_task[task])]
    explanation = f"A cell is the {aggregation.describe(is_fraction=True)}; combinations without a run are not listed."
    small_samples_note = explain_small_samples(aggregation, finals.seed_counts)
    caption = caption_final(curves, final_rule, explanation, small_samples_note)
    return _make_table(rows, ["p_mask", "σ", *tasks], caption, best, finals)


def _format_number(
    curves: Curves, compute_numbers: ComputeNumbers, aggregation: Aggregation, scale: BinomialScale, *, name: str
) -> Cell | None:
    """Write one number over seeds: "0.920 ± 0.010 (5 seeds)"; None if no seed has this number."""
    numbers = select_finite(compute_numbers(curves))
    if not len(numbers):
        return None
    cell = format_aggregate(numbers, aggregation, digits=3, scale=scale, name=name)
    return cell.append(
        f"{curves.mark} ({format_seed_count(len(numbers))})", includes_unfinished=bool(curves.unfinished)
    )


def _make_table(
    rows: Sequence[Sequence[Cell | str]],
    columns: Sequence[Column | str],
    caption: str,
    best: Sequence[tuple[int, str]],
    curves: Curves,
) -> Table:
    """Make a table of a study. `best` are the row and the column of the cells that are marked as the best.

    If runs have different lengths, no cell is marked.
    """
    if curves.unfinished:
        caption += f" {DAGGER} includes a run that has not finished. Such a number is never bold."
    caption = " ".join(filter(None, (caption, describe_identical_runs(curves))))
    if curves.mixed_length_tasks:
        best = []
    return make_table(columns, rows, caption=caption, excluded=curves.excluded, best=best)


FIGURES = (
    FigureKind(
        "lambda-heatmap", _draw_lambda_heatmap, read_run_tables, HeatmapOptions,
        question="Which weights of the two losses are best?",
    ),
    FigureKind(
        "tau-study", _draw_tau_study, read_run_tables, SeedRateOptions, question="Which gate temperature is best?"
    ),
    FigureKind(
        "mu-w-by-delta", _draw_mu_w_by_delta, read_run_tables, SeedResultOptions,
        question="How good are the embedders at each merge radius?",
    ),
    FigureKind(
        "augmentation", _draw_augmentation_heatmap, read_run_tables, HeatmapOptions,
        question="Which masking and noise are best?",
    ),
)  # fmt: skip
TABLES = (
    TableKind(
        "mu-w-embedders", _tabulate_embedders, read_run_tables, EmbedderOptions,
        required_runs="finished runs with the gate off that differ only in embed.type or memory.delta",
    ),
    TableKind(
        "augmentation", _tabulate_augmentation, read_run_tables, SeedResultOptions,
        required_runs="finished runs with embed.type = tcse that differ only in embed.p_mask or embed.sigma",
    ),
)  # fmt: skip
