"""A pinned view → the one line of Python that draws the same figure from the database: `db.figure(…)`.

Every value of a view is read as the figure reads it and written as a Python literal, so nothing that a stranger typed
becomes code.
"""

import json
from contextlib import suppress
from typing import Any, Final

from app.figures.figure import WINDOW, FigureKind, read_window
from app.figures.registry import find_figure
from app.notebook.frozen import Figure
from app.notebook.view import View
from emtc_core.errors import ConfigError

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
