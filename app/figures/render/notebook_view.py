"""A figure as a cell of a notebook shows it: live where Plotly is, and a picture for all that runs no script."""

import base64
import json
from typing import Any

import plotly.graph_objects as go

from app.figures.figure import AnyFigure
from app.figures.render.export import export_figure
from app.figures.render.plotly_view import to_plotly


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
