"""Maps and heat maps drawn by Matplotlib (files) and Plotly (notebooks, HTML).

A heat map has the number in each cell and a star at the best; empty cells stay empty.
"""

from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from plotly.subplots import make_subplots

from app.figures.kinds.maps import Cloud, Grid, Heatmap, Maps, Trace
from app.figures.render.lines_view import set_title, spread
from app.figures.theme import NEUTRAL, set_as_math

if TYPE_CHECKING:
    import plotly.graph_objects as go
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure


def draw_maps(maps: Maps, width: float) -> Figure:
    """Draw the panels side by side over one colour bar."""
    columns = len(maps.panels) if width > 4 else 1
    rows = -(-len(maps.panels) // columns)
    drawn = Figure(figsize=(width, 0.5 + rows * 0.82 * width / columns), layout="constrained")
    axes = list(drawn.subplots(rows, columns, squeeze=False).flat)
    first = maps.panels[0]
    scale = ScalarMappable(
        Normalize(maps.low, maps.high), LinearSegmentedColormap.from_list(first.quantity.key, first.colors)
    )
    for place, (ax, panel) in enumerate(zip(axes, maps.panels, strict=True)):
        trace = maps.find_trace(place)
        _draw_points(ax, panel, scale, faint=trace is not None)
        if trace is not None:
            _draw_trace(ax, trace)
    drawn.colorbar(scale, ax=list(axes), label=set_as_math(first.value_label))
    set_title(drawn, maps.title)
    return drawn


def _draw_points(ax: Axes, panel: Cloud, scale: ScalarMappable, *, faint: bool) -> None:
    ax.scatter(
        panel.x,
        panel.y,
        c=panel.value,
        s=3 if len(panel.x) < 20_000 else 1,
        linewidths=0,
        alpha=0.35 if faint else 1.0,
        cmap=scale.cmap,
        vmin=scale.get_clim()[0],
        vmax=scale.get_clim()[1],
        plotnonfinite=False,
        rasterized=True,
    )
    ax.set(xlabel=set_as_math(panel.x_label), ylabel=set_as_math(panel.y_label))
    ax.set_title(fill(panel.title, 44), loc="left", fontsize=8)


def _draw_trace(ax: Axes, trace: Trace) -> None:
    """Draw a path with its start, its end and its largest errors named; a place has one label for all it is."""
    on_map = np.isfinite(trace.x)
    ax.plot(trace.x[on_map], trace.y[on_map], color=trace.color, linewidth=1.2, marker="o", markersize=3)
    said = {
        int(place): f"t {trace.t[place]}, Δ_mem {trace.delta_mem[place]:.2g}" for place in trace.find_largest_errors()
    }
    for place, name in zip(np.flatnonzero(on_map)[[0, -1]], ("start", "end"), strict=True) if on_map.any() else ():
        said[int(place)] = f"{name}, {said[int(place)]}" if int(place) in said else name
    _write_beside(ax, trace, said)


def _write_beside(ax: Axes, trace: Trace, said: dict[int, str]) -> None:
    """Stand labels in the margin right of the map, each joined to its place: none lies on data or on another."""
    order = sorted(said, key=lambda place: trace.y[place])
    low, high = ax.get_ylim()
    wanted = [(float(trace.y[place]) - low) / ((high - low) or 1) for place in order]
    places = spread(wanted, 0.09) or wanted
    for place, y in zip(order, places, strict=True):
        ax.annotate(
            set_as_math(said[place]), (trace.x[place], trace.y[place]), (1.03, y), "data",
            "axes fraction", fontsize=8, va="center", annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": trace.color, "linewidth": 0.5, "shrinkA": 0, "shrinkB": 2},
        )  # fmt: skip


def plot_maps(maps: Maps) -> go.Figure:
    """Draw the panels side by side over one colour bar."""
    titles = [panel.title.replace("<", "&lt;") for panel in maps.panels]
    drawn = make_subplots(rows=1, cols=len(maps.panels), subplot_titles=titles)
    for place, panel in enumerate(maps.panels):
        trace = maps.find_trace(place)
        drawn.add_trace(_points(maps, panel, scale=place == 0, faint=trace is not None), row=1, col=place + 1)
        if trace is not None:
            drawn.add_trace(_path(trace), row=1, col=place + 1)
        drawn.update_xaxes(title_text=panel.x_label, row=1, col=place + 1)
        drawn.update_yaxes(title_text=panel.y_label, row=1, col=place + 1)
    drawn.update_layout(height=620, width=120 + 520 * len(maps.panels), showlegend=False)
    return drawn


def _points(maps: Maps, panel: Cloud, *, scale: bool, faint: bool) -> go.Scattergl:
    marker: dict[str, Any] = {
        "size": 4,
        "color": panel.value,
        "opacity": 0.35 if faint else 1.0,
        "colorscale": [[i / (len(panel.colors) - 1), color] for i, color in enumerate(panel.colors)],
        "cmin": maps.low,
        "cmax": maps.high,
        "showscale": scale,
        "colorbar": {"title": {"text": panel.value_label}},
        "line": {"width": 0, "color": NEUTRAL},
    }
    hover = "memory %{customdata}<br>value %{marker.color:.4g}<extra></extra>"
    return go.Scattergl(x=panel.x, y=panel.y, mode="markers", customdata=panel.slot, marker=marker, hovertemplate=hover)


def _path(trace: Trace) -> go.Scatter:
    return go.Scatter(
        x=trace.x,
        y=trace.y,
        mode="lines+markers",
        line={"color": trace.color, "width": 2},
        customdata=np.stack([trace.t, trace.delta_mem], axis=1),
        hovertemplate="step %{customdata[0]}<br>Δ_mem %{customdata[1]:.3g}<extra></extra>",
    )


_CELL_INCHES = 0.62


def draw_heatmap(heatmap: Heatmap, width_inches: float) -> "Figure":
    """Draw all grids in one row."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LinearSegmentedColormap, Normalize
    from matplotlib.figure import Figure

    from app.figures.render.lines_view import set_title

    drawn = Figure(figsize=(width_inches, 1.5 + _CELL_INCHES * len(heatmap.y)), layout="constrained")
    axes = drawn.subplots(1, max(1, len(heatmap.grids)), squeeze=False)[0]
    scale = ScalarMappable(Normalize(*heatmap.bounds), LinearSegmentedColormap.from_list("scale", heatmap.colors))
    for ax, grid in zip(axes, heatmap.grids, strict=False):
        _draw_axes(ax, heatmap, grid, scale)
    axes[0].set_ylabel(set_as_math(heatmap.y_label))
    set_title(drawn, heatmap.title)
    drawn.colorbar(scale, ax=list(axes), label=set_as_math(heatmap.value_label), shrink=0.9)
    return drawn


def _draw_axes(ax: "Axes", heatmap: Heatmap, grid: Grid, scale: "ScalarMappable") -> None:
    import numpy as np

    low, high = heatmap.bounds
    ax.imshow(np.ma.masked_invalid(grid.values), cmap=scale.cmap, vmin=low, vmax=high, origin="lower", aspect="auto")
    ax.set_xticks(range(len(heatmap.x)), heatmap.x)
    ax.set_yticks(range(len(heatmap.y)), heatmap.y)
    ax.set_xlabel(set_as_math(heatmap.x_label))
    ax.set_title(set_as_math(grid.title))
    for y, x, value, _, best in grid.cells:
        ink, weight = heatmap.get_text_color(value), "bold" if best else "normal"
        ax.text(x, y, f"{value:.3f}", fontweight=weight, ha="center", va="center", color=ink)
        if best:  # drawn, not written: a font may lack the sign
            ax.plot(x, y + 0.3, "*", color=ink, markersize=7)


def plot_heatmap(heatmap: Heatmap) -> "go.Figure":
    """Draw all grids in one row; hovering says how many runs a cell rests on."""
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    columns = max(1, len(heatmap.grids))
    drawn = make_subplots(rows=1, cols=columns, subplot_titles=[plain(grid.title) for grid in heatmap.grids])
    low, high = heatmap.bounds
    for column, grid in enumerate(heatmap.grids, 1):
        trace = go.Heatmap(
            x=[plain(text) for text in heatmap.x],
            y=[plain(text) for text in heatmap.y],
            z=grid.values,
            customdata=grid.counts,
            colorscale=[[i / (len(heatmap.colors) - 1), c] for i, c in enumerate(heatmap.colors)],
            zmin=low,
            zmax=high,
            xgap=2,
            ygap=2,
            showscale=column == columns,
            colorbar={"title": {"text": plain(heatmap.value_label), "side": "right"}},
            hovertemplate="%{x}, %{y}: %{z:.3f} (n = %{customdata})<extra></extra>",
            hoverongaps=False,
        )
        drawn.add_trace(trace, row=1, col=column)
        _write_numbers(drawn, heatmap, grid, column)
    drawn.update_xaxes(title_text=plain(heatmap.x_label), type="category", showgrid=False)
    drawn.update_yaxes(type="category", showgrid=False)
    drawn.update_yaxes(title_text=plain(heatmap.y_label), row=1, col=1)
    drawn.update_layout(height=180 + 70 * len(heatmap.y))
    return drawn


def _write_numbers(drawn: "go.Figure", heatmap: Heatmap, grid: Grid, column: int) -> None:
    for y, x, value, _, best in grid.cells:
        drawn.add_annotation(
            x=x,
            y=y,
            text=f"<b>★ {value:.3f}</b>" if best else f"{value:.3f}",
            showarrow=False,
            font={"color": heatmap.get_text_color(value)},
            row=1,
            col=column,
        )


def plain(text: str) -> str:
    """Keep Plotly's small markup language from reading names as markup."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
