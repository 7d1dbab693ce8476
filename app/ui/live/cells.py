"""A chart of the page Live with its title and buttons, and the runs that are overlaid on the charts.

A cell is a chart and the values of the options with which its figure draws it. *Pin* saves it in the notebook.
"""

from dataclasses import dataclass, field, replace
from typing import Any, Final

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from app.analysis.format import escape_markdown
from app.figures.curve_style import smooth_chart
from app.figures.kinds.chart import Chart
from app.figures.named.live import MAX_SMOOTHING, RunChartOptions
from app.figures.reference_runs import MAX_REFERENCE_RUNS, add_reference_runs, name_reference_run
from app.figures.registry import find_figure
from app.ui import data
from app.ui.page_state import WINDOW, Choices, Number
from app.ui.page_url import report_missing
from app.ui.widgets import canvas, pin
from emtc_core.errors import ConfigError
from storage.queries.runs import run_configs
from storage.runs.rows import RunRow, find_run

LINK: Final = "live"
"""Key of the charts, which share their x axis, cursor and smoothing."""
OVERLAID_RUNS = Choices("ref", "live")
"""Ids of the overlaid runs."""
SMOOTHING = RunChartOptions.get_option("smoothing")
WEIGHT = Number(SMOOTHING.parameter, "live", default=SMOOTHING.default, low=0, high=MAX_SMOOTHING)
"""Weight of the moving average."""
_X_TITLE_HEIGHT: Final = 18
"""Height of the title of an x axis [pixels], as in curves.js."""
PANEL_HEIGHT = 170
"""Height of a panel in a chart of several metrics [pixels]."""


@dataclass(frozen=True)
class Cell:
    """A chart of the page, and the values of the options with which its figure draws it."""

    title: str
    chart: Chart
    values: dict[str, Any] = field(default_factory=dict[str, Any])
    """Values of the options of the figure, by name."""

    @property
    def key(self) -> str:
        """Key of the chart among the widgets of the page."""
        return f"live-{self.chart.name}-{self.title}"


def show(
    cell: Cell, run: RunRow, shared_axis: canvas.SharedAxis, *, is_titled: bool = False, x_title: bool = True
) -> None:
    """Draw the title of a chart with its explanation and its buttons, and the chart.

    Args:
        cell: The chart.
        run: The run.
        shared_axis: Layout, window, cursor and smoothing that the chart shares with the other charts.
        is_titled: Whether each panel has its title on the canvas.
        x_title: Whether the title of the x axis is below the chart.
    """
    with pin.make_panel(cell.key):
        with show_bar(cell):
            show_buttons(cell, run)
        show_chart(cell, shared_axis, is_titled=is_titled, x_title=x_title)


def show_bar(cell: Cell, title: str = "") -> DeltaGenerator:
    """Draw a row with a title, which has the caption of the chart as its tooltip. Return the row.

    Args:
        cell: The chart.
        title: Default: the title of the cell.
    """
    heading = title or cell.title
    if heading[:1].isascii():  # β has no capital letter
        heading = heading[:1].upper() + heading[1:]
    row = st.container(key=f"{cell.key}-bar", horizontal=True, vertical_alignment="center", gap="xsmall")
    row.markdown(f"#### {escape_markdown(heading)}", help=escape_markdown(cell.chart.caption), width="stretch")
    return row


def show_buttons(cell: Cell, run: RunRow) -> None:
    """Draw the buttons *Export* and *Pin* of a chart, with the window, the smoothing and the overlaid runs of now."""
    window = WINDOW.read()
    weight = WEIGHT.read()
    pinned_values = dict(cell.values)
    if weight:
        pinned_values["smoothing"] = weight
    overlaid = list_overlaid_runs(run.id)
    if overlaid:
        pinned_values["beside"] = overlaid  # name of this option in figures
    pin.show_with_export(
        lambda: smooth_chart(cell.chart, weight).keep_window(window), key=cell.key, stem=run.id, page="live", run=run,
        facts=pinned_values, icons=True,
    )  # fmt: skip


def show_chart(cell: Cell, shared_axis: canvas.SharedAxis, *, is_titled: bool = False, x_title: bool = True) -> None:
    """Draw the chart without its title and buttons. The arguments are those of `show`."""
    if shared_axis.height is not None and not x_title:  # then its plot is as high as that of a chart with the title
        shared_axis = replace(shared_axis, height=shared_axis.height - _X_TITLE_HEIGHT)
    canvas.show(
        shorten_texts(cell.chart), key=cell.key, window=WINDOW.read(), panel_height=PANEL_HEIGHT, titles=is_titled,
        shared_axis=shared_axis, x_title=x_title, on_window=WINDOW.on_window,
    )  # fmt: skip


def shorten_texts(chart: Chart) -> Chart:
    """Leave out the subtitle, name each line by its label, and an overlaid run by its id. The caption explains them."""
    panels = []
    for panel in chart.panels:
        lines = [replace(line, name=line.label or _shorten_name(line.name)) for line in panel.lines]
        panels.append(replace(panel, lines=tuple(lines)))
    return replace(chart, panels=tuple(panels), subtitle="")


def _shorten_name(name: str) -> str:
    """Replace the name of an overlaid run by its id: the list of runs has the name."""
    for run_id in OVERLAID_RUNS.read():
        if name.endswith(f" ({run_id})"):
            return run_id
    return name


def list_overlaid_runs(run_id: str) -> list[str]:
    """List the runs that are overlaid on a run, without the run itself. State on the page which runs do not exist."""
    selected = OVERLAID_RUNS.read()
    if not selected:
        return []
    existing = data.cached(run_configs, ttl=2)(selected)
    overlaid = [other_id for other_id in selected if other_id in existing and other_id != run_id]
    overlaid = overlaid[:MAX_REFERENCE_RUNS]
    if missing := [other_id for other_id in selected if other_id not in existing]:
        OVERLAID_RUNS.write(overlaid)
        report_missing(OVERLAID_RUNS.name, ", ".join(missing), ", ".join(overlaid))
    return overlaid


def overlay_runs(cell: Cell, run_id: str) -> Cell:
    """Add the lines of the overlaid runs to a chart."""
    values = tuple(cell.values.items())
    charts: dict[str, Chart] = {}
    for other_id in list_overlaid_runs(run_id):
        overlaid = _draw_overlaid_run(data.database_url(), other_id, cell.chart.name, values)
        if overlaid is not None:
            name, chart = overlaid
            charts[name] = chart
    return replace(cell, chart=add_reference_runs(cell.chart, charts))


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
