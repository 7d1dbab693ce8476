"""Draw a Chart with Matplotlib: panels, legends outside the plot area, and names at the ends of lines.

Other modules that draw with Matplotlib use `set_title`, `wrap_text`, `spread` and `set_round_ticks`.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from math import ceil
from statistics import fmean
from textwrap import wrap

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.textpath import text_to_path
from matplotlib.ticker import EngFormatter, MaxNLocator

from app.figures.color_math import make_text_color
from app.figures.image_options import LineNames
from app.figures.kinds.chart import Chart, LegendKey, Line, Panel, Values
from app.figures.mathtext import format_mathtext, replace_unprintable
from app.figures.theme import Marker

_POINT = 1 / 72
"""One typographic point in inches."""
_LEGEND_SIZE = 8  # font size [points]
_LABEL_SIZE = 8
_AXIS_SIZE = 9
_STACKED_PANEL_HEIGHT = 1.35
"""Height of a panel in a stack [inch]."""
_LEGEND_KEY_WIDTH = 5.5 * _LEGEND_SIZE * _POINT
"""Width of the sample of a line in a legend, with the spaces around it [inch]."""
_AXES_MARGIN = 0.9
"""Width of the labels at the left of the axes [inch]."""
_MAX_END_LABELS = 8
"""Largest number of names at the ends of lines."""
_MAX_LABEL_LENGTH = 34
"""Largest length of such a name [characters]."""
_MAX_LABEL_SHARE = 0.35
"""Largest width of such a name, as a fraction of the width of the figure."""
_MAX_VALUE = 1e150
"""Larger values are not drawn, because the axes of Matplotlib overflow."""
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


def draw_chart(chart: Chart, width: float, *, has_title: bool = True, line_names: LineNames = "auto") -> Figure:
    """Draw a chart. Panels in one column are stacked above a common x axis. Otherwise each panel has an x axis.

    Args:
        chart: The chart.
        width: Width of the figure [inch].
        has_title: Whether title and subtitle are drawn.
        line_names: How lines are named. legend: by a legend; labels: by labels at their ends, or by a legend if these
            do not fit; auto: as "labels" in a wide figure of one panel, otherwise as "legend".
    """
    panels = tuple(replace(panel, lines=tuple(map(_remove_huge_values, panel.lines))) for panel in chart.panels)
    chart = replace(chart, panels=panels)
    # has_labels: labels at the ends of the lines are drawn if they fit
    if len(chart.panels) > 1 and chart.columns == 1:
        figure = _draw_stack(chart, width, has_title=has_title, has_labels=line_names == "labels")
    else:
        columns = min(chart.columns, max(1, int(width // 2)))
        has_labels = line_names == "labels" or (line_names == "auto" and columns == 1 and width > 4)
        figure = _draw_grid(chart, width, columns, has_title=has_title, has_labels=has_labels)
    if has_title:
        has_legend = bool(figure.legends) or any(ax.get_legend() for ax in figure.axes)
        subtitles = [chart.subtitle, "" if has_legend else _find_common_count(chart)]
        set_title(figure, chart.title, "; ".join(filter(None, subtitles)))
    return figure


def _find_common_count(chart: Chart) -> str:
    """Return "n = 3" if the names of all lines contain this number of seeds, otherwise an empty text."""
    counts = {line.seed_count for _, line in chart.panel_lines if not line.faint}
    return counts.pop() if len(counts) == 1 else ""


def set_title(figure: Figure, title: str, subtitle: str = "") -> None:
    """Write title and subtitle at the top left, each in as many lines of text as it needs."""
    width, height = figure.get_size_inches()
    top_margin = 0.04
    for text, size, weight in ((title, 9, "bold"), (subtitle, 8, "normal")):
        if text:
            wrapped = wrap_text(text, width - 0.1, size, weight=weight)
            x = 0.05 / width
            y = 1 - top_margin / height
            figure.text(x, y, format_mathtext(wrapped), ha="left", va="top", fontsize=size, fontweight=weight)
            top_margin += 1.3 * size * _POINT * (wrapped.count("\n") + 1)
    engine = figure.get_layout_engine()
    if isinstance(engine, ConstrainedLayoutEngine):
        engine.set(rect=(0, 0, 1, 1 - top_margin / height))


def wrap_text(text: str, width: float, size: float, *, weight: str = "normal") -> str:
    """Wrap a text so that each line fits into a width. "n = 3" is not divided, but a word that is too long is divided.

    Args:
        text: The text, before its symbols become mathtext.
        width: The width [inch].
        size: Font size [points].
        weight: Font weight.
    """
    unbroken = text.replace(" = ", "\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}")
    # Try shorter and shorter lines. An average character is wider than 0.3 of the font size.
    max_characters = min(len(text), int(width / (0.3 * size * _POINT)))
    for n_characters in range(max_characters, 0, -1):
        lines = wrap(unbroken, n_characters, break_on_hyphens=False)
        if all(_measure(line, size, weight) <= width for line in lines):
            return "\n".join(lines).replace("\N{NO-BREAK SPACE}", " ")
    return text


def _measure(text: str, size: float, weight: str = "normal") -> float:
    """Measure the width of a line of text [inch]."""
    return _measure_text(replace_unprintable(text), FontProperties(size=size, weight=weight))


@lru_cache(maxsize=10_000)
def _measure_text(text: str, font: FontProperties) -> float:
    return text_to_path.get_text_width_height_descent(text, font, ismath=False)[0] * _POINT


def spread(positions: Sequence[float], gap: float) -> list[float] | None:
    """Move positions in [0, 1] as little as possible, so that their distance is at least `gap`.

    The order stays the same. Subtract rank × gap from each position. The distances are at least `gap` if the results do
    not decrease with the rank. So an isotonic regression is computed: neighbors in descending order get their mean.

    Returns:
        The new positions, or None if there is not enough space.
    """
    space = 1 - (len(positions) - 1) * gap
    if space < 0:
        return None
    order = sorted(range(len(positions)), key=lambda i: positions[i])
    pools: list[list[float]] = []
    for rank, i in enumerate(order):
        pools.append([positions[i] - rank * gap])
        while len(pools) > 1 and fmean(pools[-2]) > fmean(pools[-1]):
            pools[-2:] = [pools[-2] + pools[-1]]
    means = [fmean(pool) for pool in pools for _ in pool]  # one for each rank
    levels = [min(max(mean, 0.0), space) for mean in means]  # so all positions stay in [0, 1]
    ranks = [order.index(i) for i in range(len(positions))]
    return [levels[rank] + rank * gap for rank in ranks]


def _remove_huge_values(line: Line) -> Line:
    def remove(values: Values) -> Values:
        return np.where(np.abs(values) < _MAX_VALUE, values, np.nan)

    low, high = (None if values is None else remove(values) for values in (line.low, line.high))
    return replace(line, y=remove(line.y), low=low, high=high)


def set_round_ticks(axis: Axis, n: int) -> None:
    """Put the ticks of a linear axis at multiples of 1, 2 or 5 times a power of 10, with at most `n` intervals."""
    if axis.get_scale() == "linear":
        axis.set_major_locator(MaxNLocator(n, steps=[1, 2, 5, 10]))


def _draw_stack(chart: Chart, width: float, *, has_title: bool, has_labels: bool) -> Figure:
    """Draw panels below each other, above a common x axis, each with labels at its lines or a legend."""
    panel_heights = []
    for panel in chart.panels:
        names = [line.name for line in panel.lines if not line.faint]
        panel_heights.append(_STACKED_PANEL_HEIGHT + _compute_legend_height(names, width - _AXES_MARGIN))
    figure = Figure(figsize=(width, (0.9 if has_title else 0.5) + sum(panel_heights)), layout="constrained")
    axes = figure.subplots(len(chart.panels), 1, sharex=True, squeeze=False)[:, 0]
    for ax, panel in zip(axes, chart.panels, strict=True):
        ax.set_xscale("log" if chart.x_log else "linear")
        handles = _draw_panel(ax, panel, _STACKED_PANEL_HEIGHT)
        needs_legend = len(handles) > 1
        if needs_legend and has_labels:
            needs_legend = not _draw_end_labels(ax, panel, _STACKED_PANEL_HEIGHT, width, has_title=has_title)
        if needs_legend:
            options = {"loc": "lower left", "bbox_to_anchor": (0, 1), "borderaxespad": 0.2, "frameon": False}
            texts, columns = _lay_out_legend([key.name for key in handles], width - _AXES_MARGIN)
            ax.legend(list(handles.values()), texts, ncols=columns, **options)
        _draw_marks(ax, chart, with_labels=ax is axes[0])
    axes[-1].set_xlabel(format_mathtext(wrap_text(chart.x_label, width - _AXES_MARGIN, _AXIS_SIZE)))
    _format_step_axis(axes[-1], chart, n_ticks=5 if width < 4 else 8)
    return figure


def _draw_grid(chart: Chart, width: float, columns: int, *, has_title: bool, has_labels: bool) -> Figure:
    """Draw panels side by side, each with an x axis, above a common legend. A single panel may have labels instead."""
    rows = ceil(len(chart.panels) / columns)
    names = [key.name for key in dict.fromkeys(line.legend_key for _, line in chart.panel_lines if not line.faint)]
    legend_height = _compute_legend_height(names, width) + 0.1 if len(names) > 1 else 0.0
    panel_height = min(2.6, 0.62 * width) if columns == 1 else 2.0
    title_height = 0.7 if has_title else 0.3
    n_ticks = 5 if width < 4 else 8
    if columns > 1:
        n_ticks = 4
    figure = Figure(figsize=(width, title_height + panel_height * rows + legend_height), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    handles: dict[LegendKey, Artist] = {}
    for ax, panel in zip(axes, chart.panels, strict=False):
        ax.set_xscale("log" if chart.x_log else "linear")
        if len(chart.panels) > 1:
            title = wrap_text(panel.title, 0.7 * width / columns, _LABEL_SIZE, weight="bold")
            ax.set_title(format_mathtext(title), loc="left", fontsize=_LABEL_SIZE, fontweight="bold")
            panel = replace(panel, title=panel.axis or panel.title)
        handles |= _draw_panel(ax, panel, panel_height)
        _draw_marks(ax, chart, with_labels=True)
        ax.set_xlabel(format_mathtext(wrap_text(chart.x_label, width / columns - _AXES_MARGIN, _AXIS_SIZE)))
        _format_step_axis(ax, chart, n_ticks=n_ticks)
    for ax in axes[len(chart.panels) :]:
        ax.set_axis_off()
    needs_legend = len(names) > 1
    if has_labels and len(chart.panels) == 1:
        is_labeled = _draw_end_labels(axes[0], chart.panels[0], panel_height, width, has_title=has_title)
        needs_legend = needs_legend and not is_labeled
    if needs_legend:
        texts, legend_columns = _lay_out_legend(names, width)
        figure.legend(list(handles.values()), texts, loc="outside lower center", ncols=legend_columns, frameon=False)
    return figure


def _draw_marks(ax: Axes, chart: Chart, *, with_labels: bool) -> None:
    """Draw a vertical line at each of the chart's marks, for example at the steps at which a run was resumed."""
    for mark in chart.marks:
        ax.axvline(mark.x, linestyle=":", linewidth=0.8, color="0.5")
        if with_labels:
            # 3 points to the right of the line and below the upper edge
            position = ((mark.x, 1), (3, -3), ("data", "axes fraction"), "offset points")
            ax.annotate(format_mathtext(mark.label), *position, va="top", size=_LABEL_SIZE)


def _lay_out_legend(names: Sequence[str], width: float) -> tuple[list[str], int]:
    """Wrap the names of a legend of this width [inch], and count how many entries fit side by side, at most 4."""
    wrapped = [wrap_text(name, width - _LEGEND_KEY_WIDTH, _LEGEND_SIZE) for name in names]
    longest = max((_measure(line, _LEGEND_SIZE) for text in wrapped for line in text.split("\n")), default=0.0)
    columns = max(1, min(len(names) or 1, 4, int(width / (longest + _LEGEND_KEY_WIDTH))))
    return list(map(format_mathtext, wrapped)), columns


def _compute_legend_height(names: Sequence[str], width: float) -> float:
    """Compute the height of a legend of this width [inch]; 0 if there is only one name."""
    if len(names) < 2:
        return 0.0
    texts, columns = _lay_out_legend(names, width)
    n_rows = ceil(len(texts) / columns)
    columns_of_texts = [texts[i : i + n_rows] for i in range(0, len(texts), n_rows)]
    n_text_lines = max(sum(text.count("\n") + 1 for text in column) for column in columns_of_texts)
    return 0.18 * n_text_lines  # 0.18 inches per line of text


def _format_step_axis(ax: Axes, chart: Chart, *, n_ticks: int) -> None:
    """Set round ticks on x. Write numbers such as 50k and 2M if x is a number of env steps or episodes."""
    set_round_ticks(ax.xaxis, n_ticks)
    if chart.x_label.endswith(("env steps", "episodes")):
        ax.xaxis.set_major_formatter(EngFormatter(sep=""))


def _draw_panel(ax: Axes, panel: Panel, height: float) -> dict[LegendKey, Artist]:
    """Draw a panel of this height [inch]. Return the lines that a legend contains."""
    ax.set_yscale("log" if panel.log else "linear")
    handles: dict[LegendKey, Artist] = {}
    for index, line in enumerate(panel.lines):
        artist = _draw_line(ax, line, band_opacity=panel.band_opacity, index=index)
        if not line.faint:
            handles[line.legend_key] = artist
    title = wrap_text(panel.title, height, _AXIS_SIZE)
    ax.set_ylabel(format_mathtext(f"{title}\n[{panel.unit}]" if panel.unit else title))
    ax.grid(visible=True, linewidth=0.5)
    ax.set_axisbelow(True)
    if panel.range:
        ax.set_ylim(*panel.range)
    elif panel.from_zero:
        has_negative_values = any(np.nanmin(line.y, initial=0) < 0 for line in panel.lines)
        ax.set_ylim(bottom=min(0, ax.get_ylim()[0]) if has_negative_values else 0)
    set_round_ticks(ax.yaxis, 6)
    return handles


def _draw_line(ax: Axes, line: Line, *, band_opacity: float, index: int) -> Artist:
    """Draw a line with its band. `index` is its position in the panel."""
    style = (0, (line.dash[0] / 2, line.dash[1] / 2)) if line.dash else "-"
    # A short line without a marker in its style, and a line with `markers`, have a marker at each point. Another line
    # has its style's marker at about 8 points.
    has_few_points = len(line.x) < 40 and not line.faint
    shape = _SHAPES.get(line.marker, "o" if line.markers or has_few_points else "")
    marks_every_point = line.markers or (has_few_points and not line.marker)
    interval = 1 if marks_every_point else max(2, len(line.x) // 8)
    first = 0 if marks_every_point else index % interval  # different for each line, so that markers do not overlap
    width = 0.0
    if line.width:
        width = 0.6 if line.faint else 1.4  # only pages draw other widths
    marker_size = 3.5 if has_few_points or len(line.x) < 3 else 2.5
    if line.marker and line.marker != "circle":
        marker_size = 4.5
    (artist,) = ax.plot(
        line.x,
        line.y,
        linestyle=style,
        color=line.color,
        linewidth=width,
        alpha=0.4 if line.faint else 1.0,
        marker=shape,
        markevery=(first, interval),
        zorder=2.1 if line.dash else 2,  # a solid line is visible in the gaps of a dashed line in front of it
        markeredgecolor=ax.get_facecolor(),
        markeredgewidth=0.4 if line.marker else 0.0,
        markersize=marker_size,
    )
    if line.low is not None and line.high is not None:
        ax.fill_between(line.x, line.low, line.high, color=line.color, alpha=band_opacity, linewidth=0)
    return artist


def _draw_end_labels(ax: Axes, panel: Panel, height: float, width: float, *, has_title: bool) -> bool:
    """Write the name of each line in the right margin, if all names fit.

    A dotted line connects the end of a line that ends before the margin with its name.

    The number of seeds is part of the names if it differs between the lines, or if the figure has no subtitle.

    Args:
        ax: The axes with the lines.
        panel: The panel.
        height: Height of the panel [inch].
        width: Width of the figure [inch].
        has_title: Whether the figure has a title and a subtitle.

    Returns:
        Whether all lines have a name in the margin.
    """
    main_lines = [line for line in panel.lines if not line.faint]
    has_counts = not has_title or len({line.seed_count for line in main_lines}) > 1
    ends = []  # line, name, x and y of its last point
    for line in main_lines:
        finite = np.flatnonzero(np.isfinite(line.y))
        count = f" ({line.seed_count})" if line.seed_count and has_counts else ""
        text = f"{line.label}{count}"
        if line.label and len(finite):
            ends.append((line, text, float(line.x[finite[-1]]), float(line.y[finite[-1]])))
    longest = max((len(text) for _, text, _, _ in ends), default=0)
    character_width = 0.56 * _LABEL_SIZE * _POINT
    max_length = min(_MAX_LABEL_LENGTH, _MAX_LABEL_SHARE * width / character_width)
    # The names do not fit if a line has no name or no point, or if there are too many or too long names.
    all_have_names = len(ends) == len(main_lines)
    if not all_have_names or not 2 <= len(ends) <= _MAX_END_LABELS or longest > max_length:
        return False
    left, right = ax.get_xlim()
    gap = 1.25 * _LABEL_SIZE * _POINT / (0.8 * height)  # fraction of the axes, whose height is about 0.8 of the panel
    to_axes_fraction = ax.transScale + ax.transLimits
    fractions = [to_axes_fraction.transform((x, y)) for _, _, x, y in ends]
    label_positions = spread([float(y) for _, y in fractions], gap)
    if label_positions is None:
        return False
    for (line, text, x, y), (x_fraction, _), label_y in zip(ends, fractions, label_positions, strict=True):
        if x_fraction < 0.94:  # the line ends before the right margin
            ax.plot((x, right), (y, y), ":", color=line.color, linewidth=0.6, alpha=0.6, clip_on=False)
            x = right
        ax.annotate(
            format_mathtext(text), (x, y), (1.02, label_y), "data", "axes fraction", va="center",
            size=_LABEL_SIZE,
            color=make_text_color(line.color, to_hex(ax.get_facecolor())), annotation_clip=False,
            arrowprops={
                "arrowstyle": "-", "color": line.color, "linewidth": 0.4, "relpos": (0, 0.5), "shrinkA": 0, "shrinkB": 1
            },
        )  # fmt: skip
    ax.set_xlim(left, right)
    return True
