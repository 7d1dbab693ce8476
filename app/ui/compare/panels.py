"""The Compare page below the selection of runs: curves, the tables and figures of the registry, settings, and runs.

Each table and figure in `app.figures.named` names its page and its section. The sections of this page are tabs, so a
new table or figure needs no change here. The list of runs (`run_groups`) is the legend of all panels. mu_w (μ̄_w) is the
time average of a win rate. The win rate is that of greedy, robust or training episodes; auto selects one per task.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import pandas as pd
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from app.analysis.aggregates import MIN_IQM_SEEDS, compute_mu_w
from app.analysis.curves import Curves, RunPoints, RunTables, read_curves
from app.analysis.finals import (
    FINAL_MEANINGS,
    FINAL_NAMES,
    FINAL_RULES,
    HIGH_WIN_RATE,
    LOW_WIN_RATE,
    compute_final_rate,
    count_falls,
)
from app.analysis.format import escape_markdown
from app.analysis.intervals import CENTERS
from app.analysis.provenance import describe_runs
from app.analysis.published import PUBLISHED_ENVIRONMENTS, PUBLISHED_WARNING
from app.analysis.quantities import (
    AUTO,
    EVALUATION_QUANTITIES,
    MU_W,
    SELECTED_MU_W,
    SELECTED_RATE,
    SUCCESS_RATE,
    WIN_RATE,
    RateName,
    find_quantity,
    find_rate,
    get_success_threshold,
    uses_selected_rate,
)
from app.analysis.results import list_budgets, select_results
from app.analysis.variants import group_variants, list_differences, list_run_code_warnings
from app.figures.curve_style import AXES
from app.figures.figure import FigureKind, TableKind
from app.figures.named.comparisons import ReferenceOptions
from app.figures.named.curves import (
    LearningCurveOptions,
    MuWOptions,
    list_mu_w_steps,
    read_finals,
)
from app.figures.options import BudgetOptions, Options
from app.figures.registry import draw_chart, find_figure, list_sections, write_command
from app.ui import data, messages, view
from app.ui.compare import run_choice, run_groups
from app.ui.compared import is_success_defined_by_return, list_recorded_metrics, read_compared_tables
from app.ui.page_state import WINDOW, Choice
from app.ui.widgets import canvas, pin, reference_choice, result_table
from app.ui.widgets.option_widget import OptionWidget
from emtc_core.errors import ConfigError

_PAGE: Final = "compare"
_PUBLISHED: Final = "Published results"
_TABS: Final = ("Win rates", "Falls", MU_W.title, "Statistics", "Settings that differ", _PUBLISHED, "Runs")
"""Tabs in their order. Other sections of the registry follow."""
_LAZY_TABS: Final = ("Statistics",)
"""Tabs whose content is computed only while they are open, because it needs thousands of resamples."""
_PANEL_HEIGHT: Final = 260
_FALL_COUNTS: Final = ("falls", "after")
"""Columns: number of low win rates after the first high one, and number of all evaluations after it."""
_TAB: Final = Choice("part", _PAGE)
_QUANTITY: Final = OptionWidget(LearningCurveOptions, "quantity", _PAGE)
# A pin (saved view) contains the kind of win rate also if it is the default, because later versions may change that.
_RATE: Final = OptionWidget(LearningCurveOptions, "rate", _PAGE, kind="buttons", pins_default=True)
_CENTER: Final = OptionWidget(LearningCurveOptions, "center", _PAGE, kind="buttons")
_BAND: Final = OptionWidget(LearningCurveOptions, "band", _PAGE)
_PER_SEED: Final = OptionWidget(LearningCurveOptions, "each", _PAGE, kind="toggle")
"""The option `per_seed`, whose alias is `each`."""
_INCLUDE_UNFINISHED: Final = OptionWidget(LearningCurveOptions, "include_unfinished", _PAGE, kind="toggle")
_SMOOTH: Final = OptionWidget(LearningCurveOptions, "smooth", _PAGE, kind="count")
_X_AXIS: Final = OptionWidget(LearningCurveOptions, "x_axis", _PAGE)
_LOG_AXES: Final = OptionWidget(LearningCurveOptions, "log", _PAGE, kind="pills")
_MU_W_STEPS: Final = OptionWidget(MuWOptions, "at", _PAGE, kind="text")
_RUN_COLUMNS: Final = (
    "variant", "map", "seed", "status", "episodes",
    *FINAL_NAMES.values(),
    MU_W.title, *_FALL_COUNTS, "last evaluation", "run", "id",
)  # fmt: skip
"""Columns of the tab *Runs*."""
_SUCCESS_NOTE: Final = (
    "The environment decides which episodes are won. If the return decides the success, select the quantity "
    f"*{SUCCESS_RATE}* above."
)


def show(run_ids: list[str], bar: DeltaGenerator) -> None:
    """Draw everything about these runs. The widgets of the curves are drawn in the row `bar`."""
    with bar:
        values = _choose_options(run_ids)
    options = LearningCurveOptions.select(values)
    tables = read_compared_tables(run_ids)
    # The tables use the win rate of the curves. If the curves show another quantity, they use the selected win rate.
    rate = find_rate(options.quantity, options.rate) or options.rate
    with st.container(key="compare_grid" if run_groups.IS_OPEN.read() else "compare_column"):
        st.fragment(_show_list_and_curves)(tables, options, rate)
        with st.container(key="compare_tables"):
            _show_tables(tables, values | {"rate": rate})


def _show_tables(tables: RunTables, values: dict[str, Any]) -> None:
    """Draw the tabs with tables and figures.

    Args:
        tables: The compared runs.
        values: The values of all options of the page, by name; `rate` is the win rate of the tables.
    """
    rate = values["rate"]
    run_choice.show_length_note(read_finals(tables, BudgetOptions.select(values), rate))
    sections = list_sections(_PAGE)
    titles = [*_TABS, *(title for title in sections if title not in _TABS)]
    if all(row.env not in PUBLISHED_ENVIRONMENTS for row in tables.rows.values()):
        titles.remove(_PUBLISHED)
    tabs = st.tabs(**_TAB.bind_tabs(titles))
    for title, tab in zip(titles, tabs, strict=True):
        if title in _LAZY_TABS and not tab.open:
            continue
        with tab, messages.guarded():
            if title == "Settings that differ":
                _show_differences(tables)
            elif title == "Runs":
                show_runs(tables, rate)
            else:
                _show_section(title, sections[title], tables, values)
    pin.show_more_figures(_PAGE, list(tables.rows.values()), rate=rate)


def _choose_options(run_ids: list[str]) -> dict[str, Any]:
    """Draw the widgets for quantity, win rate, aggregation over seeds, style of the curves, and the rows of the tables.

    Returns:
        The values of the options of the learning curves and of the tables, by name.
    """
    keys = [SELECTED_RATE, SELECTED_MU_W, *EVALUATION_QUANTITIES, *list_recorded_metrics(run_ids)]
    if SUCCESS_RATE in keys and is_success_defined_by_return(run_ids):
        keys = [SUCCESS_RATE, *(key for key in keys if key != SUCCESS_RATE)]
    values: dict[str, Any] = {}
    values["quantity"] = _QUANTITY.draw(keys, _name_quantity, width=210)
    values["rate"] = _RATE.draw(
        help=f"{_RATE.option.tooltip_text} No effect if the quantity names its episodes itself, for example the "
        "robust win rate. Published results are always of greedy episodes."
    )
    # an interquartile mean of fewer than five seeds is their mean or their median
    tables = read_compared_tables(run_ids)
    all_curves = select_results(read_curves(tables), include_unfinished=True)
    max_seeds = max(all_curves.seed_counts, default=0)
    centers = [name for name in CENTERS if name != "iqm" or max_seeds >= MIN_IQM_SEEDS]
    with st.popover("Lines, axes, tables", icon=":material/tune:", key="look"):
        values["center"] = _CENTER.draw(centers)
        values["band"] = _BAND.draw()
        values["each"] = _PER_SEED.draw()
        values["include_unfinished"] = _INCLUDE_UNFINISHED.draw()
        values["x_axis"] = _X_AXIS.draw(on_change=lambda: WINDOW.write(None))
        values["smooth"] = _SMOOTH.draw()
        values["log"] = _LOG_AXES.draw(AXES)
        rate = find_rate(values["quantity"], values["rate"]) or values["rate"]
        results = select_results(
            read_curves(tables, rate=rate), include_unfinished=values["include_unfinished"], for_final_numbers=True
        )
        values |= run_choice.choose_final(list_budgets(results))
    return values


def _name_quantity(key: str) -> str:
    """Write the title and unit of a quantity. The title of the selected win rate does not contain "greedy"."""
    key_of_title = {SELECTED_RATE: WIN_RATE.key, SELECTED_MU_W: MU_W.key}.get(key, key)
    quantity = find_quantity(key_of_title)
    prefix = "greedy " if key in (WIN_RATE.key, MU_W.key) else ""
    return f"{prefix}{quantity.title} [{quantity.unit}]"


def _show_list_and_curves(tables: RunTables, options: LearningCurveOptions, rate: RateName) -> None:
    """Draw the list of runs and the curves. A fragment, so that a press in the list does not compute the tables again.

    Args:
        tables: The compared runs.
        options: The options of the curves, without hidden lines.
        rate: The win rate whose final values the list shows.
    """
    run_groups.follow_press()
    options = options.model_copy(update={"hidden_names": tuple(sorted(run_groups.HIDDEN.read()))})
    all_curves = read_curves(tables, options.quantity, rate=options.rate, x_axis=options.x_axis)
    curves = select_results(all_curves, include_unfinished=options.include_unfinished)
    if run_groups.IS_OPEN.read():
        with st.container(key="compare_list", gap="xsmall"), messages.guarded():
            run_groups.show(tables, curves, options, rate)
    with st.container(key="compare_curves"), messages.guarded():
        _show_curves(tables, curves, options)


def _show_curves(tables: RunTables, curves: Curves, options: LearningCurveOptions) -> None:
    if not curves.runs:
        messages.empty(
            "These runs have no point of this quantity yet.",
            "Select another quantity or other runs. The first evaluation follows the first training round.",
        )
        return
    window = WINDOW.read()
    is_rate_used = uses_selected_rate(options.quantity)
    changes: dict[str, Any] = {"window": window}
    if not is_rate_used:  # the choice has no effect, so the command and the pin do not contain it
        changes["rate"] = AUTO
    options = options.model_copy(update=changes)
    try:
        chart = draw_chart("learning-curves", tables, options)
    except ConfigError as exc:  # no run has values on this x axis
        st.info(escape_markdown(str(exc)), icon=":material/info:")
        return
    rows = [tables.rows[run.id] for run in curves.runs]
    visible_curves = curves.hide(options.hidden_names)
    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="center"):
        st.subheader(chart.title, help="Drag over a panel to zoom in all panels. Double-click to zoom out.")
        with st.container(horizontal=True, width="content", gap="small"):
            chart_in_window = chart.keep_window(window)
            pin.show_export(
                chart_in_window, key="compare", stem=curves.measure.key.replace("/", "-"),
                sources=describe_runs(tables.rows[run.id] for run in visible_curves.runs),
                show_more=partial(_show_command, [row.id for row in rows], options),
            )  # fmt: skip
            pinned_values = {"quantity": options.quantity, **options.list_set_values()}
            if is_rate_used:
                pinned_values["rate"] = options.rate
            pin.show(chart_in_window, key="compare", page=_PAGE, run=rows, facts=pinned_values)
    shared_axis = canvas.SharedAxis("compare")
    panels = chart.split() if visible_curves.runs else []
    with st.container(key="compare_charts"):
        for panel_chart in panels:
            canvas.show(
                panel_chart, key=f"compare-{panel_chart.panels[0].title}", window=window,
                panel_height=_PANEL_HEIGHT, legend=False, shared_axis=shared_axis,
                on_window=WINDOW.on_window,
            )  # fmt: skip
    st.caption(escape_markdown(chart.caption))
    for warning in list_run_code_warnings({run.id: run.settings for run in visible_curves.runs}):
        st.warning(escape_markdown(warning), icon=":material/difference:")


def _show_command(run_ids: list[str], options: Options) -> None:
    """Show the command that draws the same figure."""
    st.caption("The same figure on the command line:")
    if any(map(view.is_bundle_run, run_ids)):
        st.markdown("A command reads one database. First import the runs of the bundle: `emtc open FILE --import`.")
        return
    command = write_command(find_figure("learning-curves"), run_ids, options, db=data.path_for_commands())
    st.code(command, language=None, wrap_lines=True)


def _show_section(
    title: str,
    kinds: Sequence[FigureKind[Any, Any] | TableKind[Any, Any]],
    tables: RunTables,
    values: Mapping[str, Any],
) -> None:
    """Draw the tables and figures of one tab.

    Args:
        title: Title of the tab.
        kinds: The tables and figures.
        tables: The compared runs.
        values: The values of all options of the page, by name.
    """
    if title == "Win rates" and any(get_success_threshold(row.config) is not None for row in tables.rows.values()):
        st.caption(_SUCCESS_NOTE)
    if title == _PUBLISHED:
        st.warning(PUBLISHED_WARNING, icon=":material/info:")
    values = dict(values)
    if any(issubclass(kind.options, ReferenceOptions) for kind in kinds):
        values |= reference_choice.choose_reference(read_finals(tables, BudgetOptions.select(values), values["rate"]))
    for kind in kinds:
        with messages.guarded():
            kind_values = values
            if issubclass(kind.options, MuWOptions):
                kind_values = values | _choose_mu_w_steps(tables, MuWOptions.select(values))
            options = kind.options.select(kind_values)
            if isinstance(kind, TableKind):
                table = kind.tabulate(tables, options)
                if len(table):
                    result_table.show(table, key=kind.name, stem=kind.name)
                else:
                    st.info(escape_markdown(f"This table needs {kind.required_runs}."), icon=":material/info:")
                    result_table.show_excluded(table)
            else:
                _show_figure(kind, tables, options)


def _show_figure(kind: FigureKind[Any, Any], tables: RunTables, options: Options) -> None:
    try:
        chart = kind.draw(tables, options)
    except ConfigError as exc:  # the figure cannot be drawn for these runs
        st.info(escape_markdown(str(exc)), icon=":material/info:")
        return
    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="bottom"):
        st.markdown(f"#### {escape_markdown(chart.title)}")
        pin.show_export(chart, key=kind.name, stem="compare", sources=describe_runs(tables.rows.values()))
    pin.show_figure(chart, key=kind.name, x_name=getattr(chart, "x_label", ""), panel_height=_PANEL_HEIGHT)


def _choose_mu_w_steps(tables: RunTables, options: MuWOptions) -> dict[str, Any]:
    """Draw the text field for the env steps of the table of mu_w; return its value by the name of the option."""
    steps_by_task = list_mu_w_steps(tables, options)
    distinct_steps = set(steps_by_task.values())
    default = "the steps of each map"
    if len(distinct_steps) == 1:
        [steps] = distinct_steps
        default = ", ".join(map(str, steps))
    text = _MU_W_STEPS.draw(placeholder=default)
    if not text:
        return {}
    option = _MU_W_STEPS.option
    try:
        MuWOptions.read({option.name: text})  # only to validate the text
    except ConfigError:
        st.error(f"{option.label} must be {option.rule}.")
        return {}
    return {option.name: text}


def _show_differences(tables: RunTables) -> None:
    settings = {run.id: run.settings for run in tables.runs}
    frame = list_differences(settings, group_variants(settings))
    if frame.empty:
        st.info("These runs have the same configuration, including the seed.")
        return
    st.caption("Settings and code that differ. –: the run has no such setting, or its algorithm does not read it.")
    st.dataframe(frame, hide_index=True, alt="Settings that differ between the compared variants.")


def show_runs(tables: RunTables, rate: RateName) -> None:
    """Draw one row for each run with its final and last win rate, mu_w and falls. Selected rows can be compared."""
    frame = list_runs(tables, rate)
    percentages = {
        FINAL_NAMES[rule]: st.column_config.NumberColumn(
            format=result_table.RATE, help=FINAL_MEANINGS[rule].capitalize()
        )
        for rule in FINAL_RULES
    }
    selection = st.dataframe(
        frame,
        key="compared_runs",
        hide_index=True,
        on_select="rerun",
        selection_mode="multi-row",
        column_config={
            **percentages,
            "episodes": st.column_config.TextColumn(
                help="Kind of episodes of the win rates in the next columns. Empty: the run has no such win rate"
            ),
            "falls": st.column_config.NumberColumn(
                format="localized",
                help=(
                    f"Evaluations with this win rate below {LOW_WIN_RATE:g} after the first one of at least "
                    f"{HIGH_WIN_RATE:g}. Empty: no such evaluation"
                ),
            ),
            "after": st.column_config.NumberColumn(format="localized", help="Number of evaluations after that one"),
            MU_W.title: st.column_config.NumberColumn(
                format="%.3g",
                help="Time average of this win rate up to the last evaluation. Home and SQL: of greedy episodes",
            ),
            "last evaluation": st.column_config.NumberColumn(format="localized", help="Env step"),
        },
        alt="One row for each compared run. Select rows to compare only these runs.",
    )
    rows = [row for row in selection["selection"]["rows"] if row < len(frame)]
    run_ids = [str(frame["id"].iloc[row]) for row in rows]
    st.button(
        f"Compare only the {len(run_ids)} selected" if run_ids else "Select rows to compare only these runs",
        disabled=not run_ids,
        key="compare_chosen",
        on_click=run_choice.select_only,
        args=(run_ids,),
    )


def list_runs(tables: RunTables, rate: RateName) -> pd.DataFrame:
    """List the runs by variant with their results."""
    win_rate_curves = read_curves(tables, rate=rate)
    greedy_curves = select_results(read_curves(tables, WIN_RATE.key), include_unfinished=True)
    rows = []
    for run in greedy_curves.runs:
        row = tables.rows[run.id]
        points = win_rate_curves.get_points(run.id)
        episode_kind = win_rate_curves.measure.at(run.task).episodes
        results = _list_results(points, budget=run.target_steps, episode_kind=episode_kind)
        last_evaluation = int(greedy_curves.get_points(run.id).env_step[-1])
        rows.append(
            {"variant": run.variant.name, "map": run.task, "seed": row.seed, "status": row.live_status}
            | results
            | {"last evaluation": last_evaluation, "run": row.name, "id": run.id}
        )
    return pd.DataFrame(rows, columns=pd.Index(_RUN_COLUMNS)).astype(dict.fromkeys(_FALL_COUNTS, "Int64"))


def _list_results(points: RunPoints, *, budget: int, episode_kind: str) -> dict[str, str | float | None]:
    """List the win rates and falls of a run by column; empty if it has no win rate of these episodes."""
    steps = points.env_step
    values = points.value
    if not len(values):
        return {}
    finals = {
        FINAL_NAMES[rule]: 100 * compute_final_rate(steps, values, budget=budget, rule=rule) for rule in FINAL_RULES
    }
    mu_w = float(compute_mu_w(steps, values)[-1])
    fall_counts = count_falls(values) or (None, None)
    falls = dict(zip(_FALL_COUNTS, fall_counts, strict=True))
    return {"episodes": episode_kind, **finals, MU_W.title: mu_w, **falls}
