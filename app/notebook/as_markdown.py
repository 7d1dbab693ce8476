"""Entries as one Markdown file, with the figures as images and their data as CSV beside it."""

import io
import zipfile
from collections.abc import Sequence

from app.analysis.format import escape_markdown
from app.figures.render.export import export_figure
from app.notebook.markdown import tame
from app.notebook.view import Gathered, view_link

FOLDER = "figures"
Files = dict[str, bytes]
"""Fixed names, never a title → content."""


def to_files(entries: Sequence[Gathered], *, address: str | None) -> tuple[str, Files]:
    """Write the text, and the files that it names in a folder beside it."""
    files: Files = {}
    parts = ["# Research notebook"]
    for entry in entries:
        parts += _entry(entry, address)
        if entry.figure is not None:
            files[f"{FOLDER}/{_stem(entry)}.svg"] = export_figure(entry.figure, "svg")
            files[f"{FOLDER}/{_stem(entry)}.csv"] = export_figure(entry.figure, "csv")
    return "\n\n".join(parts) + "\n", files


def to_zip(entries: Sequence[Gathered], *, address: str | None) -> bytes:
    """Pack the text as notebook.md with its images; the same entries give the same bytes."""
    text, files = to_files(entries, address=address)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in {"notebook.md": text.encode(), **files}.items():
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def _entry(entry: Gathered, address: str | None) -> list[str]:
    parts = [f"## {escape_markdown(entry.title)}", f"*{entry.dates}*"]
    if entry.row.body.strip():
        parts.append(tame(entry.row.body))
    if entry.figure is not None:
        parts.append(f"![{escape_markdown(entry.figure.title)}]({FOLDER}/{_stem(entry)}.svg)")
        parts.append(f"{escape_markdown(entry.caption)} Data: [{_stem(entry)}.csv]({FOLDER}/{_stem(entry)}.csv)")
    return parts + [line for line in (_origin(entry), _view(entry, address)) if line]


def _origin(entry: Gathered) -> str:
    return "\n".join(f"- Run {escape_markdown(line)}" for line in entry.origins)


def _view(entry: Gathered, address: str | None) -> str:
    if entry.view is None:
        return ""
    link = view_link(entry.view, address)
    shown = escape_markdown(entry.view.address)
    return f"View: [{shown}](<{link}>)" if link else f"View: {shown}"


def _stem(entry: Gathered) -> str:
    return f"entry-{entry.row.id}"
