"""Draw a figure with Matplotlib as SVG, PDF or PNG. No browser is needed.

Text stays text, fonts are embedded, and symbols are mathtext. The points of a cloud are a raster image of 300 dpi
inside the vector file. The module `lines_view` draws charts, `maps_views` draws maps and heat maps.
"""

import io
from collections.abc import Sequence
from functools import cache
from typing import Any, Literal

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.font_manager import fontManager

from app.figures.image_options import DEFAULT_FONT, DEFAULT_IMAGE_OPTIONS, ImageOptions
from app.figures.kinds import AnyFigure
from app.figures.kinds.chart import Chart
from app.figures.kinds.maps import Cloud, Heatmap, Maps
from app.figures.render import lines_view, maps_views
from app.figures.theme import Mode, format_mathtext, get_theme_colors, replace_unprintable
from emtc_core.errors import ConfigError

Format = Literal["svg", "pdf", "png"]
DPI = 300
_SANS_FONTS = ("Arial", "Helvetica", "Liberation Sans", "Nimbus Sans", "DejaVu Sans")
"""Fonts for `sans`. The first one that is installed is used. Matplotlib contains the last one."""
_FONTS = {"serif": ("STIXGeneral", "stix")}
"""Name of a font → family and font of formulas. Matplotlib contains STIX, which looks like Times."""
_FORMULA_STYLES = {"rm": "", "it": ":italic", "bf": ":bold", "cal": ":italic", "sf": "", "tt": ""}
"""Font of mathtext → ending of the family name."""

_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "emtc-lab",
    "pdf.fonttype": 42,
    "ps.fonttype": 42,
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9,
    "axes.labelsize": 9,
    "figure.titlesize": 9,
    "legend.fontsize": 8,
    "text.parse_math": True,
}


def to_image(
    figure: AnyFigure,
    format: Format,
    *,
    mode: Mode = "light",
    sources: Sequence[str] = (),
    options: ImageOptions = DEFAULT_IMAGE_OPTIONS,
) -> bytes:
    """Return the bytes of an image file. The same figure always gives the same bytes.

    The metadata of the file contains the title, the caption (statistic, band, number of seeds) and `sources`, the runs.

    Raises:
        ConfigError: If the font is not installed.
    """
    if isinstance(figure, Chart):
        figure = figure.without_unsmoothed_lines()
    if mode == "dark" and isinstance(figure, Cloud | Maps):
        figure = figure.on_dark_background()
    with mpl.rc_context(make_style(mode, font=options.font)):
        drawing = _draw(figure, options)
        file = io.BytesIO()
        drawing.savefig(file, format=format, dpi=DPI, metadata=_make_metadata(format, figure, sources))
    return file.getvalue()


def make_style(mode: Mode, *, font: str = DEFAULT_FONT) -> dict[Any, Any]:
    """Return the Matplotlib settings (rcParams) of all images.

    Raises:
        ConfigError: If the font is not installed.
    """
    text, background, grid = get_theme_colors(mode)
    text_keys = ("text.color", "axes.labelcolor", "xtick.color", "ytick.color", "axes.edgecolor")
    background_keys = ("figure.facecolor", "axes.facecolor", "savefig.facecolor", "legend.facecolor")
    colors = dict.fromkeys(text_keys, text) | dict.fromkeys(background_keys, background) | {"grid.color": grid}
    return {**_STYLE, **_select_font(font), **colors}


def _select_font(font: str) -> dict[str, Any]:
    """Return the settings of a font. Characters that it does not contain are drawn with DejaVu Sans.

    Raises:
        ConfigError: If the font is not installed.
    """
    installed = _list_fonts()
    family, formulas = _FONTS.get(font, (font, "custom"))
    if font == DEFAULT_FONT:
        family = next(name for name in _SANS_FONTS if name in installed)
    if family not in installed:
        rule = ImageOptions.get_option("font").rule
        raise ConfigError(f"must be {rule}", key="font", value=font)
    styles = {f"mathtext.{key}": f"{family}{style}" for key, style in _FORMULA_STYLES.items()}
    return {"font.family": [family, "DejaVu Sans"], "mathtext.fontset": formulas, **styles}


@cache
def _list_fonts() -> frozenset[str]:
    return frozenset(fontManager.get_font_names())


def _draw(figure: AnyFigure, options: ImageOptions) -> Figure:
    width = options.width
    has_title = not options.no_title
    if isinstance(figure, Heatmap):
        return maps_views.draw_heatmap(figure, width, has_title=has_title)
    if isinstance(figure, Maps):
        return maps_views.draw_maps(figure, width, has_title=has_title)
    if isinstance(figure, Chart):
        return lines_view.draw_chart(figure, width, has_title=has_title, line_names=options.line_names)
    return _draw_cloud(figure, width, has_title=has_title)


def _make_metadata(format: Format, figure: AnyFigure, sources: Sequence[str]) -> dict[str, Any]:
    title, caption, *keywords = map(replace_unprintable, (figure.title, figure.caption, *sources))
    if format == "svg":
        return {"Date": None, "Title": title, "Description": caption, "Keywords": keywords}
    if format == "pdf":
        return {"CreationDate": None, "Subject": caption, "Title": title, "Keywords": "; ".join(keywords)}
    return {"Description": caption, "Title": title, "Keywords": "; ".join(keywords)}


def _draw_cloud(cloud: Cloud, width: float, *, has_title: bool) -> Figure:
    drawing = Figure(figsize=(width, 0.78 * width), layout="constrained")
    ax = drawing.subplots()
    color_scale = maps_views.make_color_scale(cloud, cloud.low, cloud.high)
    alpha = maps_views.OPACITY_UNDER_TRACES if cloud.traces else 1.0
    maps_views.draw_points(ax, cloud, color_scale, area=4 if len(cloud.x) < 20_000 else 1, alpha=alpha)
    ax.set_xlabel(format_mathtext(cloud.x_label))
    ax.set_ylabel(format_mathtext(cloud.y_label))
    if has_title:
        lines_view.set_title(drawing, cloud.title)
    maps_views.add_color_bar(drawing, color_scale, [ax], cloud)
    if cloud.traces:
        maps_views.draw_traces(ax, cloud.traces)
        drawing.legend(loc="outside lower center", ncols=1 if width < 4 else 2, frameon=False)
    return drawing
