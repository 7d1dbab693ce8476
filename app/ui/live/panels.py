"""The Live page: status and messages that a timer updates, and charts that are redrawn only for new points.

The fragment with the timer contains no chart. It reads the new rows. If there are any, a component without visible
output reruns the charts' fragment once. If there are none, no chart is sent to the browser.
"""

from contextlib import suppress
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
from app.figures.run_charts import ACTIVITY_PANEL, BETA_PANEL, CLOSING_PANEL, FIRST_METRICS, POSITIVE_PANEL
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
REFERENCES = Choices("ref", "live")
"""Ids of the overlaid runs."""
_X_AXIS = OptionWidget(RunChartOptions, "x_axis", "live")
_SMOOTHING = RunChartOptions.get_option("smoothing")
WEIGHT = Number(_SMOOTHING.parameter, "live", default=_SMOOTHING.default, low=0, high=MAX_SMOOTHING)
"""Weight of the moving average."""
METRICS = OptionWidget(MetricOptions, "metrics", "live", kind="multiselect", separator="")
FIRST_PANELS: Final = (ACTIVITY_PANEL, BETA_PANEL, CLOSING_PANEL, POSITIVE_PANEL)
"""The panels that follow the win rate. With it, the first three are visible without scrolling."""
CHART_HEIGHT = 260
"""Two rows of charts fit below the header on a screen of 1440×900 [pixels]."""
PANEL_HEIGHT = 170
"""Height of a panel in a chart of several metrics [pixels]."""
TICK_S = 2.0
_LINK: Final = "live"
"""The charts of the page have one window, cursor and smoothing."""
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
    if not st.session_state.get("live_paused"):
        curves.refresh()
    curves.record_progress(run)
    st.session_state["live_drawn"] = curves.version  # the charts below are drawn in this script run
    st.session_state["live_waiting"] = 0
    st.fragment(_status, run_every=None if has_ended else TICK_S)(run.id)
    st.fragment(_charts, key=CHARTS)(run)
    st.fragment(_log, run_every=None if has_ended else 5)(run.id)


def _get_curves(run_id: str) -> LiveCurves:
    return run_data.get_session_curves(run_id, list_live_metrics(), key="live_curves")


def _status(run_id: str) -> None:
    with messages.guarded(), data.use_one_snapshot():  # over a network, each separate read takes four round trips
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
    _problems(run)
    controls.show_warnings(run)
    controls.offer_kill(run)
    verdict = run_data.get_gate_verdict(run.id, run.live_status)
    gate_sentence = ""
    if verdict.gate is not None and not is_gate_off(run.config):
        gate_sentence = verdict.gate.sentence
        st.caption(escape_markdown(gate_sentence))
    if verdict.no_incentive_reason and verdict.no_incentive_reason not in gate_sentence:
        st.caption(f":material/flag: {escape_markdown(verdict.no_incentive_reason)}")


def _update_charts(curves: LiveCurves) -> None:
    """Draw the switch that freezes the charts, read new rows, and redraw the charts if there are any."""
    is_frozen = st.toggle("Freeze charts", key="live_paused", help="The charts are not updated. The run continues.")
    n_new = curves.refresh()
    n_waiting = st.session_state["live_waiting"] = st.session_state.get("live_waiting", 0) + n_new
    if is_frozen:
        st.badge(f"{n_waiting} new points" if n_waiting else "up to date", color="blue" if n_waiting else "gray")
    drawn_version = str(st.session_state.get("live_drawn", ""))
    version = drawn_version if is_frozen else curves.version
    data_versions = {"version": version, "drawn": drawn_version}
    # This rerun cancels requested runs of other fragments, so a requested file is made in it, too.
    _pulse(key="live_pulse", data=data_versions, on_news_change=lambda: st.rerun([CHARTS, files.FRAGMENT]))


def _problems(run: RunRow) -> None:
    if run.live_status == "lost":
        st.warning(
            "The trainer sends no heartbeat: it has ended or hangs. The recorded data are kept. See the log below.",
            icon=":material/link_off:",
        )
    if run.error:
        st.error(escape_markdown(run.error), icon=":material/error:")
    if run.stall:
        st.warning(f"Recording waits: {escape_markdown(run.stall)}", icon=":material/hourglass:")


def _charts(run: RunRow) -> None:
    curves = _get_curves(run.id)
    st.session_state["live_drawn"] = curves.version
    st.session_state["live_waiting"] = 0
    if not curves.n_rows and not curves.has_episodes:
        messages.empty(
            "No point has been recorded yet.",
            "The first one follows the first training round, usually within ten seconds. This page updates "
            "automatically.",
        )
        return
    with messages.guarded(), data.use_one_snapshot():
        marks = tuple(Mark(step, "resumed") for step in curves.list_resume_steps())
        name, x = _read_x_axis(run)
        axis: dict[str, Any] = {"x_axis": name} if x is not ENV_STEPS else {}
        recorded = replace(_get_run_data(run, curves, marks), x=x)
        cells = [_add_references_to(cell, run.id) for cell in _draw_cells(recorded, axis)]
        charts = [cell.chart for cell in cells]
        place = canvas.place_together(_LINK, charts, height=CHART_HEIGHT, smoothing=WEIGHT.read())
        with st.container(key="live_charts_grid", horizontal=True, gap="medium"):
            for index, cell in enumerate(cells):
                with st.container(gap=None):
                    _show_cell(cell, run, place, has_references=index == 0)
            for title, names in list_metric_charts().items():
                chart = draw_chart("metrics", recorded, MetricOptions(metrics=names))
                if not chart.is_empty:
                    with st.container(gap=None):
                        chart = replace(chart, title=f"{title} of {run.name}")
                        cell = _Cell(title, chart, {"metrics": names, **axis})
                        _show_cell(_add_references_to(cell, run.id), run, replace(place, height=None), is_titled=True)
            if len(curves.metrics):
                with st.container(gap="xsmall"):
                    _metric_charts(run, curves, recorded, place, axis)


def _get_run_data(run: RunRow, curves: LiveCurves, marks: tuple[Mark, ...]) -> RunData:
    """Return the rows of the run that this session has read so far."""
    database = data.database()
    return RunData(run, curves.gate, curves.evaluations, curves.metrics, lambda: read_returns(database, run), marks)


def _read_x_axis(run: RunRow) -> tuple[XAxisName, XValues]:
    """Read the selected x axis; env steps, with a message, if the run has no values on it."""
    name = RunChartOptions(x_axis=_X_AXIS.select()).x_axis
    x = read_x_values(data.database(), [run], name)
    if x.curves is None or run.id in x.curves:
        return name, x
    st.caption(escape_markdown(f"The x axis is env steps: this run has {x.axis.missing}."))
    return "env_steps", ENV_STEPS


def _draw_cells(recorded: RunData, axis: dict[str, Any]) -> list[_Cell]:
    """Draw each panel of the figures of this page that the run has data for. β̄ is drawn as 1 − β̄, too."""
    cells: dict[str, _Cell] = {}
    for kind in (kind for kinds in list_sections("live").values() for kind in kinds):
        has_closing = issubclass(kind.options, GateDynamicsOptions)
        for values in ({}, {"closing": True}) if has_closing else ({},):
            with suppress(ConfigError):  # the run has no gate
                chart = draw_chart(kind.name, recorded, kind.options.read(values))
                for panel in chart.panels:  # Δ̄_mem and τ are in both variants
                    cell = _Cell(panel.title, chart.keep_panel(panel.title), {**values, "panel": panel.title, **axis})
                    cells.setdefault(cell.key, cell)
    win_rate, *others = cells.values()
    return [win_rate, *sorted(others, key=_rank)]


def _rank(cell: _Cell) -> int:
    return FIRST_PANELS.index(cell.title) if cell.title in FIRST_PANELS else len(FIRST_PANELS)


def _metric_charts(
    run: RunRow, curves: LiveCurves, recorded: RunData, place: canvas.Place, axis: dict[str, Any]
) -> None:
    available = curves.list_metrics()
    names = METRICS.draw(available, default=[name for name in FIRST_METRICS if name in available])
    curves.add_metrics(names)
    if names:
        recorded = replace(recorded, metrics=curves.metrics)
        values = {"metrics": tuple(names)}
        chart = draw_chart("metrics", recorded, MetricOptions.read(values))
        cell = _Cell("Selected metrics", chart, values | axis)
        _show_cell(_add_references_to(cell, run.id), run, replace(place, height=None), is_titled=True)


def _list_references(run_id: str) -> list[str]:
    """List the runs that are overlaid on a run; runs that were deleted, and the run itself, are left out."""
    selected = REFERENCES.read()
    if not selected:
        return []
    existing = data.cached(run_configs, ttl=2)(selected)
    references = [other_id for other_id in selected if other_id in existing and other_id != run_id]
    return references[:MAX_REFERENCE_RUNS]


@st.cache_resource(ttl=5, max_entries=data.MAX_ENTRIES, show_spinner=False)
def _draw_reference(
    url: str, run_id: str, figure: str, values: tuple[tuple[str, Any], ...]
) -> tuple[str, Chart] | None:
    """Draw a figure of an overlaid run; None if the run has no such figure; at most five seconds old.

    Returns:
        The run's name in the legend, and the chart.
    """
    run, kind = find_run(data.database(), run_id), find_figure(figure)
    try:
        chart = kind.make(data.database(), [run], kind.options.read(dict(values)))
    except ConfigError:
        return None
    return (name_reference_run(run), chart) if isinstance(chart, Chart) else None


def _add_references_to(cell: _Cell, run_id: str) -> _Cell:
    values = tuple(cell.values.items())
    charts: dict[str, Chart] = {}
    for other_id in _list_references(run_id):
        reference = _draw_reference(data.database_url(), other_id, cell.chart.name, values)
        if reference is not None:
            name, chart = reference
            charts[name] = chart
    return replace(cell, chart=add_reference_runs(cell.chart, charts))


def _choose_references_and_axis(run: RunRow) -> None:
    help_text = "Adds the main lines of other runs to all charts, dotted. Sets the x axis of all charts"
    with st.popover("Overlay runs, x axis", type="tertiary", icon=":material/stacked_line_chart:", help=help_text):
        names, _ = data.cached(run_names, ttl=2)(RunFilter())
        names = names | data.cached(find_run_names, ttl=5)(_list_references(run.id))
        names.pop(run.id, None)
        st.multiselect(
            "Runs", **REFERENCES.bind(list(names), lambda run_id: f"{names.get(run_id, '')} · {run_id}"),
            max_selections=MAX_REFERENCE_RUNS, placeholder="none",
        )  # fmt: skip
        _X_AXIS.draw(on_change=lambda: WINDOW.write(None))


def _show_cell(
    cell: _Cell, run: RunRow, place: canvas.Place, *, has_references: bool = False, is_titled: bool = False
) -> None:
    """Draw the title of a chart with its explanation and its buttons, and the chart.

    Args:
        cell: The chart.
        run: The run.
        place: What the chart shares with the other charts.
        has_references: Whether to draw the choice of runs that are overlaid on all charts.
        is_titled: Whether each panel has its title on the canvas.
    """
    window, weight, chart = WINDOW.read(), WEIGHT.read(), cell.chart
    facts = cell.values | ({"smoothing": weight} if weight else {})
    references = {"beside": run_ids} if (run_ids := _list_references(run.id)) else {}
    with st.container(key=f"{cell.key}-bar", horizontal=True, vertical_alignment="center", gap="xsmall"):
        is_latin = cell.title[:1].isascii()  # not β
        heading = escape_markdown(cell.title[:1].upper() + cell.title[1:] if is_latin else cell.title)
        st.markdown(f"#### {heading}", help=escape_markdown(chart.caption), width="stretch")
        if has_references:
            _choose_references_and_axis(run)
        pin.show_with_export(
            lambda: smooth_chart(chart, weight).keep_window(window), key=cell.key, stem=run.id, page="live", run=run,
            facts={**facts, **references},
        )  # fmt: skip
    canvas.show(
        _shorten_texts(chart), key=cell.key, window=window, panel_height=PANEL_HEIGHT, titles=is_titled, place=place,
        on_window=WINDOW.on_window,
    )  # fmt: skip


def _shorten_texts(chart: Chart) -> Chart:
    """Leave out the subtitle, and name each line by its label: the caption explains both."""
    panels = [
        replace(panel, lines=tuple(replace(line, name=line.label or line.name) for line in panel.lines))
        for panel in chart.panels
    ]
    return replace(chart, panels=tuple(panels), subtitle="")


def _log(run_id: str) -> None:
    with st.expander("Trainer log", icon=":material/terminal:"):
        text = run_data.read_log_tail(run_id)
        if text:
            st.code(text, language=None, height=280)
        else:
            st.caption("The trainer has not written a log yet.")
