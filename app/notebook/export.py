"""Export entries of the notebook as one file, for the buttons of the page and for `emtc notebook export`.

- HTML: a page with embedded images and without scripts, which needs no network.
- Markdown: a zip file with the text, the figures as SVG and their data as CSV.
- Jupyter notebook (format 4.5): for each figure, a cell that draws it from the database with `db.figure(…)`. The
  notebook also contains each figure as an image (the output of its cell) and as data ("frozen"). The data are drawn if
  the database no longer has the run.

An entry of the research notebook has a text, a figure, and the view in which the figure was pinned (see `view`).
"""

import base64
import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from html import escape
from typing import Any, Final, Literal, get_args
from urllib.parse import urlsplit, urlunsplit

from app.analysis.format import escape_markdown
from app.figures.figure import FigureKind
from app.figures.options import read_window
from app.figures.registry import find_figure
from app.figures.render.export import export_figure
from app.notebook.markdown import sanitize, to_html
from app.notebook.view import Figure, NotebookEntry, PinnedView, make_view_url, pack, read_entries
from emtc_core.errors import ConfigError
from emtc_core.install import FROM_CHECKOUT
from storage.engine import Database

NotebookFormat = Literal["md", "html", "ipynb"]
Files = dict[str, bytes]
"""Path → content."""
Cell = dict[str, Any]

NOTEBOOK_FORMATS: tuple[NotebookFormat, ...] = get_args(NotebookFormat)
SUFFIX: dict[NotebookFormat, str] = {"md": "zip", "html": "html", "ipynb": "ipynb"}
MIME: dict[NotebookFormat, str] = {
    "md": "application/zip",
    "html": "text/html",
    "ipynb": "application/x-ipynb+json",
}
FIGURE_FOLDER = "figures"
"""Folder of the figures in a Markdown export."""
INSTALL_ADVICE = f"Install EMTC Lab in this kernel with: {FROM_CHECKOUT}."

_TEXT_OPTIONS: Final = {"title", "caption"}
"""Options of figures that replace the figure's own texts."""
_MAX_LINE_LENGTH: Final = 100
"""Maximum length of a line of Python in a Jupyter notebook [characters]."""
_CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
)
_STYLE: Final = """
body { font: 16px/1.55 sans-serif; color: #1f2430; background: #fff; max-width: 56rem; margin: 2rem auto; padding: 0 1rem }
article { border-top: 1px solid #cfd4da; padding-top: 1rem; margin-top: 2rem }
figure { margin: 1rem 0 } figure img { max-width: 100% }
figcaption, .small { color: #5a626c; font-size: .85rem } .small { overflow-wrap: anywhere }
pre, code { background: #f3f4f6; border-radius: 3px } code { padding: 0 .2em } pre { padding: .6rem; overflow-x: auto }
table { border-collapse: collapse } td, th { border: 1px solid #cfd4da; padding: .2rem .5rem }
img.maths.display { display: block; margin: .8rem auto } blockquote { border-left: 3px solid #cfd4da; margin-left: 0; padding-left: 1rem }
@media print { article { break-inside: avoid-page } }
"""  # noqa: E501  # one rule per line
_SETUP: Final = '''\
import base64
import os

try:
    from app.figures.registry import NotebookFigure
    from app.notebook.view import thaw, unpack
    from emtc_core.errors import EmtcError
    from storage import open_database
except ImportError as missing:
    print(f"{{missing}}. {install} Without it, the figures are shown as images.")
    open_database = None
DATABASE = os.environ.get("EMTC_DB", {database!r})


class Picture:
    """The image of a figure, for a kernel without EMTC Lab."""

    def __init__(self, image):
        self.image = image

    def _repr_png_(self):
        return base64.b64decode(self.image)


def show(recipe, frozen, image):
    """Draw a figure from the current database; if that fails, from its frozen data."""
    if open_database is None:
        return Picture(image)
    if recipe is None:
        return NotebookFigure(thaw(unpack(frozen)))
    try:
        with open_database(DATABASE) as db:
            return recipe(db)
    except (EmtcError, LookupError, ValueError) as reason:
        print(f"As it was frozen: {{reason}}")
        return NotebookFigure(thaw(unpack(frozen)))
'''
"""First code cell of a Jupyter notebook."""


def export_entries(
    db: Database,
    ids: Sequence[int],
    format: NotebookFormat,
    *,
    address: str | None = None,
    link_parameters: Mapping[str, str] | None = None,
) -> bytes:
    """Export entries in the given order.

    Args:
        db: An open database.
        ids: The entries.
        format: "md" (a zip file), "html" or "ipynb".
        address: URL of the app, for links to the views.
        link_parameters: URL parameters that are added to each link, for example the key of the open bundle (a file
            with exported runs).

    Raises:
        EntryNotFoundError: If an entry does not exist.
        ValueError: If the format is unknown.
    """
    entries = read_entries(db, ids, link_parameters=link_parameters)
    if format == "md":
        return to_zip(entries, address=address)
    if format == "html":
        return to_html_page(entries, address=address)
    if format == "ipynb":
        return to_jupyter(entries, database=db.url, address=address)
    raise ValueError(f"format must be one of {', '.join(NOTEBOOK_FORMATS)}, got {format!r}")


def to_files(entries: Sequence[NotebookEntry], *, address: str | None) -> tuple[str, Files]:
    """Make the Markdown text of the entries, and the files of the figures to which the text refers."""
    files: Files = {}
    parts = ["# Research notebook"]
    for entry in entries:
        stem = f"entry-{entry.row.id}"
        parts += [f"## {escape_markdown(entry.title)}", f"*{entry.dates}*"]
        if entry.row.body.strip():
            parts.append(sanitize(entry.row.body))
        if entry.figure is not None:
            parts.append(f"![{escape_markdown(entry.figure.title)}]({FIGURE_FOLDER}/{stem}.svg)")
            parts.append(f"{escape_markdown(entry.caption)} Data: [{stem}.csv]({FIGURE_FOLDER}/{stem}.csv)")
            files[f"{FIGURE_FOLDER}/{stem}.svg"] = export_figure(entry.figure, "svg")
            files[f"{FIGURE_FOLDER}/{stem}.csv"] = export_figure(entry.figure, "csv")
        if entry.figure_error:
            parts.append(f"**{escape_markdown(entry.figure_error)}**")
        if entry.cited_run_lines:
            parts.append("\n".join(f"- Run {escape_markdown(line)}" for line in entry.cited_run_lines))
        if entry.view is not None:
            parts.append(_make_view_markdown(entry.view, address))
    return "\n\n".join(parts) + "\n", files


def to_zip(entries: Sequence[NotebookEntry], *, address: str | None) -> bytes:
    """Make a zip file with notebook.md and the files of the figures. The same entries give the same bytes."""
    text, files = to_files(entries, address=address)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in {"notebook.md": text.encode(), **files}.items():
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def to_html_page(entries: Sequence[NotebookEntry], *, address: str | None) -> bytes:
    """Make an HTML page. It is safe to open, because all texts are escaped and it contains no scripts."""
    body = "\n".join(_make_article(entry, address) for entry in entries)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_CONTENT_SECURITY_POLICY}">
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


def to_jupyter(entries: Sequence[NotebookEntry], *, database: str, address: str | None) -> bytes:
    """Make a Jupyter notebook. Without EMTC Lab in its kernel, it shows the figures as images.

    Args:
        entries: The entries.
        database: URL of the database. A password in it is removed.
        address: URL of the app, for links to the views.
    """
    introduction = f"# Research notebook\n\nEvery figure is shown as it was frozen. To draw it again: {INSTALL_ADVICE}"
    setup = _SETUP.format(install=INSTALL_ADVICE, database=_remove_password(database))
    cells = [_make_text_cell("head", introduction), _make_code_cell("setup", setup)]
    for entry in entries:
        cells += _make_entry_cells(entry, address)
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    notebook = {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(notebook, indent=1, ensure_ascii=False).encode()


def _remove_password(url: str) -> str:
    parts = urlsplit(url)
    login, at_sign, host = parts.netloc.rpartition("@")
    if not at_sign:
        return url
    user = login.partition(":")[0]
    return urlunsplit(parts._replace(netloc=f"{user}@{host}"))


def make_recipe(view: PinnedView, figure: Figure) -> str | None:
    """Make the Python call that draws a figure from the database.

    Returns:
        For example `db.figure('learning-curves', ['k3f9'])`; None if the view does not contain all options.
    """
    try:
        kind = find_figure(view.figure_name)
        options = _collect_options(view, figure, kind)
        kind.read_options(options)
        json.dumps(options, allow_nan=False)  # raises for NaN and infinity, which have no literal in Python
    except (ConfigError, TypeError, ValueError):  # a view of another version or another program
        return None
    if not view.run_ids:
        return None
    arguments = [repr(kind.name), repr(list(view.run_ids)), *(f"{name}={value!r}" for name, value in options.items())]
    line = f"db.figure({', '.join(arguments)})"
    return line if len(line) <= _MAX_LINE_LENGTH else "db.figure(\n    " + ",\n    ".join(arguments) + ",\n)"


def _collect_options(view: PinnedView, figure: Figure, kind: FigureKind[Any, Any]) -> dict[str, Any]:
    """Collect the options of a figure from the pinned options, the URL parameters, and the figure's texts."""
    available = kind.options.list_options()
    options = {name: value for name, value in view.options.items() if name in available}
    for name, option in available.items():
        is_on_in_url = view.query.get(option.parameter) == ["true"]
        if isinstance(option.default, bool) and is_on_in_url:
            options[name] = True
    for name in available.keys() & _TEXT_OPTIONS:
        options.setdefault(name, getattr(figure, name))
    if "x" in available:
        with suppress(LookupError, ValueError):  # the URL contains no range of the x axis, or one that is not valid
            options["x"] = list(read_window(view.query["x"][0]))
    return options


def _make_entry_cells(entry: NotebookEntry, address: str | None) -> list[Cell]:
    lines = [f"## {escape_markdown(entry.title)}", f"*{entry.dates}*", sanitize(entry.row.body)]
    lines += [f"- Run {escape_markdown(line)}" for line in entry.cited_run_lines]
    if entry.view is not None:
        lines.append(_make_view_markdown(entry.view, address))
    cells = [_make_text_cell(f"entry-{entry.row.id}", "\n\n".join(line for line in lines if line.strip()))]
    if entry.figure is not None and entry.frozen is not None:
        cells += _make_figure_cells(entry.row.id, entry.figure, entry.frozen, entry.view)
        cells.append(_make_text_cell(f"caption-{entry.row.id}", escape_markdown(entry.caption)))
    if entry.figure_error:
        cells.append(_make_text_cell(f"figure-{entry.row.id}", f"**{escape_markdown(entry.figure_error)}**"))
    return cells


def _make_figure_cells(number: int, figure: Figure, frozen: Mapping[str, Any], view: PinnedView | None) -> list[Cell]:
    """Make a cell with the data and the image of a figure, and a cell that draws it.

    Args:
        number: Number of the entry.
        figure: The figure.
        frozen: The same figure as JSON values.
        view: The view in which the figure was pinned.
    """
    recipe = make_recipe(view, figure) if view is not None else None
    if recipe is None:
        source = f"show(None, frozen_{number}, image_{number})  # its view is not sufficient to draw it again"
    else:
        source = f"show(lambda db: {recipe}, frozen_{number}, image_{number})"
    image = base64.b64encode(export_figure(figure, "png")).decode()
    output = {
        "output_type": "display_data",
        "data": {"image/png": image, "text/plain": figure.description},
        "metadata": {},
    }
    data = f'frozen_{number} = "{pack(frozen)}"\nimage_{number} = "{image}"'
    data_cell = _make_code_cell(f"frozen-{number}", data) | {"metadata": {"jupyter": {"source_hidden": True}}}
    return [data_cell, _make_code_cell(f"figure-{number}", source) | {"outputs": [output]}]


def _make_text_cell(name: str, source: str) -> Cell:
    return {"cell_type": "markdown", "id": name, "metadata": {}, "source": source}


def _make_code_cell(name: str, source: str) -> Cell:
    return {"cell_type": "code", "id": name, "metadata": {}, "execution_count": None, "outputs": [], "source": source}


def _make_article(entry: NotebookEntry, address: str | None) -> str:
    """Make the HTML of one entry."""
    parts = [f"<h2>{escape(entry.title)}</h2>", f'<p class="small">{escape(entry.dates)}</p>']
    parts.append(to_html(entry.row.body))
    if entry.figure is not None:
        image = base64.b64encode(export_figure(entry.figure, "svg")).decode()
        alt = escape(entry.figure.description)
        parts.append(
            f'<figure><img src="data:image/svg+xml;base64,{image}" alt="{alt}">'
            f"<figcaption>{escape(entry.caption)}</figcaption></figure>"
        )
    if entry.figure_error:
        parts.append(f"<p><strong>{escape(entry.figure_error)}</strong></p>")
    parts += [f'<p class="small">Run {escape(line)}</p>' for line in entry.cited_run_lines]
    if entry.view is not None:
        url = make_view_url(entry.view, address)
        label = escape(entry.view.relative_url)
        text = f'<a href="{escape(url)}" rel="noopener noreferrer">{label}</a>' if url else f"<code>{label}</code>"
        parts.append(f'<p class="small">View: {text}</p>')
    return f'<article id="entry-{entry.row.id}">\n' + "\n".join(part for part in parts if part) + "\n</article>"


def _make_view_markdown(view: PinnedView, address: str | None) -> str:
    url = make_view_url(view, address)
    label = escape_markdown(view.relative_url)
    return f"View: [{label}](<{url}>)" if url else f"View: {label}"
