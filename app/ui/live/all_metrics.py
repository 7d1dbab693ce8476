"""The tab *All metrics* of the page Live: a small chart of each metric of the run, by the group of its name.

The group of "train/grad_norm" is "train". A press on a small chart enlarges it, with *Export* and *Pin*, above the
others. The points of the metrics are read only while the tab is open, and a line has at most `MAX_POINTS` of them.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any, Final

import pandas as pd
import streamlit as st

from app.analysis.format import escape_markdown
from app.analysis.x_axes import XAxisName
from app.figures.kinds.chart import Chart
from app.figures.named.live import MetricOptions, RunData, read_run_data
from app.figures.reference_runs import add_reference_runs, name_reference_run
from app.figures.registry import draw_chart
from app.figures.thinning import thin_line
from app.ui import data, run_data
from app.ui.live import cells
from app.ui.live.cells import Cell
from app.ui.page_state import WINDOW, Choices, Text
from app.ui.widgets import canvas, pin
from emtc_core.errors import ConfigError
from emtc_core.metrics import describe_metric
from storage.runs.rows import find_run

MAX_POINTS: Final = 300
"""Maximum number of points of a line in a small chart: its ends, and the extremes of equally long sections."""
SMALL_HEIGHT: Final = 96
"""Height of the panel of a small chart [pixels]."""
ENLARGED = Choices(MetricOptions.get_option("metrics").parameter, "live", separator="")
"""Names of the enlarged metrics."""
_SEARCH = Text("find", "live")
"""Words of the name or the meaning of the metrics that are shown."""
_ONE_METRIC_HEIGHT: Final = 260
"""Height of the enlarged chart of one metric [pixels]."""


def show(run_rows: RunData, x_axis: XAxisName, *, words: Sequence[str]) -> None:
    """Draw the tab.

    Args:
        run_rows: The run and its x axis. Its metrics are read here.
        x_axis: Name of the x axis.
        words: Words of the search. Only metrics with all of them are drawn.
    """
    run = run_rows.run
    curves = run_data.get_session_curves(run.id, (), key="live_all_metrics", has_tables=False)
    names = curves.list_metrics()
    curves.add_metrics(names)
    curves.refresh()
    run_rows = replace(run_rows, metrics=curves.metrics)
    enlarged = [name for name in ENLARGED.read() if name in names]
    axis_option: dict[str, Any] = {"x_axis": x_axis} if x_axis != "env_steps" else {}
    charts = _add_overlaid_runs(_draw_small_charts(run_rows, names), run.id, tuple(names), x_axis)
    shared_axis = canvas.share_axis(
        cells.LINK, charts.values(), height=_ONE_METRIC_HEIGHT, smoothing=cells.WEIGHT.read()
    )
    # a fixed place: without it, the small charts would be drawn again at each press, and the focus would be lost
    place = st.empty()
    if enlarged:
        with place.container(key="live_enlarged"):
            _show_enlarged(run_rows, enlarged, shared_axis, axis_option)
    matching = [name for name in names if _matches(name, words)]
    if not matching:
        st.caption("No metric of this run contains these words." if names else "No metric has been recorded yet.")
    axis_of_small_charts = replace(shared_axis, height=None)
    for group, members in groupby(matching, lambda name: name.partition("/")[0]):
        st.markdown(f"##### {escape_markdown(group)}")
        with st.container(key=f"live_metrics_{group}", horizontal=True, gap="small"):
            for name in members:
                if name in charts:
                    canvas.show(
                        charts[name], key=f"live-small-{name}", window=WINDOW.read(), panel_height=SMALL_HEIGHT,
                        shared_axis=axis_of_small_charts, x_title=False, legend=False, on_window=WINDOW.on_window,
                        on_press=partial(_enlarge, name, enlarged),
                    )  # fmt: skip


def choose_words() -> list[str]:
    """Draw the search field; return its words in lower case."""
    st.text_input(
        "Search metrics", label_visibility="collapsed", placeholder="Search metrics", icon=":material/search:",
        help="Metrics whose name or meaning contains all words", width=240, **_SEARCH.bind(),
    )  # fmt: skip
    return _SEARCH.read().lower().split()


def _matches(name: str, words: Sequence[str]) -> bool:
    """Return whether the name, the label or the meaning of a metric contains all words."""
    metric = describe_metric(name)
    text = f"{name} {metric.label} {metric.meaning}".lower()
    return all(word in text for word in words)


def _enlarge(name: str, enlarged: Sequence[str]) -> None:
    """Enlarge a metric, or close its enlarged chart if it is the only one."""
    ENLARGED.write(None if list(enlarged) == [name] else [name])


def _show_enlarged(
    run_rows: RunData, names: Sequence[str], shared_axis: canvas.SharedAxis, axis_option: dict[str, Any]
) -> None:
    """Draw the chart of the enlarged metrics. It stays visible while the page scrolls."""
    values = {"metrics": tuple(names)}
    chart = draw_chart("metrics", run_rows, MetricOptions.read(values))
    cell = cells.overlay_runs(Cell("Selected metrics", chart, values | axis_option), run_rows.run.id)
    is_single = len(names) == 1
    with pin.make_panel(cell.key):
        with cells.show_bar(cell, describe_metric(names[0]).label if is_single else ""):
            cells.show_buttons(cell, run_rows.run)
            st.button("Close", icon=":material/close:", key="live_close", on_click=ENLARGED.write, args=(None,))
        axis = shared_axis if is_single else replace(shared_axis, height=None)
        cells.show_chart(cell, axis, is_titled=not is_single)


def _draw_small_charts(run_rows: RunData, names: Sequence[str]) -> dict[str, Chart]:
    """Draw a chart of each metric that has points, by its name, with at most `MAX_POINTS` points per line."""
    charts: dict[str, Chart] = {}
    if not len(run_rows.metrics):
        return charts
    frames: dict[str, pd.DataFrame] = {str(name): frame for name, frame in run_rows.metrics.groupby("name")}
    for name in names:
        if name not in frames:
            continue
        chart = draw_chart("metrics", replace(run_rows, metrics=frames[name]), MetricOptions(metrics=(name,)))
        panels = []
        for panel in chart.panels:
            lines = tuple(thin_line(line, MAX_POINTS) for line in panel.lines)
            # so short that the button of the chart does not cover the title
            panels.append(replace(panel, title=panel.title.replace(" quantile)", ")"), lines=lines))
        values = "; ".join(panel.format_last_values() for panel in panels)
        description = f"{name}: {chart.caption} Last value: {values}."
        charts[name] = replace(chart, panels=tuple(panels), description=description)
    return charts


def _add_overlaid_runs(
    charts: dict[str, Chart], run_id: str, names: tuple[str, ...], x_axis: XAxisName
) -> dict[str, Chart]:
    """Add the lines of the overlaid runs to the small charts."""
    others: dict[str, dict[str, Chart]] = {}
    for other_id in cells.list_overlaid_runs(run_id):
        label, other_charts = _draw_overlaid_run(data.database_url(), other_id, names, x_axis)
        others[label] = other_charts
    result: dict[str, Chart] = {}
    for name, chart in charts.items():
        same_metric = {label: other[name] for label, other in others.items() if name in other}
        result[name] = cells.shorten_texts(add_reference_runs(chart, same_metric))
    return result


@st.cache_resource(ttl=5, max_entries=data.MAX_ENTRIES, show_spinner=False)
def _draw_overlaid_run(
    url: str, run_id: str, names: tuple[str, ...], x_axis: XAxisName
) -> tuple[str, dict[str, Chart]]:
    """Draw the small charts of an overlaid run. They are at most five seconds old.

    Args:
        url: URL of the database. It is only a part of the key in the cache.
        run_id: The overlaid run.
        names: The metrics.
        x_axis: The x axis. Without values on it, the run has no charts.

    Returns:
        The run's name in the legend, and the charts by metric.
    """
    run = find_run(data.database(), run_id)
    try:
        charts = _draw_small_charts(read_run_data(data.database(), run, names, x_axis), names)
    except ConfigError:
        charts = {}
    return name_reference_run(run), charts
