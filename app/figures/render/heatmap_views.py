"""Draw a Heatmap with Matplotlib and with Plotly: the number in each cell, a star at the best, empty cells empty."""

from typing import TYPE_CHECKING

from app.figures.kinds.heatmap import Grid, Heatmap
from app.figures.theme import set_as_math

if TYPE_CHECKING:  # each library is loaded by its own caller
    import plotly.graph_objects as go
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure

_CELL_INCHES = 0.62


def draw_matplotlib(heatmap: Heatmap, width_inches: float) -> "Figure":
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
        ink, weight = heatmap.ink_at(value), "bold" if best else "normal"
        ax.text(x, y, f"{value:.3f}", fontweight=weight, ha="center", va="center", color=ink)
        if best:  # drawn, not written: a font may lack the sign
            ax.plot(x, y + 0.3, "*", color=ink, markersize=7)


def draw_plotly(heatmap: Heatmap) -> "go.Figure":
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
            font={"color": heatmap.ink_at(value)},
            row=1,
            col=column,
        )


def plain(text: str) -> str:
    """Keep Plotly's small markup language from reading names as markup."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
