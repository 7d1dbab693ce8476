"""Draw a Chart or a Cloud with Matplotlib: SVG, PDF and PNG on a machine without a browser.

Text stays text and fonts are embedded; clouds are a raster layer of 300 dpi inside the vector file.
"""

import io
from collections.abc import Sequence
from typing import Any, Literal

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from app.figures import heatmap_views, maps_views
from app.figures.chart import Chart, Line, Panel
from app.figures.cloud import Cloud
from app.figures.heatmap import Heatmap
from app.figures.kinds import AnyFigure
from app.figures.maps import Maps
from app.theme import Mode, ink

Format = Literal["svg", "pdf", "png"]
FORMATS: tuple[Format, ...] = ("svg", "png", "pdf")
WIDTH_INCHES = 6.75  # a double column
DPI = 300

_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "emtc-lab",
    "pdf.fonttype": 42,
    "ps.fonttype": 42,
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "legend.fontsize": 8,
    "text.parse_math": False,
}


def to_image(figure: AnyFigure, format: Format, *, mode: Mode = "light", sources: Sequence[str] = ()) -> bytes:
    """Write the figure as an image file; the same figure gives the same bytes.

    The file's own metadata holds the title, the caption (statistic, band, number of seeds) and `sources`, the runs.
    """
    style: dict[Any, Any] = {**_STYLE, **_colors(mode)}
    with mpl.rc_context(style):
        drawn = _draw(figure)
        file = io.BytesIO()
        drawn.savefig(file, format=format, dpi=DPI, metadata=_metadata(format, figure, sources))
    return file.getvalue()


def _draw(figure: AnyFigure) -> Figure:
    if isinstance(figure, Heatmap):
        return heatmap_views.draw_matplotlib(figure, WIDTH_INCHES)
    if isinstance(figure, Maps):
        return maps_views.draw_matplotlib(figure, WIDTH_INCHES)
    return _draw_chart(figure) if isinstance(figure, Chart) else _draw_cloud(figure)


def _colors(mode: Mode) -> dict[str, str]:
    text, background, grid = ink(mode)
    names = ("text.color", "axes.labelcolor", "xtick.color", "ytick.color", "axes.edgecolor")
    surfaces = ("figure.facecolor", "axes.facecolor", "savefig.facecolor", "legend.facecolor")
    return dict.fromkeys(names, text) | dict.fromkeys(surfaces, background) | {"grid.color": grid}


def _metadata(format: Format, figure: AnyFigure, sources: Sequence[str]) -> dict[str, Any]:
    if format == "svg":
        return {"Date": None, "Title": figure.title, "Description": figure.caption, "Keywords": list(sources)}
    said = {"Title": figure.title, "Keywords": "; ".join(sources)}
    if format == "pdf":
        return {"CreationDate": None, "Subject": figure.caption, **said}
    return {"Description": figure.caption, **said}


def _draw_chart(chart: Chart) -> Figure:
    if chart.columns > 1:
        return _draw_grid(chart)
    rows = len(chart.panels)
    height = 0.9 + 1.5 * rows if rows != 1 else 3.2
    drawn = Figure(figsize=(WIDTH_INCHES, height), layout="constrained")
    axes = drawn.subplots(rows, 1, sharex=True, squeeze=False)[:, 0]
    for ax, panel in zip(axes, chart.panels, strict=True):
        _draw_panel(ax, panel)
        for mark in chart.marks:
            ax.axvline(mark.x, linestyle=":", linewidth=0.8, color="0.5")
    for mark in chart.marks:
        axes[0].annotate(mark.label, (mark.x, 1), (3, -3), ("data", "axes fraction"), "offset points", va="top", size=7)
    axes[-1].set_xlabel(chart.x_label)
    _count_in_thousands(axes[-1], chart)
    axes[0].set_title(chart.title, loc="left", fontweight="bold")
    return drawn


def _draw_grid(chart: Chart) -> Figure:
    """Draw panels side by side, each with its own x axis, over one legend."""
    rows = -(-len(chart.panels) // chart.columns)
    names = list(dict.fromkeys(line.name for _, line in chart.lines if not line.faint))
    below = 0.2 * -(-len(names) // 2)
    drawn = Figure(figsize=(WIDTH_INCHES, 0.5 + 2.0 * rows + below), layout="constrained")
    axes = list(drawn.subplots(rows, chart.columns, squeeze=False).flat)
    handles: dict[str, Artist] = {}
    for ax, panel in zip(axes, chart.panels, strict=False):
        _draw_panel(ax, panel, legend=False)
        ax.set_xlabel(chart.x_label)
        ax.xaxis.set_major_locator(MaxNLocator(4))
        _count_in_thousands(ax, chart)
        handles |= dict(zip(*reversed(ax.get_legend_handles_labels()), strict=True))
    for ax in axes[len(chart.panels) :]:
        ax.set_axis_off()
    drawn.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=2, frameon=False)
    drawn.suptitle(chart.title, x=0.01, ha="left", fontweight="bold", fontsize=10)
    return drawn


def _count_in_thousands(ax: Axes, chart: Chart) -> None:
    """Write 50k and 2M at an axis of env steps."""
    if chart.x_label.endswith("env steps"):
        ax.xaxis.set_major_formatter(EngFormatter(sep=""))


def _draw_panel(ax: Axes, panel: Panel, *, legend: bool = True) -> None:
    for line in panel.lines:
        _draw_line(ax, line)
    ax.set_ylabel(f"{panel.title}\n[{panel.unit}]" if panel.unit else panel.title)
    ax.grid(visible=True, linewidth=0.5)
    ax.set_axisbelow(True)
    if panel.range:
        ax.set_ylim(*panel.range)
    if legend and sum(not line.faint for line in panel.lines) > 1:
        ax.legend(frameon=False, loc="best")


def _draw_line(ax: Axes, line: Line) -> None:
    style = (0, (line.dash[0] / 2, line.dash[1] / 2)) if line.dash else "-"
    marker = "o" if line.markers or (len(line.x) < 40 and not line.faint) else ""
    width = (0.6 if line.faint else 1.4) if line.width else 0.0
    ax.plot(
        line.x,
        line.y,
        linestyle=style,
        color=line.color,
        label="_" if line.faint else line.name,  # Matplotlib leaves such names out of a legend
        linewidth=width,
        alpha=0.4 if line.faint else 1.0,
        marker=marker,
        markersize=2.5,
    )
    if line.low is not None and line.high is not None:
        ax.fill_between(line.x, line.low, line.high, color=line.color, alpha=0.2, linewidth=0)


def _draw_cloud(cloud: Cloud) -> Figure:
    drawn = Figure(figsize=(WIDTH_INCHES, 5.2), layout="constrained")
    ax = drawn.subplots()
    points = ax.scatter(
        cloud.x,
        cloud.y,
        c=cloud.value,
        s=4 if len(cloud.x) < 20_000 else 1,
        linewidths=0,
        cmap=LinearSegmentedColormap.from_list(cloud.quantity.key, cloud.colors),
        vmin=cloud.low,
        vmax=cloud.high,
        plotnonfinite=False,
        rasterized=True,
    )
    ax.set_xlabel(cloud.x_label)
    ax.set_ylabel(cloud.y_label)
    ax.set_title(cloud.title, loc="left", fontweight="bold")
    drawn.colorbar(points, ax=ax, label=cloud.value_label)
    return drawn
