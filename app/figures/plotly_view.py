"""Draw a Chart or a Cloud with Plotly: notebooks and the interactive HTML export."""

from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from app.figures.chart import Chart, Line, Panel
from app.figures.cloud import Cloud
from app.theme import Mode, ink


def to_plotly(figure: Chart | Cloud, *, mode: Mode = "light") -> go.Figure:
    """Draw the figure; text is shown as text, whatever it contains."""
    drawn = _draw_chart(figure) if isinstance(figure, Chart) else _draw_cloud(figure)
    text, background, grid = ink(mode)
    axis: dict[str, Any] = {"gridcolor": grid, "zerolinecolor": grid, "linecolor": grid}
    drawn.update_layout(
        font={"color": text, "family": "sans-serif", "size": 13},
        paper_bgcolor=background,
        plot_bgcolor=background,
        hovermode="x unified" if isinstance(figure, Chart) else "closest",
        margin={"l": 80, "r": 30, "t": 70, "b": 60},
        title={"text": plain(figure.title), "x": 0.01},
    )
    drawn.update_xaxes(**axis)
    drawn.update_yaxes(**axis)
    return drawn


def to_html(figure: Chart | Cloud, *, mode: Mode = "light") -> bytes:
    """Write one self-contained page that needs no network."""
    return to_plotly(figure, mode=mode).to_html(include_plotlyjs=True, full_html=True).encode()


def plain(text: str) -> str:
    """Keep Plotly's small markup language from reading names as markup."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _draw_chart(chart: Chart) -> go.Figure:
    drawn = make_subplots(rows=len(chart.panels), cols=1, shared_xaxes=True, vertical_spacing=0.06)
    for row, panel in enumerate(chart.panels, 1):
        for line in panel.lines:
            _draw_line(drawn, row, line)
        drawn.update_yaxes(title_text=plain(axis_title(panel)), row=row, col=1, range=panel.range)
    for mark in chart.marks:
        drawn.add_vline(x=mark.x, line_dash="dot", annotation_text=plain(mark.label))
    drawn.update_xaxes(title_text=plain(chart.x_label), row=len(chart.panels), col=1)
    drawn.update_layout(height=140 + 220 * len(chart.panels))
    return drawn


def axis_title(panel: Panel) -> str:
    """Name a y axis with its unit."""
    return f"{panel.title} [{panel.unit}]" if panel.unit else panel.title


def _draw_line(drawn: go.Figure, row: int, line: Line) -> None:
    if line.low is not None and line.high is not None:
        edge = {"x": line.x, "line": {"width": 0}, "showlegend": False, "hoverinfo": "skip", "mode": "lines"}
        drawn.add_trace(go.Scatter(y=line.low, **edge), row=row, col=1)
        drawn.add_trace(go.Scatter(y=line.high, fill="tonexty", fillcolor=_faint(line.color), **edge), row=row, col=1)
    drawn.add_trace(
        go.Scatter(
            x=line.x,
            y=line.y,
            name=plain(line.name),
            mode=_mode(line),
            line={"color": line.color, "width": line.width, "dash": "dash" if line.dash else "solid"},
        ),
        row=row,
        col=1,
    )


def _mode(line: Line) -> str:
    if not line.width:
        return "markers"
    return "lines+markers" if line.markers or len(line.x) < 40 else "lines"


def _faint(color: str) -> str:
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.2)"


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
