"""Registry of all named figures and tables in `app.figures.named`, and `draw_named` for scripts and notebooks.

Three topics: the registry, the figure for Jupyter, and the text of the `emtc export` command. A script imports only
`storage`; there, `storage.figures` imports this module and calls `draw_named`. In a Jupyter notebook, a figure is
interactive if the viewer runs Plotly's script, otherwise a PNG image.
"""

import base64
import json
import shlex
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import plotly.graph_objects as go

from app.analysis.results import select_runs
from app.figures import named
from app.figures.figure import FigureKind, TableKind
from app.figures.image_options import DEFAULT_IMAGE_OPTIONS, ImageOptions, read_image_options, replace_labels
from app.figures.kinds import AnyFigure
from app.figures.kinds.chart import Chart
from app.figures.options import Options
from app.figures.render.export import export_figure
from app.figures.render.plotly_view import to_plotly
from emtc_core.errors import ConfigError
from emtc_core.metrics import METRICS
from storage.engine import Database

_MODULES = [import_module(f"{named.__name__}.{module.name}") for module in iter_modules(named.__path__)]
FIGURES: dict[str, FigureKind[Any, Any]] = {
    kind.name: kind for module in _MODULES for kind in getattr(module, "FIGURES", ())
}
TABLES: dict[str, TableKind[Any, Any]] = {
    kind.name: kind for module in _MODULES for kind in getattr(module, "TABLES", ())
}


class NotebookFigure(go.Figure):
    """A Plotly figure with a PNG image for Jupyter, so that an executed notebook also shows it in HTML and in print.

    The PNG is left out if the caller changes the Plotly figure, because it would not show the change.
    """

    def __init__(self, figure: AnyFigure, image_options: ImageOptions = DEFAULT_IMAGE_OPTIONS) -> None:
        """Draw the figure with Plotly."""
        super().__init__(to_plotly(replace_labels(figure, image_options.labels)))
        self._figure = figure
        self._image_options = image_options
        self._original_json = str(self.to_json())

    def _repr_mimebundle_(self, *_: Any, **__: Any) -> dict[str, Any]:
        """Return the figure by MIME type. Jupyter calls this method to display it."""
        current_json = str(self.to_json())
        data_by_type: dict[str, Any] = {"application/vnd.plotly.v1+json": json.loads(current_json)}
        if current_json == self._original_json:
            png = export_figure(self._figure, "png", options=self._image_options)
            data_by_type["image/png"] = base64.b64encode(png).decode()
        return data_by_type


for _method in ("_ipython_display_", "_repr_html_"):  # Jupyter would call these methods of Plotly, which give no PNG
    setattr(NotebookFigure, _method, None)


def find_figure(name: str) -> FigureKind[Any, Any]:
    """Return the definition of a figure by its name.

    Raises:
        ConfigError: If no figure has this name.
    """
    if name not in FIGURES:
        raise ConfigError(f"must be one of {', '.join(sorted(FIGURES))}", key="figure", value=name)
    return FIGURES[name]


def draw_chart(name: str, runs: Any, options: Options | None = None) -> Chart:
    """Draw a named figure that consists of line charts.

    Args:
        name: Name of the figure.
        runs: The data that `FigureKind.read` returns, which are the first argument of `FigureKind.draw`. These are
            often data of runs, but an episode for the figure `trajectory`.
        options: Options of the figure. Default: its defaults.

    Raises:
        ConfigError: If no figure has this name, or the data cannot be drawn.
        TypeError: If the figure is not a line chart.
    """
    kind = find_figure(name)
    chart = kind.draw(runs, kind.options() if options is None else options)
    if not isinstance(chart, Chart):
        raise TypeError(f"{name} is not a line chart")
    return chart


def list_page_figures(page: str) -> list[FigureKind[Any, Any]]:
    """List the figures that a page offers under *More figures*."""
    return [kind for kind in FIGURES.values() if page in kind.pages]


def list_sections(page: str) -> dict[str, list[FigureKind[Any, Any] | TableKind[Any, Any]]]:
    """List the tables and figures that a page always shows, by the title of the section. Tables come first."""
    sections: dict[str, list[FigureKind[Any, Any] | TableKind[Any, Any]]] = {}
    for kind in (*TABLES.values(), *FIGURES.values()):
        if kind.section is not None and kind.section.page == page:
            sections.setdefault(kind.section.title, []).append(kind)
    return sections


def list_metric_charts() -> dict[str, tuple[str, ...]]:
    """List the metrics with a separate chart on the page Live, by the title of the chart."""
    charts: dict[str, tuple[str, ...]] = {}
    for metric in METRICS.values():
        if metric.chart:
            charts[metric.chart] = (*charts.get(metric.chart, ()), metric.name)
    return charts


def list_live_metrics() -> tuple[str, ...]:
    """List the metrics that the figures and charts of the page Live draw."""
    # the figure "metrics" is not in a section of the page, so the loop below does not contain its metrics
    names = [*find_figure("metrics").metrics]
    for kinds in list_sections("live").values():
        for kind in kinds:
            if isinstance(kind, FigureKind):
                names += kind.metrics
    for chart_metrics in list_metric_charts().values():
        names += chart_metrics
    return tuple(dict.fromkeys(names))  # without duplicates


def write_command(
    kind: FigureKind[Any, Any], run_ids: Sequence[str], options: Options, *, db: Path | None = None
) -> str:
    """Write the `emtc export` command that draws a figure of runs with these options.

    Args:
        kind: The figure.
        run_ids: The runs.
        options: Options of the figure.
        db: Path of the database; None if the command needs no --db.
    """
    words = ["emtc export", *run_ids, f"--figure {kind.name}"]
    values = options.list_set_values()  # the values that differ from the defaults
    for name, option in options.list_options().items():
        if name not in values:
            continue
        if not option.has_flag:
            words.append(f"--set {shlex.quote(f'{name}={_write_value(values[name])}')}")
        elif values[name] is True:
            words.append(option.flag)
        else:
            words.append(f"{option.flag} {_write_value(values[name])}")
    if db:
        words.append(f"--db {shlex.quote(str(db))}")
    words.append(f"--out {kind.name}.pdf")
    return " ".join(words)


def _write_value(value: object) -> str:
    """Write the value of an option as text for the command line."""
    return value if isinstance(value, str) else json.dumps(value)


def draw_named(db: Database, name: str, runs: Sequence[str], options: Mapping[str, Any]) -> NotebookFigure:
    """Draw a named figure of the given runs, or of all evaluated runs, as `emtc export --figure` does.

    Options of images (`app.figures.image_options`) have an effect on the PNG; `label` also on the Plotly figure.

    Raises:
        ConfigError: If the figure or an option does not exist, or if these runs cannot be drawn.
    """
    kind = find_figure(name)
    image_options, figure_values = read_image_options(options)
    parsed_options = kind.read_options(figure_values)
    if kind.needs_runs and not runs:
        # the key is written before the text: "gate-dynamics shows one run"
        raise ConfigError("shows one run", key=name, hint="Give its run id.")
    rows = select_runs(db, runs or None)
    if not rows:
        raise ConfigError("No evaluated run is selected", hint="List all runs with: emtc runs")
    return NotebookFigure(kind.make(db, rows, parsed_options), image_options)
