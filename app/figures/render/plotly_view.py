"""Draw a figure with Plotly, for notebooks and for the interactive HTML export."""

from collections.abc import Sequence
from html import escape
from math import ceil
from textwrap import wrap
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from app.figures.kinds import AnyFigure
from app.figures.kinds.chart import Chart, LegendKey, Line, Panel
from app.figures.kinds.maps import Cloud, Heatmap, Maps
from app.figures.render import maps_views
from app.figures.render.maps_views import plain
from app.figures.theme import Mode, get_theme_colors

_MAX_SUBTITLE_LENGTH = 110
"""Longest line of a subtitle [characters]. Plotly does not wrap titles."""
_SUBTITLE_HEIGHT = 22
"""Height of a line of a subtitle [px]."""


def to_plotly(figure: AnyFigure, *, mode: Mode = "light") -> go.Figure:
    """Draw the figure. Texts are escaped, so that Plotly does not read them as markup."""
    if mode == "dark" and isinstance(figure, Cloud | Maps):
        figure = figure.on_dark_background()
    drawing = _draw(figure)
    text, background, grid = get_theme_colors(mode)
    axis: dict[str, Any] = {"gridcolor": grid, "zerolinecolor": grid, "linecolor": grid}
    title: dict[str, Any] = {"text": plain(figure.title), "x": 0.01}
    subtitle = figure.subtitle if isinstance(figure, Chart) else ""
    subtitle_lines = [plain(line) for line in wrap(subtitle, _MAX_SUBTITLE_LENGTH)]
    if subtitle_lines:
        title["subtitle"] = {"text": "<br>".join(subtitle_lines)}
    title_height = 70 + _SUBTITLE_HEIGHT * max(0, len(subtitle_lines) - 1)
    has_panel_titles = isinstance(figure, Chart) and figure.columns > 1
    drawing.update_layout(
        font={"color": text, "family": "sans-serif", "size": 13},
        paper_bgcolor=background,
        plot_bgcolor=background,
        hovermode="x unified" if isinstance(figure, Chart) else "closest",
        margin={"l": 80, "r": 30, "t": title_height + (30 if has_panel_titles else 0), "b": 60},  # px
        title=title,
    )
    drawing.update_xaxes(**axis)
    drawing.update_yaxes(**axis)
    return drawing


def to_html(figure: AnyFigure, *, mode: Mode = "light", sources: Sequence[str] = ()) -> bytes:
    """Return an HTML page that needs no network: the figure with its caption below.

    Its metadata are the caption and the keywords `sources`: one text for each run of the figure.
    """
    page = to_plotly(figure, mode=mode).to_html(include_plotlyjs=True, full_html=True)
    metadata = {"description": figure.caption, "keywords": "; ".join(sources)}
    meta_tags = "".join(f'<meta name="{name}" content="{escape(text)}">' for name, text in metadata.items())
    text, background, _ = get_theme_colors(mode)
    page = page.replace("<body>", f'<body style="background: {background}">', 1)
    style = f"max-width: 60em; margin: 1em; font: 14px/1.5 sans-serif; color: {text}"
    caption = f'<p style="{style}">{escape(figure.caption)}</p>'
    page = f"{caption}</body>".join(page.rsplit("</body>", 1))
    return page.replace("<head>", f"<head>{meta_tags}<title>{escape(figure.title)}</title>", 1).encode()


def _make_axis_title(panel: Panel, *, has_panel_title: bool = False) -> str:
    """Return the label of the y axis with its unit, see `Panel.axis`."""
    label = panel.axis if has_panel_title and panel.axis else panel.title
    return f"{label} [{panel.unit}]" if panel.unit else label


def _draw(figure: AnyFigure) -> go.Figure:
    if isinstance(figure, Heatmap):
        return maps_views.plot_heatmap(figure)
    if isinstance(figure, Maps):
        return maps_views.plot_maps(figure)
    if isinstance(figure, Chart):
        return _draw_chart(figure)
    return _draw_cloud(figure)


def _draw_chart(chart: Chart) -> go.Figure:
    rows = max(1, ceil(len(chart.panels) / chart.columns))  # a chart without data has no panel
    titles: list[str] | None = None
    # Gap between stacked panels, as a fraction of the height: smaller if there are many panels. It is at most 1 / rows,
    # because Plotly refuses more than 1 / (rows - 1).
    row_gap = min(0.06 if rows < 8 else 0.01, 1 / rows)
    if chart.columns > 1:  # a grid has larger gaps, for the labels of the x axes and the titles of the panels
        titles = [f"<b>{plain(panel.title)}</b>" for panel in chart.panels]
        row_gap = 0.24 / rows
    drawing = make_subplots(
        rows=rows, cols=chart.columns, shared_xaxes=chart.columns == 1, vertical_spacing=row_gap, subplot_titles=titles
    )
    drawing.update_annotations(font_size=13)  # the titles of the panels
    legend_keys: set[LegendKey] = set()
    for index, panel in enumerate(chart.panels):
        row = index // chart.columns + 1  # Plotly counts from 1
        col = index % chart.columns + 1
        for line in panel.lines:
            # in a grid, equal lines of several panels have one entry; in a stack, each panel has its entries
            in_legend = chart.columns == 1 or line.legend_key not in legend_keys
            _draw_line(drawing, row, col, line, in_legend=in_legend, band_opacity=panel.band_opacity)
            legend_keys.add(line.legend_key)
        drawing.update_yaxes(
            title_text=plain(_make_axis_title(panel, has_panel_title=titles is not None)), row=row, col=col,
            range=panel.range, type="log" if panel.log else None,
        )  # fmt: skip
        if chart.columns > 1 or row == rows:
            drawing.update_xaxes(title_text=plain(chart.x_label), row=row, col=col)
    if chart.x_log:
        drawing.update_xaxes(type="log")
    for mark in chart.marks:
        for row in range(1, rows + 1):
            whole_row: dict[str, Any] = {"row": row, "col": "all"}
            label: dict[str, Any] = {"annotation_text": plain(mark.label)} if row == 1 else {}
            drawing.add_vline(x=mark.x, line_dash="dot", **whole_row, **label)
    is_stacked = chart.columns == 1 and rows > 1
    panel_height = 220 if is_stacked else 300  # px
    drawing.update_layout(height=140 + panel_height * rows)
    return drawing


def _draw_line(drawing: go.Figure, row: int, col: int, line: Line, *, in_legend: bool, band_opacity: float) -> None:
    if line.low is not None and line.high is not None:
        edge = {"x": line.x, "line": {"width": 0}, "showlegend": False, "hoverinfo": "skip", "mode": "lines"}
        drawing.add_trace(go.Scatter(y=line.low, **edge), row=row, col=col)
        red, green, blue = (int(line.color[i : i + 2], 16) for i in (1, 3, 5))
        fill = f"rgba({red},{green},{blue},{band_opacity:.3g})"
        drawing.add_trace(go.Scatter(y=line.high, fill="tonexty", fillcolor=fill, **edge), row=row, col=col)
    # `line.markers`: whether every point has a marker. `line.marker`: the shape of the markers. If only the shape is
    # set, a line with many points has at most 12 markers.
    has_few_points = len(line.x) < 40
    has_markers = line.markers or line.marker or (has_few_points and not line.faint)
    marker: dict[str, Any] = {"symbol": line.marker or "circle", "size": 8 if line.marker else 6}
    if line.marker and not line.markers and not has_few_points:
        marker["maxdisplayed"] = 12
    mode = "lines+markers" if has_markers else "lines"
    if not line.width:
        mode = "markers"
    dash = ",".join(f"{length}px" for length in line.dash) if line.dash else "solid"
    drawing.add_trace(
        go.Scatter(
            x=line.x,
            y=line.y,
            name=plain(line.name),
            mode=mode,
            line={"color": line.color, "width": line.width, "dash": dash},
            marker=marker,
            opacity=0.4 if line.faint else 1.0,
            showlegend=in_legend and not line.faint,
            hoverinfo="skip" if line.faint else None,
            legendgroup=plain(str(line.legend_key)),
        ),
        row=row,
        col=col,
    )


def _draw_cloud(cloud: Cloud) -> go.Figure:
    opacity = maps_views.OPACITY_UNDER_TRACES if cloud.traces else 1.0
    drawing = go.Figure(maps_views.plot_points(cloud, cloud.low, cloud.high, has_scale=True, opacity=opacity))
    for trace in cloud.traces:
        drawing.add_trace(maps_views.plot_trace(trace))
    drawing.update_xaxes(title_text=plain(cloud.x_label))
    drawing.update_yaxes(title_text=plain(cloud.y_label))
    drawing.update_layout(height=720, width=900, showlegend=False)
    return drawing
