"""Draw a figure with Matplotlib: SVG, PDF and PNG on a machine without a browser, one or two columns wide.

Text stays text, fonts are embedded, symbols are set as mathematics; clouds are a raster layer of 300 dpi inside the
vector file. Lines of a chart are drawn in `lines_view`.
"""

import io
from collections.abc import Sequence
from typing import Any, Literal

import matplotlib as mpl
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from app.figures.kinds import AnyFigure
from app.figures.kinds.chart import Chart
from app.figures.kinds.maps import Cloud, Heatmap, Maps
from app.figures.render import lines_view, maps_views
from app.figures.theme import Mode, ink, make_printable, set_as_math

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
    """Write the figure as an image file; the same figure gives the same bytes.

    The file's own metadata holds the title, the caption (statistic, band, number of seeds) and `sources`, the runs.
    """
    with mpl.rc_context(make_style(mode)):
        drawn = _draw(figure, INCHES[columns])
        file = io.BytesIO()
        drawn.savefig(file, format=format, dpi=DPI, metadata=_metadata(format, figure, sources))
    return file.getvalue()


def make_style(mode: Mode) -> dict[Any, Any]:
    """Give the settings of Matplotlib under which every image is drawn."""
    return {**_STYLE, **_colors(mode)}


def _draw(figure: AnyFigure, width: float) -> Figure:
    if isinstance(figure, Heatmap):
        return maps_views.draw_heatmap(figure, width)
    if isinstance(figure, Maps):
        return maps_views.draw_maps(figure, width)
    return lines_view.draw_chart(figure, width) if isinstance(figure, Chart) else _draw_cloud(figure, width)


def _colors(mode: Mode) -> dict[str, str]:
    text, background, grid = ink(mode)
    names = ("text.color", "axes.labelcolor", "xtick.color", "ytick.color", "axes.edgecolor")
    surfaces = ("figure.facecolor", "axes.facecolor", "savefig.facecolor", "legend.facecolor")
    return dict.fromkeys(names, text) | dict.fromkeys(surfaces, background) | {"grid.color": grid}


def _metadata(format: Format, figure: AnyFigure, sources: Sequence[str]) -> dict[str, Any]:
    title, caption, *told = map(make_printable, (figure.title, figure.caption, *sources))
    if format == "svg":
        return {"Date": None, "Title": title, "Description": caption, "Keywords": told}
    said = {"Title": title, "Keywords": "; ".join(told)}
    if format == "pdf":
        return {"CreationDate": None, "Subject": caption, **said}
    return {"Description": caption, **said}


def _draw_cloud(cloud: Cloud, width: float) -> Figure:
    drawn = Figure(figsize=(width, 0.78 * width), layout="constrained")
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
    ax.set_xlabel(set_as_math(cloud.x_label))
    ax.set_ylabel(set_as_math(cloud.y_label))
    lines_view.set_title(drawn, cloud.title)
    drawn.colorbar(points, ax=ax, label=set_as_math(cloud.value_label))
    return drawn
