"""Named figures for those who know the database and not the app: what `storage.figures` imports."""

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from app.analysis.select_runs import select_runs
from app.figures.registry import find_figure
from app.figures.render.plotly_view import to_plotly
from emtc_core.errors import ConfigError
from storage.engine import Database


def draw_named(db: Database, name: str, runs: Sequence[str], options: Mapping[str, Any]) -> go.Figure:
    """Draw a named figure of some runs, or of every evaluated one, as `emtc export --figure` does.

    Raises:
        ConfigError: If there is no such figure or option, or it cannot be made of these runs.
    """
    kind = find_figure(name)
    given = kind.read_options(options)
    if kind.needs_runs and not runs:
        raise ConfigError(f"{name} shows one run: name it.")
    rows = select_runs(db, runs or None)
    if not rows:
        raise ConfigError("No evaluated run was chosen. List what there is with: emtc runs")
    return to_plotly(kind.make(db, rows, given))
