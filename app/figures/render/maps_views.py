"""Draw Clouds, Maps and Heatmaps with Matplotlib (`draw_…`, for files) and Plotly (`plot_…`, for notebooks and HTML).

A `Cloud` is a scatter plot of the nodes (stored states) of the episodic memory, and `Maps` are clouds side by side. A
path connects the nodes that an episode retrieved. The code names it `Trace`; Plotly also names each layer a trace
(`add_trace`).

A `Heatmap` has one value for each combination of two settings. It shows the number in each cell and a star in the best
cell. Cells without a value are empty.

`plotly_view` draws a single cloud for Plotly. It uses `plot_points`, `plot_trace` and `plain` of this module.
"""

from collections.abc import Sequence
from math import ceil
from typing import Any

import numpy as np
import plotly.graph_objects as go
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, LogNorm, Normalize
from matplotlib.figure import Figure
from plotly.subplots import make_subplots

from app.figures.kinds.maps import Cloud, Grid, Heatmap, Maps, Trace, has_full_range
from app.figures.mathtext import format_mathtext
from app.figures.render.lines_view import set_round_ticks, set_title, spread, wrap_text
from app.figures.theme import NEUTRAL_COLOR

_CELL_INCHES = 0.62
"""Width and height of a cell of a heat map."""
_LABEL_INCHES = 0.5
"""Width of the labels of the y axis of a heat map."""
OPACITY_UNDER_TRACES = 0.35
"""Opacity of the nodes if the paths of episodes are drawn over them."""
_LABEL_GAP = 0.09
"""Smallest distance of two labels, as a fraction of the height of the map."""


def draw_maps(maps: Maps, width: float, *, has_title: bool = True) -> Figure:
    """Draw the panels with one color bar, side by side if the figure is wider than 4 inches."""
    columns = len(maps.panels) if width > 4 else 1
    rows = len(maps.panels) // columns
    figure = Figure(figsize=(width, 0.5 + rows * 0.82 * width / columns), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    first = maps.panels[0]
    color_scale = make_color_scale(first, maps.low, maps.high)
    for index, (ax, panel) in enumerate(zip(axes, maps.panels, strict=True)):
        trace = maps.find_trace(index)
        area = 3 if len(panel.x) < 20_000 else 1  # area of a dot [square typographic points]
        draw_points(ax, panel, color_scale, area=area, alpha=1.0 if trace is None else OPACITY_UNDER_TRACES)
        ax.set(xlabel=format_mathtext(panel.x_label), ylabel=format_mathtext(panel.y_label))
        ax.set_title(format_mathtext(wrap_text(panel.title, 0.8 * width / columns, 8)), loc="left", fontsize=8)
        if trace is not None:
            draw_traces(ax, [trace])
    add_color_bar(figure, color_scale, axes, first)
    if has_title:
        set_title(figure, maps.title)
    return figure


def draw_cloud(cloud: Cloud, width: float, *, has_title: bool = True) -> Figure:
    """Draw a cloud with its color bar, and the paths over it."""
    drawing = Figure(figsize=(width, 0.78 * width), layout="constrained")
    ax = drawing.subplots()
    color_scale = make_color_scale(cloud, cloud.low, cloud.high)
    alpha = OPACITY_UNDER_TRACES if cloud.traces else 1.0
    draw_points(ax, cloud, color_scale, area=4 if len(cloud.x) < 20_000 else 1, alpha=alpha)
    ax.set_xlabel(format_mathtext(cloud.x_label))
    ax.set_ylabel(format_mathtext(cloud.y_label))
    if has_title:
        set_title(drawing, cloud.title)
    add_color_bar(drawing, color_scale, [ax], cloud)
    if cloud.traces:
        draw_traces(ax, cloud.traces)
        drawing.legend(loc="outside lower center", ncols=1 if width < 4 else 2, frameon=False)
    return drawing


def add_color_bar(figure: Figure, color_scale: ScalarMappable, axes: Sequence[Axes], cloud: Cloud) -> None:
    """Draw the color bar of the quantity of a cloud at the right of the axes.

    Arrows at its ends mean that values beyond the ends have the colors of the ends.
    """
    is_cut = not cloud.quantity.is_binary and not has_full_range(cloud.quantity)
    bar = figure.colorbar(
        color_scale, ax=list(axes), label=format_mathtext(cloud.scale_label), extend="both" if is_cut else "neither"
    )
    set_round_ticks(bar.ax.yaxis, 6)


def make_color_scale(cloud: Cloud, low: float, high: float) -> ScalarMappable:
    """Make the color scale of a cloud from `low` to `high`, linear or logarithmic as its quantity."""
    norm = LogNorm(low, high) if cloud.quantity.is_log else Normalize(low, high)
    return ScalarMappable(norm, LinearSegmentedColormap.from_list(cloud.quantity.key, cloud.colors))


def draw_points(ax: Axes, cloud: Cloud, color_scale: ScalarMappable, *, area: float, alpha: float = 1.0) -> None:
    """Draw the nodes of a cloud as dots. `area` is the size of a dot [square typographic points].

    `no_effect` is the value at which the gate changes nothing, for example β = 1. If the quantity has such a value,
    nodes with it are gray, have half the area and are behind the others, whose area is doubled. A node without a value
    is not drawn.
    """
    colored = cloud.has_color
    no_effect = cloud.quantity.no_effect
    colored_area = area
    if no_effect is not None:
        gray = cloud.value == no_effect
        ax.scatter(
            cloud.x[gray], cloud.y[gray], color=NEUTRAL_COLOR, s=area / 2, linewidths=0, alpha=alpha, rasterized=True
        )
        colored_area = 2 * area
    ax.scatter(
        cloud.x[colored], cloud.y[colored], c=cloud.value[colored], s=colored_area,
        cmap=color_scale.cmap, norm=color_scale.norm,  # type: ignore[arg-type]  # the stubs know only a base class
        linewidths=0, alpha=alpha, rasterized=True,
    )  # fmt: skip


def plot_maps(maps: Maps) -> go.Figure:
    """Draw the panels side by side with one color bar."""
    titles = [panel.title.replace("<", "&lt;") for panel in maps.panels]  # Plotly reads `<` as the start of a tag
    figure = make_subplots(rows=1, cols=len(maps.panels), subplot_titles=titles)
    for index, panel in enumerate(maps.panels):
        trace = maps.find_trace(index)
        column = index + 1  # Plotly counts from 1
        opacity = 1.0 if trace is None else OPACITY_UNDER_TRACES
        for points in plot_points(panel, maps.low, maps.high, has_scale=index == 0, opacity=opacity):
            figure.add_trace(points, row=1, col=column)
        if trace is not None:
            figure.add_trace(plot_trace(trace), row=1, col=column)
        figure.update_xaxes(title_text=panel.x_label, row=1, col=column)
        figure.update_yaxes(title_text=panel.y_label, row=1, col=column)
    figure.update_layout(height=620, width=120 + 520 * len(maps.panels), showlegend=False)
    return figure


def plot_trace(trace: Trace) -> go.Scatter:
    """Return a path as a line with points. Their tooltips show Δ_mem, the consistency error of the memory [return]."""
    return go.Scatter(
        x=trace.x,
        y=trace.y,
        name=plain(trace.label),
        mode="lines+markers",
        line={"color": trace.color, "width": 2},
        customdata=np.stack([trace.t, trace.delta_mem], axis=1),
        hovertemplate="step %{customdata[0]}<br>Δ_mem %{customdata[1]:.3g}<extra></extra>",
    )


def draw_heatmap(heatmap: Heatmap, width: float, *, has_title: bool = True) -> Figure:
    """Draw the grids side by side, as many in a row as the width allows."""
    grid_width = _LABEL_INCHES + _CELL_INCHES * len(heatmap.x)
    grid_height = 0.8 + _CELL_INCHES * len(heatmap.y)
    columns = max(1, min(len(heatmap.grids), int(width // grid_width)))
    rows = max(1, ceil(len(heatmap.grids) / columns))
    height = (0.4 if has_title else 0.1) + rows * grid_height
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    low, high = heatmap.bounds
    color_scale = ScalarMappable(Normalize(low, high), LinearSegmentedColormap.from_list("scale", heatmap.colors))
    for ax, grid in zip(axes, heatmap.grids, strict=False):
        values = np.ma.masked_invalid(grid.values)
        ax.imshow(values, cmap=color_scale.cmap, vmin=low, vmax=high, origin="lower", aspect="auto")
        ax.set_xticks(range(len(heatmap.x)), heatmap.x)
        ax.set_yticks(range(len(heatmap.y)), heatmap.y)
        ax.set_xlabel(format_mathtext(heatmap.x_label))
        ax.set_title(format_mathtext(grid.title))
        for row, column, value, _n_seeds, best in grid.cells:
            color = heatmap.get_text_color(value)
            weight = "bold" if best else "normal"
            ax.text(column, row, f"{value:.3f}", fontweight=weight, ha="center", va="center", color=color)
            if best:  # a marker, because a font may not have the character ★
                ax.plot(column, row + 0.3, "*", color=color, markersize=7)
    for ax in axes[::columns]:
        ax.set_ylabel(format_mathtext(heatmap.y_label))
    for ax in axes[max(1, len(heatmap.grids)) :]:  # unused places; without a grid, the first axes are still drawn
        ax.set_axis_off()
    if has_title:
        set_title(figure, heatmap.title)
    figure.colorbar(color_scale, ax=list(axes), label=format_mathtext(heatmap.value_label), shrink=0.9)
    return figure


def plot_heatmap(heatmap: Heatmap) -> go.Figure:
    """Draw all grids in one row. The tooltip shows the number of runs of a cell."""
    columns = max(1, len(heatmap.grids))
    figure = make_subplots(rows=1, cols=columns, subplot_titles=[plain(grid.title) for grid in heatmap.grids])
    low, high = heatmap.bounds
    for column, grid in enumerate(heatmap.grids, 1):
        heat_layer = go.Heatmap(
            x=[plain(text) for text in heatmap.x],
            y=[plain(text) for text in heatmap.y],
            z=grid.values,
            customdata=grid.counts,
            colorscale=_make_plotly_scale(heatmap.colors),
            zmin=low,
            zmax=high,
            xgap=2,
            ygap=2,
            showscale=column == columns,
            colorbar={"title": {"text": plain(heatmap.value_label), "side": "right"}},
            hovertemplate="%{x}, %{y}: %{z:.3f} (n = %{customdata})<extra></extra>",
            hoverongaps=False,
        )
        figure.add_trace(heat_layer, row=1, col=column)
        _write_numbers(figure, heatmap, grid, column)
    figure.update_xaxes(title_text=plain(heatmap.x_label), type="category", showgrid=False)
    figure.update_yaxes(type="category", showgrid=False)
    figure.update_yaxes(title_text=plain(heatmap.y_label), row=1, col=1)
    figure.update_layout(height=180 + 70 * len(heatmap.y))
    return figure


def _make_plotly_scale(colors: Sequence[str]) -> list[list[float | str]]:
    """Return the colors at equal distances as pairs [position from 0 to 1, color]."""
    return [[index / (len(colors) - 1), color] for index, color in enumerate(colors)]


def plain(text: str) -> str:
    """Escape the markup of a text, so that Plotly shows its characters as they are."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def draw_traces(ax: Axes, traces: Sequence[Trace]) -> None:
    """Draw paths. The start, the end and the points with the largest Δ_mem of each have labels in the right margin.

    The labels do not overlap, and a line connects each label with its point. A point has one label.
    """
    labeled_points: list[tuple[Trace, int, str]] = []  # path, index of the point, label
    for trace in traces:
        on_map = np.isfinite(trace.x)
        line: dict[str, Any] = {"color": trace.color, "linewidth": 1.2, "marker": "o", "markersize": 3}
        ax.plot(trace.x[on_map], trace.y[on_map], label=format_mathtext(trace.label), **line)
        # the errors of `find_largest_errors` are Δ_mem
        labels = {int(i): f"t {trace.t[i]}, Δ_mem {trace.delta_mem[i]:.2g}" for i in trace.find_largest_errors()}
        if on_map.any():
            first_and_last = np.flatnonzero(on_map)[[0, -1]].tolist()
            for i, name in zip(first_and_last, ("start", "end"), strict=True):
                labels[i] = f"{name}, {labels[i]}" if i in labels else name
        labeled_points += [(trace, i, text) for i, text in labels.items()]
    if not labeled_points:  # no point of any path is on the map
        return
    low, high = ax.get_ylim()
    point_heights = [(float(trace.y[i]) - low) / ((high - low) or 1) for trace, i, _ in labeled_points]
    # `spread` moves the labels apart, so that they do not overlap. It returns None if there is not enough space for the
    # gap. Then the second call distributes the labels over the whole height.
    label_heights = spread(point_heights, _LABEL_GAP) or spread(point_heights, 1 / len(labeled_points)) or point_heights
    for (trace, i, text), y in zip(labeled_points, label_heights, strict=True):
        ax.annotate(
            format_mathtext(text), (trace.x[i], trace.y[i]), (1.03, y), "data",
            "axes fraction", fontsize=8, va="center", annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": trace.color, "linewidth": 0.5, "shrinkA": 0, "shrinkB": 2},
        )  # fmt: skip


def plot_points(cloud: Cloud, low: float, high: float, *, has_scale: bool, opacity: float) -> list[go.Scattergl]:
    """Return the nodes as layers of points, with the same colors as in `draw_points`."""
    colored = cloud.has_color
    no_effect = cloud.quantity.no_effect
    layers: list[go.Scattergl] = []
    value = cloud.value
    bar: dict[str, Any] = {"title": {"text": plain(cloud.scale_label)}}
    if cloud.quantity.is_log:
        # Plotly has no logarithmic color scale: the logarithms are colored, and the ticks are texts.
        ticks = np.geomspace(low, high, 5)
        bar |= {"tickvals": np.log10(ticks), "ticktext": [f"{tick:.2g}" for tick in ticks]}
        low = np.log10(low)
        high = np.log10(high)
    marker: dict[str, Any] = {
        "size": 4 if no_effect is None else 6,
        "color": np.log10(value[colored]) if cloud.quantity.is_log else value[colored],
        "opacity": opacity,
        "colorscale": _make_plotly_scale(cloud.colors),
        "cmin": low,
        "cmax": high,
        "showscale": has_scale,
        "colorbar": bar,
    }
    groups = [(colored, marker)]
    if no_effect is not None:
        groups.insert(0, (value == no_effect, {"size": 3, "color": NEUTRAL_COLOR, "opacity": opacity}))
    for rows, style in groups:
        layers.append(
            go.Scattergl(
                x=cloud.x[rows], y=cloud.y[rows], mode="markers", marker=style,
                customdata=np.stack([cloud.slot[rows], value[rows]], axis=1),
                hovertemplate="memory %{customdata[0]}<br>value %{customdata[1]:.4g}<extra></extra>",
            )
        )  # fmt: skip
    return layers


def _write_numbers(figure: go.Figure, heatmap: Heatmap, grid: Grid, panel_column: int) -> None:
    """Write the value into each measured cell of a grid."""
    for row, column, value, _n_seeds, best in grid.cells:
        figure.add_annotation(
            x=column,
            y=row,
            text=f"<b>★ {value:.3f}</b>" if best else f"{value:.3f}",
            showarrow=False,
            font={"color": heatmap.get_text_color(value)},
            row=1,
            col=panel_column,
        )
