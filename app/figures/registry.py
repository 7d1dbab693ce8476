"""Every named figure and table: what the modules of `app.figures.named` list; and how a notebook's cell shows one.

Named figures for those who know the database and not the app: what `storage.figures` imports. In a notebook a figure
is live where Plotly is, and a picture for all that runs no script.
"""

import base64
import json
from collections.abc import Mapping, Sequence
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import plotly.graph_objects as go

from app.analysis.comparable import select_runs
from app.figures import named
from app.figures.figure import AnyFigure, FigureKind, TableKind
from app.figures.render.export import export_figure
from app.figures.render.plotly_view import to_plotly
from emtc_core.errors import ConfigError
from storage.engine import Database


class NotebookFigure(go.Figure):
    """A Plotly figure that brings its PNG along, so that an executed notebook shows it on paper and in HTML, too.

    Who changes the figure changes what is live; the picture, which would not follow, is then left out.
    """

    def __init__(self, figure: AnyFigure) -> None:
        """Draw it."""
        super().__init__(to_plotly(figure))
        self._source, self._drawn = figure, str(self.to_json())

    def _repr_mimebundle_(self, *_: Any, **__: Any) -> dict[str, Any]:
        said = str(self.to_json())
        bundle: dict[str, Any] = {"application/vnd.plotly.v1+json": json.loads(said)}
        if said == self._drawn:
            bundle["image/png"] = base64.b64encode(export_figure(self._source, "png")).decode()
        return bundle


for _hook in ("_ipython_display_", "_repr_html_"):  # a kernel would ask these before the bundle: they know no picture
    setattr(NotebookFigure, _hook, None)


_MODULES = [import_module(f"{named.__name__}.{each.name}") for each in iter_modules(named.__path__)]
FIGURES: dict[str, FigureKind] = {kind.name: kind for module in _MODULES for kind in getattr(module, "FIGURES", ())}
TABLES: dict[str, TableKind] = {kind.name: kind for module in _MODULES for kind in getattr(module, "TABLES", ())}


def find_figure(name: str) -> FigureKind:
    """Get a figure by its name.

    Raises:
        ConfigError: If there is none.
    """
    if name not in FIGURES:
        raise ConfigError(f"must be one of {', '.join(sorted(FIGURES))}", key="figure", value=name)
    return FIGURES[name]


def figures_of(page: str) -> list[FigureKind]:
    """List the figures that a page offers beside those that it draws with widgets of its own."""
    return [kind for kind in FIGURES.values() if page in kind.pages]


def draw_named(db: Database, name: str, runs: Sequence[str], options: Mapping[str, Any]) -> NotebookFigure:
    """Draw a named figure of some runs, or of every evaluated one, as `emtc export --figure` does.

    Raises:
        ConfigError: If there is no such figure or option, or it cannot be made of these runs.
    """
    kind = find_figure(name)
    given = kind.read_options(options)
    if kind.needs_runs and not runs:
        raise ConfigError("shows one run", key=name, hint="Name the run.")
    rows = select_runs(db, runs or None)
    if not rows:
        raise ConfigError("No evaluated run is selected", hint="List all runs with: emtc runs")
    return NotebookFigure(kind.make(db, rows, given))
