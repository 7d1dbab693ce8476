"""Entries → the bytes of one file, for the page's export buttons and `emtc notebook export`."""

from collections.abc import Sequence
from typing import Literal, get_args

from app.notebook.as_html import to_page
from app.notebook.as_ipynb import to_notebook
from app.notebook.as_markdown import to_zip
from app.notebook.view import gather
from storage.engine import Database

NotebookFormat = Literal["md", "html", "ipynb"]
NOTEBOOK_FORMATS: tuple[NotebookFormat, ...] = get_args(NotebookFormat)
SUFFIX: dict[NotebookFormat, str] = {"md": "zip", "html": "html", "ipynb": "ipynb"}
MIME: dict[NotebookFormat, str] = {
    "md": "application/zip",
    "html": "text/html",
    "ipynb": "application/x-ipynb+json",
}


def export_entries(db: Database, ids: Sequence[int], format: NotebookFormat, *, address: str | None = None) -> bytes:
    """Write entries in the given order; Markdown comes as a zip with its images.

    Args:
        db: An open database.
        ids: The entries.
        format: "md", "html" or "ipynb".
        address: Where the app answers, so that the file can link to the views.

    Raises:
        EntryNotFoundError: If an entry does not exist.
        ValueError: If the format is unknown.
    """
    entries = gather(db, ids)
    if format == "md":
        return to_zip(entries, address=address)
    if format == "html":
        return to_page(entries, address=address)
    if format == "ipynb":
        return to_notebook(entries, database=db.url, address=address)
    raise ValueError(f"format must be one of {', '.join(NOTEBOOK_FORMATS)}, got {format!r}")
