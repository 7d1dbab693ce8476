"""The Live page: status and messages that a timer updates, and charts that are redrawn only for new points.

The fragment with the timer contains no chart. It reads the new rows. If there are any, a component without visible
output reruns the charts' fragment once. If there are none, no chart is sent to the browser.

The gate is the weight β of the episodic incentive, an addition to the reward. Δ_mem is the consistency error of the
memory and τ the temperature of the gate: β = exp(−Δ_mem² / 2τ²). β̄ and Δ̄_mem are means.
"""

from dataclasses import replace
from typing import Any, Final

import streamlit as st
from streamlit.components.v2 import component

from app.analysis.format import escape_markdown
from app.analysis.settings import is_gate_off
from app.analysis.x_axes import ENV_STEPS, XAxisName, XValues, read_x_values
from app.figures.assets import read_asset
from app.figures.kinds.chart import Mark
from app.figures.named.live import (
    MAX_SMOOTHING,
    GateDynamicsOptions,
    MetricOptions,
    RunChartOptions,
    RunData,
    read_returns,
)
from app.figures.registry import draw_chart, list_live_metrics, list_metric_charts, list_sections
from app.figures.run_charts import ACTIVITY_PANEL, BETA_PANEL, CLOSING_PANEL, POSITIVE_PANEL
from app.figures.theme import ENDED_STATUSES
from app.ui import data, messages, run_data
from app.ui.live import all_metrics, cells, controls, overlay_list
from app.ui.live.cells import LINK, SMOOTHING, WEIGHT, Cell
from app.ui.page_state import WINDOW, Choice
from app.ui.run_data import LiveCurves
from app.ui.widgets import canvas, files, pin, run_header
from app.ui.widgets.option_widget import OptionWidget
from emtc_core.errors import ConfigError
from storage.runs.rows import RunRow, find_run

CHARTS = "live_charts"
"""Key of the fragment with the charts."""
_PARTS: Final = {"training": "Training", "metrics": "All metrics"}
"""The tabs: value in the URL → title."""
_PART = Choice("part", "live")
_X_AXIS = OptionWidget(RunChartOptions, "x_axis", "live")
_BETA = OptionWidget(GateDynamicsOptions, "closing", "live", kind="toggle")
"""Whether the panel of β̄ shows 1 − β̄."""
FIRST_PANELS: Final = (ACTIVITY_PANEL, BETA_PANEL, CLOSING_PANEL, POSITIVE_PANEL)
"""The panels that follow the win rate. With it, the first three are visible without scrolling."""
CHART_HEIGHT = 260
"""Height of a chart with one panel [pixels]. Two rows of charts fit below the header on a screen of 1440×900."""
UPDATE_S = 2.0
"""Interval of the updates of the status [s]."""
_LOG_UPDATE_S = 5.0
# Key of the session state: the version of the data in the drawn charts.
_DRAWN_VERSION: Final = "live_drawn"
# The component without visible output. It requests a rerun when the data have another version than the drawn charts.
_pulse = component("emtc_lab_pulse", js=read_asset("pulse.js"))


def show(run: RunRow) -> None:
    """Draw the whole body of the page."""
    has_ended = run.live_status in ENDED_STATUSES
    curves = _get_curves(run.id)
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


def _draw_status(run_id: str) -> None:
    """Draw the numbers and messages of the run, and the buttons of its requests and events."""
    # All reads use one database snapshot. On a server, each read outside of it takes four round trips.
    with messages.guarded(), data.use_one_snapshot():
        run = find_run(data.database(), run_id)
        run_header.rerun_if_status_changed(run)
        curves = _get_curves(run_id)
        with st.container(gap="xsmall"):
            run_header.show_numbers(run, curves)
            _show_problems(run)
            controls.show_warnings(run)
            controls.offer_kill(run)
            with st.container(key="live_actions", horizontal=True, vertical_alignment="center", gap="xsmall"):
                _show_gate_sentences(run)
                controls.show_request_buttons(run)
                controls.show_events(run)
            controls.show_requests(run, limit=1)
            _request_new_charts(curves)


def _show_gate_sentences(run: RunRow) -> None:
    """Draw why the gate of the run acts or not, and why the run has no incentive."""
    verdict = run_data.get_gate_verdict(run.id, run.live_status)
    gate_sentence = ""
    if verdict.gate is not None and not is_gate_off(run.config):
        gate_sentence = verdict.gate.sentence
        st.caption(escape_markdown(gate_sentence))
    reason = verdict.no_incentive_reason
    if reason and reason not in gate_sentence:
        st.caption(f":material/flag: {escape_markdown(reason)}")


def _request_new_charts(curves: LiveCurves) -> None:
    """Read new rows. If there are any, the browser requests new charts."""
    curves.refresh()
    versions = {"version": curves.version, "drawn": str(st.session_state.get(_DRAWN_VERSION, ""))}
    # The rerun of the charts cancels the requested reruns of other fragments, so it also contains the fragment that
    # makes requested files.
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
    """Draw the bar of the charts, and the charts of the selected tab."""
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
        with st.container(key="live_bar", horizontal=True, vertical_alignment="center", gap="small"):
            part = _select_part()
            st.toggle(
                "Runs", help="Lists the other runs, and overlays them on the charts", **overlay_list.IS_OPEN.bind()
            )
            _X_AXIS.draw(on_change=lambda: WINDOW.write(None), label_visibility="collapsed", width=190)
            # A fragment, so that a change of the smoothing, which the browser draws, does not send the charts again.
            st.fragment(_show_smoothing)()
            words = all_metrics.choose_words() if part == "metrics" else []
        x_axis, x_values = _read_x_axis(run)
        run_rows = _get_run_data(run, curves, x_values)
        with st.container(key="live_columns", horizontal=True, gap="medium"):
            if overlay_list.IS_OPEN.read():
                with st.container(key="live_list", gap="xsmall"):
                    overlay_list.show(run)
            with st.container():
                if part == "metrics":
                    all_metrics.show(run_rows, x_axis if x_values is not ENV_STEPS else "env_steps", words=words)
                else:
                    # The option of all figures that sets their x axis; none for env steps, the default.
                    _draw_training(run_rows, {"x_axis": x_axis} if x_values is not ENV_STEPS else {})


def _select_part() -> str:
    """Draw the tabs; return the selected one. A URL with enlarged metrics and without a tab opens *All metrics*."""
    if all_metrics.ENLARGED.is_in_url and not _PART.is_in_url:
        _PART.write("metrics")
    part = st.segmented_control(
        "Charts", **_PART.bind(list(_PARTS), _PARTS.__getitem__), label_visibility="collapsed", required=True
    )
    return str(part)


def _show_smoothing() -> None:
    canvas.show_smoothing(
        key="live_smoothing", link=LINK, weight=WEIGHT.read(), highest=MAX_SMOOTHING, help=SMOOTHING.help,
        on_weight=WEIGHT.write,
    )  # fmt: skip


def _draw_training(run_rows: RunData, axis_option: dict[str, Any]) -> None:
    """Draw the grid of charts: the panels of the figures, then groups of metrics."""
    run = run_rows.run
    all_cells = [cells.overlay_runs(cell, run.id) for cell in _draw_cells(run_rows, axis_option)]
    charts = [cell.chart for cell in all_cells]
    shared_axis = canvas.share_axis(LINK, charts, height=CHART_HEIGHT, smoothing=WEIGHT.read())
    with st.container(key="live_charts_grid", horizontal=True, gap="medium"):
        for index, cell in enumerate(all_cells):
            is_last_row = index >= len(all_cells) - 2  # in two columns, only the last row has an x title
            if cell.title in (BETA_PANEL, CLOSING_PANEL):
                _show_beta(cell, run, shared_axis, x_title=is_last_row)
            else:
                cells.show(cell, run, shared_axis, x_title=is_last_row)
        # A chart of several metrics has a panel for each, so it is higher than the others.
        axis_without_height = replace(shared_axis, height=None)
        for cell in _draw_metric_cells(run_rows, axis_option):
            cells.show(cells.overlay_runs(cell, run.id), run, axis_without_height, is_titled=True)


def _show_beta(cell: Cell, run: RunRow, shared_axis: canvas.SharedAxis, *, x_title: bool) -> None:
    """Draw the chart of β̄ or of 1 − β̄, with the switch between them."""
    with pin.make_panel(cell.key):
        with cells.show_bar(cell):
            cells.show_buttons(cell, run)
            _BETA.draw(label=CLOSING_PANEL, help=None)
        cells.show_chart(cell, shared_axis, x_title=x_title)


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


def _draw_cells(run_rows: RunData, axis_option: dict[str, Any]) -> list[Cell]:
    """Draw each panel of the figures of this page that the run has data for."""
    kinds = [kind for section in list_sections("live").values() for kind in section]
    all_cells: list[Cell] = []
    for kind in kinds:
        values: dict[str, Any] = {}
        if issubclass(kind.options, GateDynamicsOptions) and _BETA.parameter.read():
            values["closing"] = True  # 1 − β̄ instead of β̄
        try:
            chart = draw_chart(kind.name, run_rows, kind.options.read(values))
        except ConfigError:  # the run has no gate
            continue
        for panel in chart.panels:
            cell_values = {**values, "panel": panel.title, **axis_option}
            all_cells.append(Cell(panel.title, chart.keep_panel(panel.title), cell_values))
    win_rate, *others = all_cells
    return [win_rate, *sorted(others, key=_get_position)]


def _get_position(cell: Cell) -> int:
    """Return the position of a chart after the win rate. Charts that are not in `FIRST_PANELS` are last."""
    return FIRST_PANELS.index(cell.title) if cell.title in FIRST_PANELS else len(FIRST_PANELS)


def _draw_metric_cells(run_rows: RunData, axis_option: dict[str, Any]) -> list[Cell]:
    """Draw the charts of several metrics that the run has data for."""
    metric_cells: list[Cell] = []
    for title, names in list_metric_charts().items():
        chart = draw_chart("metrics", run_rows, MetricOptions(metrics=names))
        if not chart.is_empty:
            chart = replace(chart, title=f"{title} of {run_rows.run.name}")
            metric_cells.append(Cell(title, chart, {"metrics": names, **axis_option}))
    return metric_cells


def _draw_log(run_id: str) -> None:
    with st.expander("Trainer log", icon=":material/terminal:"):
        text = run_data.read_log_tail(run_id)
        if text:
            st.code(text, language=None, height=280)
        else:
            st.caption("The trainer has not written a log yet.")
