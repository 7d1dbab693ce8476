"""Entries as files: Markdown with images, one self-contained page, or a Jupyter notebook that rebuilds the figures."""

from collections.abc import Callable, Sequence
from functools import partial
from urllib.parse import urlsplit

import streamlit as st

from app.notebook.export import MIME, NOTEBOOK_FORMATS, SUFFIX, NotebookFormat, export_entries
from app.ui import data

_LABELS: dict[NotebookFormat, str] = {
    "md": "Markdown, zip with images and data",
    "html": "HTML, one page, no network",
    "ipynb": "Jupyter notebook, rebuilds the figures",
}


def show(ids: Sequence[int], *, key: str, every: Sequence[int] = ()) -> None:
    """Offer the entries `ids`, or `every` one, in each format; a file is made only when it is asked for."""
    with st.popover("Export", icon=":material/download:", key=f"{key}-export"):
        chosen = ids
        if len(every) > len(ids):
            scope = st.radio("Entries", [f"the {len(ids)} shown", f"all {len(every)}"], key=f"{key}-export-scope")
            chosen = every if str(scope).startswith("all") else ids
        stem = f"notebook-entry-{chosen[0]}" if len(chosen) == 1 else "notebook"
        for format in NOTEBOOK_FORMATS:
            st.download_button(
                _LABELS[format],
                data=_writer(chosen, format, app_address(st.context.url)),
                file_name=f"{stem}.{SUFFIX[format]}",
                mime=MIME[format],
                key=f"{key}-export-{format}",
                on_click="ignore",
                width="stretch",
                disabled=not chosen,
            )


def app_address(url: str | None) -> str | None:
    """Find where the app answers from the address of this page."""
    parts = urlsplit(url or "")
    if parts.scheme not in ("http", "https"):
        return None
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/notebook')}"


def _writer(ids: Sequence[int], format: NotebookFormat, address: str | None) -> Callable[[], bytes]:
    return partial(export_entries, data.database(), tuple(ids), format, address=address)
