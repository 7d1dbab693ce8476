"""Draw a Chart with Matplotlib: panels, legends that wrap and never cover data, names at the ends of lines."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from textwrap import fill

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import EngFormatter, MaxNLocator

from app.figures.kinds.chart import Chart, Line, Panel, Values
from app.figures.theme import Marker, set_as_math

_POINT = 1 / 72  # of an inch
_LEGEND_SIZE, _LABEL_SIZE = 8, 8
_MOST_LABELS = 8
_LARGEST = 1e150
_SHAPES: dict[Marker, str] = {
    "circle": "o",
    "square": "s",
    "triangle-up": "^",
    "diamond": "D",
    "x": "X",
    "triangle-down": "v",
    "cross": "P",
    "star": "*",
    "pentagon": "p",
    "hexagon": "h",
}


def draw_chart(chart: Chart, width: float) -> Figure:
    """Draw the panels side by side over one legend, or stacked over one x axis."""
    chart = _drawable(chart)
    columns = min(chart.columns, max(1, int(width // 2)))
    if len(chart.panels) > 1 and chart.columns == 1:
        return _draw_stack(chart, width)
    return _draw_grid(chart, width, columns)


def _drawable(chart: Chart) -> Chart:
    """Leave out what Matplotlib's axes overflow at, as if it were missing."""

    def keep(values: Values) -> Values:
        return np.where(np.abs(values) < _LARGEST, values, np.nan)

    def keep_line(line: Line) -> Line:
        low, high = (None if values is None else keep(values) for values in (line.low, line.high))
        return replace(line, y=keep(line.y), low=low, high=high)

    panels = (replace(panel, lines=tuple(map(keep_line, panel.lines))) for panel in chart.panels)
    return replace(chart, panels=tuple(panels))


def set_title(drawn: Figure, title: str, subtitle: str = "") -> None:
    """Write title and subtitle at the left above everything, in as many rows as they need."""
    width, height = drawn.get_size_inches()
    above = 0.04
    for text, size, weight in ((title, 9, "bold"), (subtitle, 8, "normal")):
        if text:
            rows = fill(text, int(width / (0.56 * size * _POINT)))
            x, y = 0.05 / width, 1 - above / height
            drawn.text(x, y, set_as_math(rows), ha="left", va="top", fontsize=size, fontweight=weight)
            above += 1.3 * size * _POINT * (rows.count("\n") + 1)
    engine = drawn.get_layout_engine()
    if isinstance(engine, ConstrainedLayoutEngine):
        engine.set(rect=(0, 0, 1, 1 - above / height))


def _draw_stack(chart: Chart, width: float) -> Figure:
    rows = len(chart.panels)
    height = 0.9 + sum(_panel_height(panel, width) for panel in chart.panels)
    drawn = Figure(figsize=(width, height), layout="constrained")
    axes = drawn.subplots(rows, 1, sharex=True, squeeze=False)[:, 0]
    for ax, panel in zip(axes, chart.panels, strict=True):
        ax.set_xscale("log" if chart.x_log else "linear")
        _draw_panel(ax, panel)
        handles, names = ax.get_legend_handles_labels()
        if len(names) > 1:
            options = {"loc": "lower left", "bbox_to_anchor": (0, 1), "borderaxespad": 0.2, "frameon": False}
            ax.legend(handles, _wrap(names, width), ncols=_count_columns(names, width - 0.8), **options)
        _draw_marks(ax, chart, named=ax is axes[0])
    axes[-1].set_xlabel(set_as_math(chart.x_label))
    _count_in_thousands(axes[-1], chart)
    set_title(drawn, chart.title, chart.subtitle)
    return drawn


def _panel_height(panel: Panel, width: float) -> float:
    names = [line.name for line in panel.lines if not line.faint]
    rows = -(-len(names) // _count_columns(names, width - 0.8)) if len(names) > 1 else 0
    return 1.35 + 0.17 * rows


def _draw_grid(chart: Chart, width: float, columns: int) -> Figure:
    """Draw panels side by side, each with its own x axis, over one legend."""
    rows = -(-len(chart.panels) // columns)
    names = list(dict.fromkeys(line.name for _, line in chart.lines if not line.faint))
    across = _count_columns(names, width)
    below = 0.18 * sum(text.count("\n") + 1 for text in _wrap(names, width)) / across + 0.1 if len(names) > 1 else 0
    each = min(2.6, 0.62 * width) if columns == 1 else 2.0
    drawn = Figure(figsize=(width, 0.7 + each * rows + below), layout="constrained")
    axes = list(drawn.subplots(rows, columns, squeeze=False).flat)
    handles: dict[str, Artist] = {}
    for ax, panel in zip(axes, chart.panels, strict=False):
        ax.set_xscale("log" if chart.x_log else "linear")
        _draw_panel(ax, panel)
        if len(chart.panels) > 1:
            ax.set_title(set_as_math(panel.title), loc="left", fontsize=_LABEL_SIZE, fontweight="bold")
            ax.set_ylabel(set_as_math(f"{panel.axis or panel.title}\n[{panel.unit}]"))
        _draw_marks(ax, chart, named=True)
        ax.set_xlabel(set_as_math(chart.x_label))
        if not chart.x_log:
            ax.xaxis.set_major_locator(MaxNLocator(4 if columns > 1 or width < 4 else 8))
        _count_in_thousands(ax, chart)
        handles |= dict(zip(*reversed(ax.get_legend_handles_labels()), strict=True))
    for ax in axes[len(chart.panels) :]:
        ax.set_axis_off()
    if len(chart.panels) == 1 and width > 4:
        _label_ends(axes[0], chart.panels[0], each)
    if len(names) > 1:
        wrapped = _wrap(list(handles), width)
        drawn.legend(list(handles.values()), wrapped, loc="outside lower center", ncols=across, frameon=False)
    set_title(drawn, chart.title, chart.subtitle)
    return drawn


def _draw_marks(ax: Axes, chart: Chart, *, named: bool) -> None:
    for mark in chart.marks:
        ax.axvline(mark.x, linestyle=":", linewidth=0.8, color="0.5")
        if named:
            place = ((mark.x, 1), (3, -3), ("data", "axes fraction"), "offset points")
            ax.annotate(set_as_math(mark.label), *place, va="top", size=_LABEL_SIZE)


def _count_columns(names: Sequence[str], width: float) -> int:
    """Count how many names stand side by side in a legend, each with its piece of line."""
    longest = max((len(row) for text in _wrap(names, width) for row in text.split("\n")), default=1)
    return max(1, min(len(names) or 1, 4, int(width / ((0.58 * longest + 5.5) * _LEGEND_SIZE * _POINT))))


def _wrap(names: Sequence[str], width: float) -> list[str]:
    """Break names that are longer than the figure is wide, but no "n = 3"; none is cut."""
    most = max(20, int(width / (0.58 * _LEGEND_SIZE * _POINT)) - 8)
    kept = [name.replace(" = ", "\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}") for name in names]
    return [fill(name, most).replace("\N{NO-BREAK SPACE}", " ") for name in kept]


def _count_in_thousands(ax: Axes, chart: Chart) -> None:
    """Write 50k and 2M at an axis of env steps."""
    if chart.x_label.endswith("env steps"):
        ax.xaxis.set_major_formatter(EngFormatter(sep=""))


def _draw_panel(ax: Axes, panel: Panel) -> None:
    ax.set_yscale("log" if panel.log else "linear")
    for place, line in enumerate(panel.lines):
        _draw_line(ax, line, band=panel.band_opacity, place=place)
    ax.set_ylabel(set_as_math(f"{panel.title}\n[{panel.unit}]" if panel.unit else panel.title))
    ax.grid(visible=True, linewidth=0.5)
    ax.set_axisbelow(True)
    if panel.range:
        ax.set_ylim(*panel.range)
    elif panel.from_zero:
        ax.set_ylim(bottom=min(0, ax.get_ylim()[0]) if _goes_below_zero(panel) else 0)


def _goes_below_zero(panel: Panel) -> bool:
    return any(np.nanmin(line.y, initial=0) < 0 for line in panel.lines)


def _draw_line(ax: Axes, line: Line, *, band: float, place: int) -> None:
    style = (0, (line.dash[0] / 2, line.dash[1] / 2)) if line.dash else "-"
    few = len(line.x) < 40 and not line.faint
    shape = _SHAPES.get(line.marker, "o" if line.markers or few else "")
    every = 1 if line.markers or (few and not line.marker) else max(2, len(line.x) // 8)
    first = 0 if every == 1 else place % every  # so that the markers of lines on top of each other stand apart
    width = (0.6 if line.faint else 1.4) if line.width else 0.0
    ax.plot(
        line.x,
        line.y,
        linestyle=style,
        color=line.color,
        label="_" if line.faint else set_as_math(line.name),  # Matplotlib leaves such names out of a legend
        linewidth=width,
        alpha=0.4 if line.faint else 1.0,
        marker=shape,
        markevery=(first, every),
        zorder=2.1 if line.dash else 2,  # a dashed line lets one that it lies on be seen
        markeredgecolor=ax.get_facecolor(),
        markeredgewidth=0.4 if line.marker else 0.0,
        markersize=4.5 if line.marker and line.marker != "circle" else 2.5,
    )
    if line.low is not None and line.high is not None:
        ax.fill_between(line.x, line.low, line.high, color=line.color, alpha=band, linewidth=0)


def _label_ends(ax: Axes, panel: Panel, height: float) -> None:
    """Write each line's name into the margin, if all fit below each other; dots lead there from one that ends early."""
    ends = [(line, *_end(line)) for line in panel.lines if line.label and np.isfinite(line.y).any()]
    if not 1 < len(ends) <= _MOST_LABELS or max(len(line.label) for line, _, _ in ends) > 34:
        return
    left, right = ax.get_xlim()
    gap = 1.25 * _LABEL_SIZE * _POINT / (0.8 * height)
    within = ax.transScale + ax.transLimits  # from data to shares of the plot's width and height
    shares = [within.transform((x, y)) for _, x, y in ends]
    places = spread([float(share[1]) for share in shares], gap)
    for (line, x, y), share, place in zip(ends, shares, places or (), strict=places is not None):
        if share[0] < 0.94:
            ax.plot((x, right), (y, y), ":", color=line.color, linewidth=0.6, alpha=0.6, label="_", clip_on=False)
            x = right
        ax.annotate(
            set_as_math(line.label), (x, y), (1.02, place), "data", "axes fraction", va="center", size=_LABEL_SIZE,
            color=line.color, annotation_clip=False,
            arrowprops={
                "arrowstyle": "-", "color": line.color, "linewidth": 0.4, "relpos": (0, 0.5), "shrinkA": 0, "shrinkB": 1
            },
        )  # fmt: skip
    ax.set_xlim(left, right)


def _end(line: Line) -> tuple[float, float]:
    last = np.flatnonzero(np.isfinite(line.y))[-1]
    return float(line.x[last]), float(line.y[last])


def spread(places: Sequence[float], gap: float) -> list[float] | None:
    """Move places in [0, 1] as little as it takes that no two are nearer than `gap`; None if they do not fit.

    They keep their order. Without the gaps between them, as if labels had no height, it is a regression that never
    falls: those that would fall are pooled at their mean.
    """
    room = 1 - (len(places) - 1) * gap
    if room < 0:
        return None
    order = sorted(range(len(places)), key=lambda each: places[each])
    pools: list[list[float]] = []
    for rank, each in enumerate(order):
        pools.append([places[each] - rank * gap])
        while len(pools) > 1 and fmean(pools[-2]) > fmean(pools[-1]):
            pools[-2:] = [pools[-2] + pools[-1]]
    level = [min(max(fmean(pool), 0.0), room) for pool in pools for _ in pool]
    return [level[rank] + rank * gap for rank in map(order.index, range(len(places)))]
