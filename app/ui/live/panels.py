"""The Live page: status and messages that a timer updates, and charts that are redrawn only for new points.

The fragment with the timer contains no chart. It reads the new rows. If there are any, a component without visible
output reruns the charts' fragment once. If there are none, no chart is sent to the browser.

The gate is the weight β of the episodic incentive, an addition to the reward. Δ_mem is the consistency error of the
memory and τ the temperature of the gate: β = exp(−Δ_mem² / 2τ²). β̄ and Δ̄_mem are means. A pin is a view that is saved
in the notebook.
"""

from dataclasses import dataclass, field, replace
from typing import Any, Final

import streamlit as st
from streamlit.components.v2 import component

from app.analysis.format import escape_markdown
from app.analysis.settings import is_gate_off
from app.analysis.x_axes import ENV_STEPS, XAxisName, XValues, read_x_values
from app.figures.assets import read_asset
from app.figures.curve_style import smooth_chart
from app.figures.kinds.chart import Chart, Mark
from app.figures.named.live import (
    MAX_SMOOTHING,
    GateDynamicsOptions,
    MetricOptions,
    RunChartOptions,
    RunData,
    read_returns,
)
from app.figures.reference_runs import MAX_REFERENCE_RUNS, add_reference_runs, name_reference_run
from app.figures.registry import draw_chart, find_figure, list_live_metrics, list_metric_charts, list_sections
from app.figures.run_charts import ACTIVITY_PANEL, BETA_PANEL, CLOSING_PANEL, DEFAULT_METRICS, POSITIVE_PANEL
from app.figures.theme import ENDED_STATUSES
from app.ui import data, messages, run_data
from app.ui.live import controls
from app.ui.page_state import WINDOW, Choices, Number
from app.ui.run_data import LiveCurves
from app.ui.widgets import canvas, files, pin, run_header
from app.ui.widgets.option_widget import OptionWidget
from emtc_core.errors import ConfigError
from storage.queries.run_search import RunFilter, run_names
from storage.queries.runs import find_run_names, run_configs
from storage.runs.rows import RunRow, find_run

CHARTS = "live_charts"
"""Key of the fragment with the charts."""
_OVERLAID_RUNS = Choices("ref", "live")
"""Ids of the overlaid runs."""
_X_AXIS = OptionWidget(RunChartOptions, "x_axis", "live")
_SMOOTHING = RunChartOptions.get_option("smoothing")
WEIGHT = Number(_SMOOTHING.parameter, "live", default=_SMOOTHING.default, low=0, high=MAX_SMOOTHING)
"""Weight of the moving average."""
METRICS = OptionWidget(MetricOptions, "metrics", "live", kind="multiselect", separator="")
FIRST_PANELS: Final = (ACTIVITY_PANEL, BETA_PANEL, CLOSING_PANEL, POSITIVE_PANEL)
"""The panels that follow the win rate. With it, the first three are visible without scrolling."""
CHART_HEIGHT = 260
"""Height of a chart with one panel [pixels]. Two rows of charts fit below the header on a screen of 1440×900."""
PANEL_HEIGHT = 170
"""Height of a panel in a chart of several metrics [pixels]."""
UPDATE_S = 2.0
"""Interval of the updates of the status [s]."""
_LOG_UPDATE_S = 5.0
_LINK: Final = "live"
"""Key of the charts, which share their x axis, cursor and smoothing."""
# Keys of the session state: whether the charts are frozen, the version of the data in the drawn charts, and the number
# of points that have been read since.
_IS_FROZEN: Final = "live_paused"
_DRAWN_VERSION: Final = "live_drawn"
_N_NEW_POINTS: Final = "live_waiting"
# The component without visible output. It requests a rerun when the data have another version than the drawn charts.
_pulse = component("emtc_lab_pulse", js=read_asset("pulse.js"))


@dataclass(frozen=True)
class _Cell:
    """A chart of the page, and the values of the options with which its figure draws it."""

    title: str
    chart: Chart
    values: dict[str, Any] = field(default_factory=dict[str, Any])
    """Values of the options of the figure, by name."""

    @property
    def key(self) -> str:
        """Key of the chart among the widgets of the page."""
        return f"live-{self.chart.name}-{self.title}"


def show(run: RunRow) -> None:
    """Draw the whole body of the page."""
    has_ended = run.live_status in ENDED_STATUSES
    curves = _get_curves(run.id)
    if not st.session_state.get(_IS_FROZEN):
        curves.refresh()
    curves.record_progress(run)
    # Before the status is drawn. Otherwise the status finds an older version and requests a second drawing.
    _mark_as_drawn(curves)
    st.fragment(_draw_status, run_every=None if has_ended else UPDATE_S)(run.id)
    st.fragment(_draw_charts, key=CHARTS)(run)
    st.fragment(_draw_log, run_every=None if has_ended else _LOG_UPDATE_S)(run.id)


def _get_curves(run_id: str) -> LiveCurves:
    return run_data.get_session_curves(run_id, list_live_metrics(), key="live_curves")


def _mark_as_drawn(curves: LiveCurves) -> None:
    st.session_state[_DRAWN_VERSION] = curves.version
    st.session_state[_N_NEW_POINTS] = 0


def _draw_status(run_id: str) -> None:
    """Draw the numbers and messages of the run, and the bar with the switches of the charts and the requests."""
    # All reads use one database snapshot. On a server, each read outside of it takes four round trips.
    with messages.guarded(), data.use_one_snapshot():
        run = find_run(data.database(), run_id)
        run_header.rerun_if_status_changed(run)
        curves = _get_curves(run_id)
        with st.container(gap="xsmall"):
            run_header.show_numbers(run, curves)
            _show_messages(run)
            with st.container(key="live_bar", horizontal=True, vertical_alignment="center", gap="xsmall"):
                _update_charts(curves)
                canvas.show_smoothing(
                    key="live_smoothing", link=_LINK, weight=WEIGHT.read(), highest=MAX_SMOOTHING, help=_SMOOTHING.help,
                    on_weight=WEIGHT.write,
                )  # fmt: skip
                controls.show_request_buttons(run)
                controls.show_events(run)
            controls.show_requests(run, limit=1)


def _show_messages(run: RunRow) -> None:
    """Draw problems of the run, why its gate acts or not, and why it has no incentive."""
    _show_problems(run)
    controls.show_warnings(run)
    controls.offer_kill(run)
    verdict = run_data.get_gate_verdict(run.id, run.live_status)  # whether the gate acts, with the reason as a sentence
    gate_sentence = ""
    if verdict.gate is not None and not is_gate_off(run.config):
        gate_sentence = verdict.gate.sentence
        st.caption(escape_markdown(gate_sentence))
    reason = verdict.no_incentive_reason
    if reason and reason not in gate_sentence:
        st.caption(f":material/flag: {escape_markdown(reason)}")


def _update_charts(curves: LiveCurves) -> None:
    """Draw the switch that freezes the charts, read new rows, and redraw the charts if there are any."""
    is_frozen = st.toggle("Freeze charts", key=_IS_FROZEN, help="The charts are not updated. The run continues.")
    n_new_points = st.session_state.get(_N_NEW_POINTS, 0) + curves.refresh()
    st.session_state[_N_NEW_POINTS] = n_new_points
    if is_frozen and n_new_points:
        st.badge(f"{n_new_points} new points", color="blue")
    elif is_frozen:
        st.badge("up to date", color="gray")
    drawn_version = str(st.session_state.get(_DRAWN_VERSION, ""))
    version = drawn_version if is_frozen else curves.version
    # The component requests a rerun of the charts if the versions differ. That rerun cancels the requested reruns of
    # other fragments, so it also contains the fragment that makes requested files.
    versions = {"version": version, "drawn": drawn_version}
    _pulse(key="live_pulse", data=versions, on_news_change=lambda: st.rerun([CHARTS, files.FRAGMENT]))


def _show_problems(run: RunRow) -> None:
    if run.live_status == "lost":
        st.warning(
            "The trainer sends no heartbeat: it has ended or hangs. The recorded data are kept. See the log below.",
            icon=":material/link_off:",
        )
    if run.error:
        st.error(escape_markdown(run.error), icon=":material/error:")
    if run.stall:
        st.warning(f"Recording waits: {escape_markdown(run.stall)}", icon=":material/hourglass:")


def _draw_charts(run: RunRow) -> None:
    """Draw the grid of charts: the panels of the figures, then groups of metrics, then the selected metrics."""
    curves = _get_curves(run.id)
    _mark_as_drawn(curves)
    if not curves.n_rows and not curves.has_trained:
        messages.empty(
            "No point has been recorded yet.",
            "The first one follows the first training round, usually within ten seconds. This page updates "
            "automatically.",
        )
        return
    with messages.guarded(), data.use_one_snapshot():
        x_axis, x_values = _read_x_axis(run)
        # The option of all figures that sets their x axis; none for env steps, the default.
        axis_option: dict[str, Any] = {"x_axis": x_axis} if x_values is not ENV_STEPS else {}
        run_rows = _get_run_data(run, curves, x_values)
        cells = [_overlay_runs(cell, run.id) for cell in _draw_cells(run_rows, axis_option)]
        charts = [cell.chart for cell in cells]
        shared_axis = canvas.share_axis(_LINK, charts, height=CHART_HEIGHT, smoothing=WEIGHT.read())
        with st.container(key="live_charts_grid", horizontal=True, gap="medium"):
            for index, cell in enumerate(cells):
                with st.container(gap=None):
                    _show_cell(cell, run, shared_axis, has_run_choice=index == 0)
            # A chart of several metrics has a panel for each, so it is higher than the others.
            axis_without_height = replace(shared_axis, height=None)
            for cell in _draw_metric_cells(run_rows, axis_option):
                with st.container(gap=None):
                    _show_cell(_overlay_runs(cell, run.id), run, axis_without_height, is_titled=True)
            if len(curves.metrics):
                with st.container(gap="xsmall"):
                    _show_selected_metrics(run_rows, curves, axis_without_height, axis_option)


def _get_run_data(run: RunRow, curves: LiveCurves, x: XValues) -> RunData:
    """Return the rows of the run that this session has read so far."""
    database = data.database()
    return RunData(
        run,
        curves.gate_stats,
        curves.evaluations,
        curves.metrics,
        lambda: read_returns(database, run),
        marks=tuple(Mark(step, "resumed") for step in curves.list_resume_steps()),
        x=x,
    )


def _read_x_axis(run: RunRow) -> tuple[XAxisName, XValues]:
    """Read the selected x axis. If the run has no values on it, state this and return env steps."""
    name = RunChartOptions(x_axis=_X_AXIS.select()).x_axis
    x = read_x_values(data.database(), [run], name)
    if x.curves is None or run.id in x.curves:
        return name, x
    st.caption(escape_markdown(f"The x axis is env steps: this run has {x.axis.missing_reason}."))
    return "env_steps", ENV_STEPS


def _draw_cells(run_rows: RunData, axis_option: dict[str, Any]) -> list[_Cell]:
    """Draw each panel of the figures of this page that the run has data for. β̄ is drawn as 1 − β̄, too."""
    kinds = [kind for section in list_sections("live").values() for kind in section]
    cells: dict[str, _Cell] = {}
    for kind in kinds:
        all_values: list[dict[str, Any]] = [{}]
        if issubclass(kind.options, GateDynamicsOptions):
            all_values.append({"closing": True})  # 1 − β̄
        for values in all_values:
            try:
                chart = draw_chart(kind.name, run_rows, kind.options.read(values))
            except ConfigError:  # the run has no gate
                continue
            for panel in chart.panels:
                cell_values = {**values, "panel": panel.title, **axis_option}
                cell = _Cell(panel.title, chart.keep_panel(panel.title), cell_values)
                cells.setdefault(cell.key, cell)  # with and without 1 − β̄, the figure contains Δ̄_mem and τ
    win_rate, *others = cells.values()
    return [win_rate, *sorted(others, key=_get_position)]


def _get_position(cell: _Cell) -> int:
    """Return the position of a chart after the win rate. Charts that are not in `FIRST_PANELS` are last."""
    return FIRST_PANELS.index(cell.title) if cell.title in FIRST_PANELS else len(FIRST_PANELS)


def _draw_metric_cells(run_rows: RunData, axis_option: dict[str, Any]) -> list[_Cell]:
    """Draw the charts of several metrics that the run has data for."""
    cells: list[_Cell] = []
    for title, names in list_metric_charts().items():
        chart = draw_chart("metrics", run_rows, MetricOptions(metrics=names))
        if not chart.is_empty:
            chart = replace(chart, title=f"{title} of {run_rows.run.name}")
            cells.append(_Cell(title, chart, {"metrics": names, **axis_option}))
    return cells


def _show_selected_metrics(
    run_rows: RunData, curves: LiveCurves, shared_axis: canvas.SharedAxis, axis_option: dict[str, Any]
) -> None:
    """Draw the choice of metrics, and the chart of the selected ones."""
    available = curves.list_metrics()
    names = METRICS.draw(available, default=[name for name in DEFAULT_METRICS if name in available])
    curves.add_metrics(names)
    if names:
        run = run_rows.run
        values = {"metrics": tuple(names)}
        chart = draw_chart("metrics", replace(run_rows, metrics=curves.metrics), MetricOptions.read(values))
        cell = _Cell("Selected metrics", chart, values | axis_option)
        _show_cell(_overlay_runs(cell, run.id), run, shared_axis, is_titled=True)


def _list_overlaid_runs(run_id: str) -> list[str]:
    """List the runs that are overlaid on a run. Deleted runs and the run itself are left out."""
    selected = _OVERLAID_RUNS.read()
    if not selected:
        return []
    existing = data.cached(run_configs, ttl=2)(selected)
    overlaid = [other_id for other_id in selected if other_id in existing and other_id != run_id]
    return overlaid[:MAX_REFERENCE_RUNS]


@st.cache_resource(ttl=5, max_entries=data.MAX_ENTRIES, show_spinner=False)
def _draw_overlaid_run(
    url: str, run_id: str, figure: str, values: tuple[tuple[str, Any], ...]
) -> tuple[str, Chart] | None:
    """Draw a figure of an overlaid run; None if the run has no such figure. The figure is at most five seconds old.

    Args:
        url: URL of the database. It is only a part of the key in the cache.
        run_id: The overlaid run.
        figure: Name of the figure.
        values: Names and values of the options of the figure.

    Returns:
        The run's name in the legend, and the chart.
    """
    run = find_run(data.database(), run_id)
    kind = find_figure(figure)
    try:
        chart = kind.make(data.database(), [run], kind.options.read(dict(values)))
    except ConfigError:
        return None
    return (name_reference_run(run), chart) if isinstance(chart, Chart) else None


def _overlay_runs(cell: _Cell, run_id: str) -> _Cell:
    """Add the lines of the overlaid runs to a chart."""
    values = tuple(cell.values.items())
    charts: dict[str, Chart] = {}
    for other_id in _list_overlaid_runs(run_id):
        overlaid = _draw_overlaid_run(data.database_url(), other_id, cell.chart.name, values)
        if overlaid is not None:
            name, chart = overlaid
            charts[name] = chart
    return replace(cell, chart=add_reference_runs(cell.chart, charts))


def _choose_overlaid_runs_and_axis(run: RunRow) -> None:
    help_text = "Adds the main lines of other runs to all charts, dotted. Sets the x axis of all charts"
    with st.popover("Overlay runs, x axis", type="tertiary", icon=":material/stacked_line_chart:", help=help_text):
        listed_names, _ = data.cached(run_names, ttl=2)(RunFilter())
        selected_names = data.cached(find_run_names, ttl=5)(_list_overlaid_runs(run.id))
        names = listed_names | selected_names
        names.pop(run.id, None)
        st.multiselect(
            "Runs", **_OVERLAID_RUNS.bind(list(names), lambda run_id: f"{names.get(run_id, '')} · {run_id}"),
            max_selections=MAX_REFERENCE_RUNS, placeholder="none",
        )  # fmt: skip
        _X_AXIS.draw(on_change=lambda: WINDOW.write(None))


def _show_cell(
    cell: _Cell, run: RunRow, shared_axis: canvas.SharedAxis, *, has_run_choice: bool = False, is_titled: bool = False
) -> None:
    """Draw the title of a chart with its explanation and its buttons, and the chart.

    Args:
        cell: The chart.
        run: The run.
        shared_axis: Layout, window, cursor and smoothing that the chart shares with the other charts.
        has_run_choice: Whether to draw the choice of runs that are overlaid on all charts.
        is_titled: Whether each panel has its title on the canvas.
    """
    chart = cell.chart
    window = WINDOW.read()
    weight = WEIGHT.read()
    pinned_values = dict(cell.values)
    if weight:
        pinned_values["smoothing"] = weight
    overlaid = _list_overlaid_runs(run.id)
    if overlaid:
        pinned_values["beside"] = overlaid  # name of this option in figures
    heading = cell.title
    if heading[:1].isascii():  # β has no capital letter
        heading = heading[:1].upper() + heading[1:]
    with st.container(key=f"{cell.key}-bar", horizontal=True, vertical_alignment="center", gap="xsmall"):
        st.markdown(f"#### {escape_markdown(heading)}", help=escape_markdown(chart.caption), width="stretch")
        if has_run_choice:
            _choose_overlaid_runs_and_axis(run)
        pin.show_with_export(
            lambda: smooth_chart(chart, weight).keep_window(window), key=cell.key, stem=run.id, page="live", run=run,
            facts=pinned_values,
        )  # fmt: skip
    canvas.show(
        _shorten_texts(chart), key=cell.key, window=window, panel_height=PANEL_HEIGHT, titles=is_titled,
        shared_axis=shared_axis,
        on_window=WINDOW.on_window,
    )  # fmt: skip


def _shorten_texts(chart: Chart) -> Chart:
    """Leave out the subtitle, and name each line by its label. The caption explains both."""
    panels = []
    for panel in chart.panels:
        lines = [replace(line, name=line.label or line.name) for line in panel.lines]
        panels.append(replace(panel, lines=tuple(lines)))
    return replace(chart, panels=tuple(panels), subtitle="")


def _draw_log(run_id: str) -> None:
    with st.expander("Trainer log", icon=":material/terminal:"):
        text = run_data.read_log_tail(run_id)
        if text:
            st.code(text, language=None, height=280)
        else:
            st.caption("The trainer has not written a log yet.")
