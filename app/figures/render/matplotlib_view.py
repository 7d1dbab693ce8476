"""Draw a figure with Matplotlib as SVG, PDF or PNG, as wide as one or two columns of a paper. No browser is needed.

Text stays text, fonts are embedded, and symbols are mathtext. The points of a cloud are a raster image of 300 dpi
inside the vector file. The module `lines_view` draws charts, `maps_views` draws maps and heat maps.
"""

import io
from collections.abc import Sequence
from typing import Any, Literal

import matplotlib as mpl
from matplotlib.figure import Figure

from app.figures.kinds import AnyFigure
from app.figures.kinds.chart import Chart
from app.figures.kinds.maps import Cloud, Heatmap, Maps
from app.figures.render import lines_view, maps_views
from app.figures.theme import Mode, format_mathtext, get_theme_colors, replace_unprintable

Format = Literal["svg", "pdf", "png"]
INCHES: dict[str, float] = {"one": 3.25, "two": 6.75}
"""Width of one and of two columns of a paper."""
DPI = 300

_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "emtc-lab",
    "pdf.fonttype": 42,
    "ps.fonttype": 42,
    "font.family": "sans-serif",
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9,
    "axes.labelsize": 9,
    "figure.titlesize": 9,
    "legend.fontsize": 8,
    "mathtext.fontset": "dejavusans",
    "text.parse_math": True,
}


def to_image(
    figure: AnyFigure,
    format: Format,
    *,
    mode: Mode = "light",
    sources: Sequence[str] = (),
    columns: Literal["one", "two"] = "two",
) -> bytes:
    """Return the bytes of an image file. The same figure always gives the same bytes.

    The metadata of the file contains the title, the caption (statistic, band, number of seeds) and `sources`, the runs.
    """
    with mpl.rc_context(make_style(mode)):
        drawing = _draw(figure, INCHES[columns])
        file = io.BytesIO()
        drawing.savefig(file, format=format, dpi=DPI, metadata=_make_metadata(format, figure, sources))
    return file.getvalue()


def make_style(mode: Mode) -> dict[Any, Any]:
    """Return the Matplotlib settings (rcParams) of all images."""
    text, background, grid = get_theme_colors(mode)
    text_keys = ("text.color", "axes.labelcolor", "xtick.color", "ytick.color", "axes.edgecolor")
    background_keys = ("figure.facecolor", "axes.facecolor", "savefig.facecolor", "legend.facecolor")
    colors = dict.fromkeys(text_keys, text) | dict.fromkeys(background_keys, background) | {"grid.color": grid}
    return {**_STYLE, **colors}


def _draw(figure: AnyFigure, width: float) -> Figure:
    if isinstance(figure, Heatmap):
        return maps_views.draw_heatmap(figure, width)
    if isinstance(figure, Maps):
        return maps_views.draw_maps(figure, width)
    return lines_view.draw_chart(figure, width) if isinstance(figure, Chart) else _draw_cloud(figure, width)


def _make_metadata(format: Format, figure: AnyFigure, sources: Sequence[str]) -> dict[str, Any]:
    title, caption, *keywords = map(replace_unprintable, (figure.title, figure.caption, *sources))
    if format == "svg":
        return {"Date": None, "Title": title, "Description": caption, "Keywords": keywords}
    if format == "pdf":
        return {"CreationDate": None, "Subject": caption, "Title": title, "Keywords": "; ".join(keywords)}
    return {"Description": caption, "Title": title, "Keywords": "; ".join(keywords)}


def _draw_cloud(cloud: Cloud, width: float) -> Figure:
    drawing = Figure(figsize=(width, 0.78 * width), layout="constrained")
    ax = drawing.subplots()
    color_scale = maps_views.make_color_scale(cloud, cloud.low, cloud.high)
    maps_views.draw_points(ax, cloud, color_scale, area=4 if len(cloud.x) < 20_000 else 1)
    ax.set_xlabel(format_mathtext(cloud.x_label))
    ax.set_ylabel(format_mathtext(cloud.y_label))
    lines_view.set_title(drawing, cloud.title)
    drawing.colorbar(color_scale, ax=ax, label=format_mathtext(cloud.scale_label))
    return drawing
