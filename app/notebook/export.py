"""Entries → the bytes of one file, for the page's export buttons and `emtc notebook export`.

A page that needs no network has its images inside, every text escaped and no script at all; one Markdown file has the
figures as images and their data as CSV beside it.

The cells of a Jupyter notebook (format 4.5) rebuild every figure from the database. Each figure is also inside the
notebook twice: as the cell's output, to be seen without running anything, and as data, drawn when the database no
longer has what the figure shows. Its recipe is the one line of Python that draws a pinned view's figure from the
database: `db.figure(…)`.
"""

import base64
import io
import json
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from html import escape
from typing import Any, Final, Literal, get_args
from urllib.parse import urlsplit, urlunsplit

from app.analysis.format import escape_markdown
from app.figures.figure import WINDOW, FigureKind, read_window
from app.figures.registry import find_figure
from app.figures.render.export import export_figure
from app.notebook.markdown import tame, to_html
from app.notebook.view import Figure, Gathered, View, gather, pack, view_link
from emtc_core.errors import ConfigError
from emtc_core.install import FROM_CHECKOUT
from storage.engine import Database

_EARLIER: Final = {("live", "learning-curves"): "outcomes"}
"""What a figure was called in entries of earlier versions."""
_IN_ADDRESS: Final = {"each": "each", "unfinished": "include_unfinished", "closing": "closing"}
_TEXTS: Final = ("title", "caption")
_WIDTH: Final = 100

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


def make_recipe(view: View, figure: Figure) -> str | None:
    """Write the call that draws a figure anew; None if the view does not say how."""
    try:
        kind = find_figure(_EARLIER.get((view.page, view.figure), view.figure))
        options = _read(view, figure, kind)
        kind.read_options(options)
        json.dumps(options, allow_nan=False)  # what is no number in JSON is none in a line of Python
    except (ConfigError, TypeError, ValueError):  # a view of another version, or a stranger's
        return None
    return _call(kind.name, view.run_ids, options) if view.run_ids else None


def _read(view: View, figure: Figure, kind: FigureKind) -> dict[str, Any]:
    """The options of a figure that the view knows, from what was pinned with it and from the address."""
    own = {each.name for each in kind.own}
    found = {name: value for name, value in view.facts.items() if name in own | {*kind.takes}}
    if "rate" in kind.takes and not found.keys() & {"rate", "quantity"}:
        found["rate"] = "greedy"  # pinned when every win rate was greedy by default
    for name, option in _IN_ADDRESS.items():
        if view.query.get(name) == ["true"] and option in own | {*kind.takes}:
            found[option] = True
    for name in own.intersection(_TEXTS):
        found.setdefault(name, getattr(figure, name))
    if WINDOW.name in own:
        with suppress(LookupError, ValueError):
            found[WINDOW.name] = list(read_window(view.query["x"][0]))
    return found


def _call(name: str, run_ids: tuple[str, ...], options: dict[str, Any]) -> str:
    """Write the call, in one line where it is short enough."""
    parts = [repr(name), repr(list(run_ids)), *(f"{option}={value!r}" for option, value in options.items())]
    line = f"db.figure({', '.join(parts)})"
    return line if len(line) <= _WIDTH else "db.figure(\n    " + ",\n    ".join(parts) + ",\n)"


Cell = dict[str, Any]

_SETUP = '''\
import base64
import os

try:
    from app.figures.registry import NotebookFigure
    from app.notebook.view import thaw, unpack
    from emtc_core.errors import EmtcError
    from storage import open_database
except ImportError as missing:
    print(f"{{missing}}. {install} Until then the figures are pictures, as they were frozen.")
    open_database = None
DATABASE = os.environ.get("EMTC_DB", {database!r})


class Picture:
    """A figure as it was frozen, for a kernel that cannot draw it."""

    def __init__(self, image):
        self.image = image

    def _repr_png_(self):
        return base64.b64decode(self.image)


def show(recipe, frozen, image):
    """Draw a figure from the database as it is now, or, where that is not possible, as it was frozen."""
    if open_database is None:
        return Picture(image)
    if recipe is None:  # its view does not say how to rebuild it
        return NotebookFigure(thaw(unpack(frozen)))
    try:
        with open_database(DATABASE) as db:
            return recipe(db)
    except (EmtcError, LookupError, ValueError) as reason:
        print(f"As it was frozen: {{reason}}")
        return NotebookFigure(thaw(unpack(frozen)))
'''
INSTALL = f"Install EMTC Lab in this kernel with: {FROM_CHECKOUT}."


def to_notebook(entries: Sequence[Gathered], *, database: str, address: str | None) -> bytes:
    """Write the notebook; a kernel without this project shows its figures as they were frozen.

    Args:
        entries: What to write.
        database: URL of the database; a password in it is left out.
        address: Address of the app, for links to the views.
    """
    cells = [
        _text_cell(
            "head", f"# Research notebook\n\nEvery figure is shown as it was frozen. To draw it anew: {INSTALL}"
        ),
        _code_cell("setup", _SETUP.format(install=INSTALL, database=without_password(database))),
    ]
    for entry in entries:
        cells += _entry_cells(entry, address)
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    whole = {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, indent=1, ensure_ascii=False).encode()


def without_password(url: str) -> str:
    """Take the password out of a database URL."""
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=user.partition(":")[0] + at + host)) if at else url


def _entry_cells(entry: Gathered, address: str | None) -> list[Cell]:
    lines = [f"## {escape_markdown(entry.title)}", f"*{entry.dates}*", tame(entry.row.body)]
    lines += [f"- Run {escape_markdown(line)}" for line in entry.origins]
    if entry.view is not None:
        link, shown = view_link(entry.view, address), escape_markdown(entry.view.address)
        lines.append(f"View: [{shown}](<{link}>)" if link else f"View: {shown}")
    cells = [_text_cell(f"entry-{entry.row.id}", "\n\n".join(line for line in lines if line.strip()))]
    if entry.figure is not None and entry.frozen is not None:
        cells += _figure_cells(entry, pack(entry.frozen))
        cells.append(_text_cell(f"caption-{entry.row.id}", escape_markdown(entry.caption)))
    return cells


def _figure_cells(entry: Gathered, packed: str) -> list[Cell]:
    assert entry.figure is not None
    number = entry.row.id
    recipe = make_recipe(entry.view, entry.figure) if entry.view is not None else None
    call = f"frozen_{number}, image_{number})"
    if recipe is None:
        source = f"show(None, {call}  # its view does not say how to rebuild it"
    else:
        source = f"show(lambda db: {recipe}, {call}"
    image = base64.b64encode(export_figure(entry.figure, "png")).decode()
    output = {
        "output_type": "display_data",
        "data": {"image/png": image, "text/plain": entry.figure.description},
        "metadata": {},
    }
    frozen = _code_cell(f"frozen-{number}", f'frozen_{number} = "{packed}"\nimage_{number} = "{image}"')
    frozen["metadata"] = {"jupyter": {"source_hidden": True}}
    return [frozen, _code_cell(f"figure-{number}", source) | {"outputs": [output]}]


def _text_cell(name: str, source: str) -> Cell:
    return {"cell_type": "markdown", "id": name, "metadata": {}, "source": source}


def _code_cell(name: str, source: str) -> Cell:
    return {"cell_type": "code", "id": name, "metadata": {}, "execution_count": None, "outputs": [], "source": source}


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
