"""Registry of all named figures and tables in `app.figures.named`, and `draw_named` for scripts and notebooks.

`storage.figures` calls `draw_named`. In a notebook, a figure is interactive where Plotly is available, and a PNG image
in viewers that run no scripts.
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

_MODULES = [import_module(f"{named.__name__}.{module.name}") for module in iter_modules(named.__path__)]
FIGURES: dict[str, FigureKind] = {kind.name: kind for module in _MODULES for kind in getattr(module, "FIGURES", ())}
TABLES: dict[str, TableKind] = {kind.name: kind for module in _MODULES for kind in getattr(module, "TABLES", ())}


class NotebookFigure(go.Figure):
    """A Plotly figure with a PNG image, so that an executed notebook also shows it in HTML and in print.

    The PNG is left out if the caller changes the Plotly figure, because it would not show the change.
    """

    def __init__(self, figure: AnyFigure) -> None:
        """Draw the figure with Plotly."""
        super().__init__(to_plotly(figure))
        self._source, self._original_json = figure, str(self.to_json())

    def _repr_mimebundle_(self, *_: Any, **__: Any) -> dict[str, Any]:
        current_json = str(self.to_json())
        bundle: dict[str, Any] = {"application/vnd.plotly.v1+json": json.loads(current_json)}
        if current_json == self._original_json:
            bundle["image/png"] = base64.b64encode(export_figure(self._source, "png")).decode()
        return bundle


for _method in ("_ipython_display_", "_repr_html_"):  # a kernel prefers these methods, and they give no PNG
    setattr(NotebookFigure, _method, None)


def find_figure(name: str) -> FigureKind:
    """Get a figure by its name.

    Raises:
        ConfigError: If no figure has this name.
    """
    if name not in FIGURES:
        raise ConfigError(f"must be one of {', '.join(sorted(FIGURES))}", key="figure", value=name)
    return FIGURES[name]


def list_page_figures(page: str) -> list[FigureKind]:
    """List the figures that a page offers under *More figures*."""
    return [kind for kind in FIGURES.values() if page in kind.pages]


def draw_named(db: Database, name: str, runs: Sequence[str], options: Mapping[str, Any]) -> NotebookFigure:
    """Draw a named figure of the given runs, or of all evaluated runs, as `emtc export --figure` does.

    Raises:
        ConfigError: If the figure or an option does not exist, or if these runs cannot be drawn.
    """
    kind = find_figure(name)
    parsed_options = kind.read_options(options)
    if kind.needs_runs and not runs:
        raise ConfigError("shows one run", key=name, hint="Give its run id.")
    rows = select_runs(db, runs or None)
    if not rows:
        raise ConfigError("No evaluated run is selected", hint="List all runs with: emtc runs")
    return NotebookFigure(kind.make(db, rows, parsed_options))
