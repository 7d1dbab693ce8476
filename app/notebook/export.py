"""Entries → the bytes of one file, for the page's export buttons and `emtc notebook export`.

A page that needs no network has its images inside, every text escaped and no script at all; one Markdown file has the
figures as images and their data as CSV beside it. Jupyter notebooks are made in `as_ipynb`.
"""

import base64
import io
import zipfile
from collections.abc import Sequence
from html import escape
from typing import Literal, get_args

from app.analysis.format import escape_markdown
from app.figures.render.export import export_figure
from app.notebook.as_ipynb import to_notebook
from app.notebook.markdown import tame, to_html
from app.notebook.view import Gathered, gather, view_link
from storage.engine import Database

_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_STYLE = """
body { font: 16px/1.55 sans-serif; color: #1f2430; background: #fff; max-width: 56rem; margin: 2rem auto; padding: 0 1rem }
article { border-top: 1px solid #cfd4da; padding-top: 1rem; margin-top: 2rem }
figure { margin: 1rem 0 } figure img { max-width: 100% }
figcaption, .small { color: #5a626c; font-size: .85rem } .small { overflow-wrap: anywhere }
pre, code { background: #f3f4f6; border-radius: 3px } code { padding: 0 .2em } pre { padding: .6rem; overflow-x: auto }
table { border-collapse: collapse } td, th { border: 1px solid #cfd4da; padding: .2rem .5rem }
img.maths.display { display: block; margin: .8rem auto } blockquote { border-left: 3px solid #cfd4da; margin-left: 0; padding-left: 1rem }
@media print { article { break-inside: avoid-page } }
"""  # noqa: E501  # one rule per line

FOLDER = "figures"
Files = dict[str, bytes]
"""Fixed names, never a title → content."""

NotebookFormat = Literal["md", "html", "ipynb"]
NOTEBOOK_FORMATS: tuple[NotebookFormat, ...] = get_args(NotebookFormat)
SUFFIX: dict[NotebookFormat, str] = {"md": "zip", "html": "html", "ipynb": "ipynb"}
MIME: dict[NotebookFormat, str] = {
    "md": "application/zip",
    "html": "text/html",
    "ipynb": "application/x-ipynb+json",
}


def to_page(entries: Sequence[Gathered], *, address: str | None) -> bytes:
    """Write the page; it prints well and is safe to open whoever wrote the entries."""
    body = "\n".join(_article(entry, address) for entry in entries)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="referrer" content="no-referrer">
<meta name="viewport" content="width=device-width">
<title>Research notebook</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>Research notebook</h1>
{body}
</body>
</html>
""".encode()


def _article(entry: Gathered, address: str | None) -> str:
    parts = [f"<h2>{escape(entry.title)}</h2>", f'<p class="small">{escape(entry.dates)}</p>']
    parts.append(to_html(entry.row.body))
    if entry.figure is not None:
        parts.append(_figure_html(entry))
    parts += [f'<p class="small">Run {escape(line)}</p>' for line in entry.origins]
    parts.append(_view_html(entry, address))
    return f'<article id="entry-{entry.row.id}">\n' + "\n".join(part for part in parts if part) + "\n</article>"


def _figure_html(entry: Gathered) -> str:
    assert entry.figure is not None
    image = base64.b64encode(export_figure(entry.figure, "svg")).decode()
    alt = escape(entry.figure.description)
    caption = escape(entry.caption)
    return (
        f'<figure><img src="data:image/svg+xml;base64,{image}" alt="{alt}"><figcaption>{caption}</figcaption></figure>'
    )


def _view_html(entry: Gathered, address: str | None) -> str:
    if entry.view is None:
        return ""
    link, shown = view_link(entry.view, address), escape(entry.view.address)
    text = f'<a href="{escape(link)}" rel="noopener noreferrer">{shown}</a>' if link else f"<code>{shown}</code>"
    return f'<p class="small">View: {text}</p>'


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
    return parts + [line for line in (_origin(entry), _view_markdown(entry, address)) if line]


def _origin(entry: Gathered) -> str:
    return "\n".join(f"- Run {escape_markdown(line)}" for line in entry.origins)


def _view_markdown(entry: Gathered, address: str | None) -> str:
    if entry.view is None:
        return ""
    link = view_link(entry.view, address)
    shown = escape_markdown(entry.view.address)
    return f"View: [{shown}](<{link}>)" if link else f"View: {shown}"


def _stem(entry: Gathered) -> str:
    return f"entry-{entry.row.id}"


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
