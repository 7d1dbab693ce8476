"""Export of a figure to the bytes of a file, for the export buttons of the pages and for `emtc export`."""

from collections.abc import Sequence
from typing import Literal, get_args

from app.figures.image_options import DEFAULT_IMAGE_OPTIONS, ImageOptions, replace_labels
from app.figures.kinds import AnyFigure
from app.figures.kinds.chart import Chart
from app.figures.theme import Mode

ExportFormat = Literal["svg", "png", "pdf", "html", "csv"]
EXPORT_FORMATS: tuple[ExportFormat, ...] = get_args(ExportFormat)
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
    """Export a figure. Plotly and Matplotlib are imported here, because pages load faster without them.

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
    from app.figures.render.matplotlib_view import to_image

    return to_image(figure, format, mode=mode, sources=sources, options=options)
