"""Entries as a Jupyter notebook (format 4.5) whose cells rebuild every figure from the database.

Each figure is also inside the notebook twice: as the cell's output, to be seen without running anything, and as
data, drawn when the database no longer has what the figure shows.

A pinned view → the one line of Python that draws the same figure from the database: `db.figure(…)`.
"""

import base64
import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

from app.analysis.format import escape_markdown
from app.figures.figure import WINDOW, FigureKind, read_window
from app.figures.registry import find_figure
from app.figures.render.export import export_figure
from app.notebook.frozen import Figure, pack
from app.notebook.markdown import tame
from app.notebook.view import Gathered, View, view_link
from emtc_core.errors import ConfigError
from emtc_core.install import FROM_CHECKOUT

_EARLIER: Final = {("live", "learning-curves"): "outcomes"}
"""What a figure was called in entries of earlier versions."""
_IN_ADDRESS: Final = {"each": "each", "unfinished": "include_unfinished"}
_TEXTS: Final = ("title", "caption")
_WIDTH: Final = 100


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
    from app.figures.render.notebook_view import NotebookFigure
    from app.notebook.frozen import thaw, unpack
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
        _text("head", f"# Research notebook\n\nEvery figure is shown as it was frozen. To draw it anew: {INSTALL}"),
        _code("setup", _SETUP.format(install=INSTALL, database=without_password(database))),
    ]
    for entry in entries:
        cells += _entry(entry, address)
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    whole = {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, indent=1, ensure_ascii=False).encode()


def without_password(url: str) -> str:
    """Take the password out of a database URL."""
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=user.partition(":")[0] + at + host)) if at else url


def _entry(entry: Gathered, address: str | None) -> list[Cell]:
    lines = [f"## {escape_markdown(entry.title)}", f"*{entry.dates}*", tame(entry.row.body)]
    lines += [f"- Run {escape_markdown(line)}" for line in entry.origins]
    if entry.view is not None:
        link, shown = view_link(entry.view, address), escape_markdown(entry.view.address)
        lines.append(f"View: [{shown}](<{link}>)" if link else f"View: {shown}")
    cells = [_text(f"entry-{entry.row.id}", "\n\n".join(line for line in lines if line.strip()))]
    if entry.figure is not None and entry.frozen is not None:
        cells += _figure(entry, pack(entry.frozen))
        cells.append(_text(f"caption-{entry.row.id}", escape_markdown(entry.caption)))
    return cells


def _figure(entry: Gathered, packed: str) -> list[Cell]:
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
    frozen = _code(f"frozen-{number}", f'frozen_{number} = "{packed}"\nimage_{number} = "{image}"')
    frozen["metadata"] = {"jupyter": {"source_hidden": True}}
    return [frozen, _code(f"figure-{number}", source) | {"outputs": [output]}]


def _text(name: str, source: str) -> Cell:
    return {"cell_type": "markdown", "id": name, "metadata": {}, "source": source}


def _code(name: str, source: str) -> Cell:
    return {"cell_type": "code", "id": name, "metadata": {}, "execution_count": None, "outputs": [], "source": source}
