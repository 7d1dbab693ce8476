"""Draw a Chart or a Cloud with Plotly: notebooks and the interactive HTML export."""

from collections.abc import Sequence
from html import escape
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from app.figures.kinds import AnyFigure
from app.figures.kinds.chart import Chart, Line, Panel
from app.figures.kinds.maps import Cloud, Heatmap, Maps
from app.figures.render import maps_views
from app.figures.render.maps_views import plain
from app.figures.theme import Mode, ink


def to_plotly(figure: AnyFigure, *, mode: Mode = "light") -> go.Figure:
    """Draw the figure; text is shown as text, whatever it contains."""
    drawn = _draw(figure)
    text, background, grid = ink(mode)
    axis: dict[str, Any] = {"gridcolor": grid, "zerolinecolor": grid, "linecolor": grid}
    drawn.update_layout(
        font={"color": text, "family": "sans-serif", "size": 13},
        paper_bgcolor=background,
        plot_bgcolor=background,
        hovermode="x unified" if isinstance(figure, Chart) else "closest",
        margin={"l": 80, "r": 30, "t": 100 if isinstance(figure, Chart) and figure.columns > 1 else 70, "b": 60},
        title={"text": plain(figure.title), "x": 0.01, **_subtitle(figure)},
    )
    drawn.update_xaxes(**axis)
    drawn.update_yaxes(**axis)
    return drawn


def _subtitle(figure: AnyFigure) -> dict[str, Any]:
    said = figure.subtitle if isinstance(figure, Chart) else ""
    return {"subtitle": {"text": plain(said)}} if said else {}


def to_html(figure: AnyFigure, *, mode: Mode = "light", sources: Sequence[str] = ()) -> bytes:
    """Write one self-contained page that needs no network; its head names caption and sources."""
    page = to_plotly(figure, mode=mode).to_html(include_plotlyjs=True, full_html=True)
    said = {"description": figure.caption, "keywords": "; ".join(sources)}
    meta = "".join(f'<meta name="{name}" content="{escape(text)}">' for name, text in said.items())
    return page.replace("<head>", f"<head>{meta}<title>{escape(figure.title)}</title>", 1).encode()


def _draw(figure: AnyFigure) -> go.Figure:
    if isinstance(figure, Heatmap):
        return maps_views.plot_heatmap(figure)
    if isinstance(figure, Maps):
        return maps_views.plot_maps(figure)
    return _draw_chart(figure) if isinstance(figure, Chart) else _draw_cloud(figure)


def _draw_chart(chart: Chart) -> go.Figure:
    rows = -(-len(chart.panels) // chart.columns)
    titles = [f"<b>{plain(panel.title)}</b>" for panel in chart.panels] if chart.columns > 1 else None
    drawn = make_subplots(
        rows=rows, cols=chart.columns, shared_xaxes=chart.columns == 1, vertical_spacing=_apart(rows, titles),
        subplot_titles=titles,
    )  # fmt: skip
    drawn.update_annotations(font_size=13)  # the panels' titles
    named: set[str] = set()
    for place, panel in enumerate(chart.panels):
        row, col = place // chart.columns + 1, place % chart.columns + 1
        for line in panel.lines:
            legend = chart.columns == 1 or line.name not in named
            _draw_line(drawn, row, col, line, legend=legend, band=panel.band_opacity)
            named.add(line.name)
        drawn.update_yaxes(
            title_text=plain(axis_title(panel, named=titles is not None)), row=row, col=col, range=panel.range,
            type="log" if panel.log else None,
        )  # fmt: skip
        if chart.columns > 1 or row == rows:
            drawn.update_xaxes(title_text=plain(chart.x_label), row=row, col=col)
    if chart.x_log:
        drawn.update_xaxes(type="log")
    for mark in chart.marks:
        drawn.add_vline(x=mark.x, line_dash="dot", annotation_text=plain(mark.label))
    drawn.update_layout(height=140 + (220 if chart.columns == 1 else 300) * rows)
    return drawn


def _apart(rows: int, titles: Sequence[str] | None) -> float:
    """How far rows of panels stand apart, as a share of the height: below an axis of its own there is a title too."""
    return min(0.06 if rows < 8 else 0.01, 1 / rows) if titles is None else 0.24 / rows


def axis_title(panel: Panel, *, named: bool = False) -> str:
    """A y axis's title, with its unit; less of it where the panel is `named` above."""
    title = (panel.axis if named else "") or panel.title
    return f"{title} [{panel.unit}]" if panel.unit else title


def _draw_line(drawn: go.Figure, row: int, col: int, line: Line, *, legend: bool, band: float) -> None:
    if line.low is not None and line.high is not None:
        edge = {"x": line.x, "line": {"width": 0}, "showlegend": False, "hoverinfo": "skip", "mode": "lines"}
        drawn.add_trace(go.Scatter(y=line.low, **edge), row=row, col=col)
        fill = _see_through(line.color, band)
        drawn.add_trace(go.Scatter(y=line.high, fill="tonexty", fillcolor=fill, **edge), row=row, col=col)
    drawn.add_trace(
        go.Scatter(
            x=line.x,
            y=line.y,
            name=plain(line.name),
            mode=_mode(line),
            line={"color": line.color, "width": line.width, "dash": _dash(line)},
            marker=_marker(line),
            opacity=0.4 if line.faint else 1.0,
            showlegend=legend and not line.faint,
            hoverinfo="skip" if line.faint else None,
            legendgroup=plain(line.name),
        ),
        row=row,
        col=col,
    )


def _marker(line: Line) -> dict[str, Any]:
    here_and_there = {"maxdisplayed": 12} if line.marker and not line.markers and len(line.x) >= 40 else {}
    return {"symbol": line.marker or "circle", "size": 8 if line.marker else 6, **here_and_there}


def _mode(line: Line) -> str:
    if not line.width:
        return "markers"
    drawn = line.markers or line.marker or (len(line.x) < 40 and not line.faint)
    return "lines+markers" if drawn else "lines"


def _dash(line: Line) -> str:
    return ",".join(f"{part}px" for part in line.dash) if line.dash else "solid"


def _see_through(color: str, opacity: float) -> str:
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity:.3g})"


def _draw_cloud(cloud: Cloud) -> go.Figure:
    drawn = go.Figure(
        go.Scattergl(
            x=cloud.x,
            y=cloud.y,
            mode="markers",
            customdata=cloud.slot,
            marker={
                "size": 4,
                "color": cloud.value,
                "colorscale": [[i / (len(cloud.colors) - 1), c] for i, c in enumerate(cloud.colors)],
                "cmin": cloud.low,
                "cmax": cloud.high,
                "showscale": True,
                "colorbar": {"title": {"text": plain(cloud.value_label)}},
            },
            hovertemplate="memory %{customdata}<br>value %{marker.color:.4g}<extra></extra>",
        )
    )
    drawn.update_xaxes(title_text=plain(cloud.x_label))
    drawn.update_yaxes(title_text=plain(cloud.y_label))
    drawn.update_layout(height=720, width=900)
    return drawn
