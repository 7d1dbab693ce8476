"""The export button under a figure: vector and raster images, an interactive page, and the data."""

from collections.abc import Callable, Sequence
from functools import partial

import streamlit as st

from app.figures.kinds import AnyFigure
from app.figures.render.export import EXPORT_FORMATS, MIME, ExportFormat, export_figure
from app.figures.theme import Mode

_LABELS: dict[ExportFormat, str] = {
    "svg": "SVG, vector",
    "png": "PNG, 300 dpi",
    "pdf": "PDF, vector",
    "html": "HTML, interactive",
    "csv": "CSV, the data",
}


def show(figure: AnyFigure, *, key: str, stem: str, sources: Sequence[str] = ()) -> None:
    """Offer the figure in every format; a file is made only when it is asked for and names its `sources`, the runs."""
    with st.popover("Export", icon=":material/download:", key=f"{key}-export"):
        st.caption("Drawn on this machine, no browser needed. Light is the paper version.")
        mode: Mode = "dark" if st.toggle("Dark background", key=f"{key}-export-dark") else "light"
        for format in EXPORT_FORMATS:
            st.download_button(
                _LABELS[format],
                data=_writer(figure, format, mode, sources),
                file_name=f"{figure.name}-{stem}.{format}",
                mime=MIME[format],
                key=f"{key}-export-{format}",
                on_click="ignore",
                width="stretch",
            )


def _writer(figure: AnyFigure, format: ExportFormat, mode: Mode, sources: Sequence[str]) -> Callable[[], bytes]:
    return partial(export_figure, figure, format, mode=mode, sources=sources)
