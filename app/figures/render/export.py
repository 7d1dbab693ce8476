"""Export of a figure to the bytes of a file, for the export buttons of the pages and for `emtc export`.

Matplotlib draws images, for instance as wide as a column of a paper, without a browser. `lines_view` draws charts,
`maps_views` draws maps and heat maps. Plotly and Matplotlib are imported in functions, because pages load faster
without them.
"""

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

from app.figures.image_options import DEFAULT_IMAGE_OPTIONS, ImageOptions, replace_labels
from app.figures.kinds import AnyFigure
from app.figures.kinds.chart import Chart
from app.figures.kinds.maps import Cloud, Heatmap, Maps
from app.figures.mathtext import replace_unprintable
from app.figures.theme import Mode

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ImageFormat = Literal["svg", "png", "pdf"]
ExportFormat = ImageFormat | Literal["html", "csv"]
IMAGE_FORMATS: tuple[ImageFormat, ...] = get_args(ImageFormat)
EXPORT_FORMATS: tuple[ExportFormat, ...] = (*IMAGE_FORMATS, "html", "csv")
DPI = 300
MIME: dict[ExportFormat, str] = {
    "svg": "image/svg+xml",
    "png": "image/png",
    "pdf": "application/pdf",
    "html": "text/html",
    "csv": "text/csv",
}


def describe_figure(
    figure: AnyFigure, *, sources: Sequence[str] = (), options: ImageOptions = DEFAULT_IMAGE_OPTIONS
) -> str:
    """Write the texts that the CSV file of a figure does not contain: title, statistic and band, caption, runs.

    Args:
        figure: The figure.
        sources: The runs of the figure, one per line.
        options: Options of images. Only the texts have an effect.
    """
    figure = replace_labels(figure, options.labels)
    subtitle = figure.subtitle if isinstance(figure, Chart) else ""
    return "\n".join(filter(None, (figure.title, subtitle, figure.caption, *sources)))


def export_figure(
    figure: AnyFigure,
    format: ExportFormat,
    *,
    mode: Mode = "light",
    sources: Sequence[str] = (),
    options: ImageOptions = DEFAULT_IMAGE_OPTIONS,
) -> bytes:
    """Export a figure.

    Args:
        figure: The figure.
        format: One of `EXPORT_FORMATS`.
        mode: Colors for a light or dark background. Papers use light.
        sources: The runs of the figure. Images and HTML pages contain them in their metadata, with the caption; for
            CSV see `describe_figure`.
        options: Options of images. Only the texts have an effect on CSV and HTML.

    Raises:
        ConfigError: If a text to replace is not in the figure, or the font is not installed.
        ValueError: If the format is unknown.
    """
    figure = replace_labels(figure, options.labels)
    if format == "csv":
        return figure.to_frame().to_csv(index=False).encode()
    if format == "html":
        from app.figures.render.plotly_view import to_html

        return to_html(figure, mode=mode, sources=sources)
    if format not in EXPORT_FORMATS:
        raise ValueError(f"format must be one of {', '.join(EXPORT_FORMATS)}, got {format!r}")
    return _export_image(figure, format, mode=mode, sources=sources, options=options)


def _export_image(
    figure: AnyFigure, format: ImageFormat, *, mode: Mode, sources: Sequence[str], options: ImageOptions
) -> bytes:
    """Return the bytes of an image file. The same figure always gives the same bytes.

    The points of a cloud are a raster image inside the vector file. The metadata of the file contains the title, the
    caption (statistic, band, number of seeds) and `sources`, the runs.

    Raises:
        ConfigError: If the font is not installed.
    """
    import matplotlib as mpl

    from app.figures.render.matplotlib_style import make_style

    if isinstance(figure, Chart):
        figure = figure.without_unsmoothed_lines()
    if mode == "dark" and isinstance(figure, Cloud | Maps):
        figure = figure.on_dark_background()
    with mpl.rc_context(make_style(mode, font=options.font)):
        drawing = _draw(figure, options)
        file = io.BytesIO()
        drawing.savefig(file, format=format, dpi=DPI, metadata=_make_metadata(format, figure, sources))
    return file.getvalue()


def _draw(figure: AnyFigure, options: ImageOptions) -> "Figure":
    from app.figures.render import lines_view, maps_views

    width, has_title = options.width, not options.no_title
    if isinstance(figure, Heatmap):
        return maps_views.draw_heatmap(figure, width, has_title=has_title)
    if isinstance(figure, Maps):
        return maps_views.draw_maps(figure, width, has_title=has_title)
    if isinstance(figure, Chart):
        return lines_view.draw_chart(figure, width, has_title=has_title, line_names=options.line_names)
    return maps_views.draw_cloud(figure, width, has_title=has_title)


def _make_metadata(format: ImageFormat, figure: AnyFigure, sources: Sequence[str]) -> dict[str, Any]:
    title, caption, *keywords = map(replace_unprintable, (figure.title, figure.caption, *sources))
    if format == "svg":
        return {"Date": None, "Title": title, "Description": caption, "Keywords": keywords}
    if format == "pdf":
        return {"CreationDate": None, "Subject": caption, "Title": title, "Keywords": "; ".join(keywords)}
    return {"Description": caption, "Title": title, "Keywords": "; ".join(keywords)}
