"""Chart: lines in stacked panels over one x axis, as plain values.

A figure module turns frames into a Chart; `plotly_view`, `matplotlib_view` and the canvas component draw
the same Chart, so that page, export and notebook cannot disagree.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from app.figures.theme import Marker

Values = NDArray[np.float64]
MOST_BAND_INK = 0.2


@dataclass(frozen=True)
class Line:
    """One series; `low` and `high` bound its band; a width of 0 with markers draws points only.

    A faint line stands behind its group's line: thin, without legend and tooltip. `marker` is a shape of
    `app.figures.theme` drawn here and there along the line, or at every point with `markers`; `label` is a short name
    for its end.
    """

    name: str
    color: str
    x: Values
    y: Values
    low: Values | None = None
    high: Values | None = None
    dash: tuple[int, int] | None = None
    markers: bool = False
    width: float = 2.0
    faint: bool = False
    marker: Marker = ""
    label: str = ""
    group: str = ""
    """Of a faint line: the name of the line that it stands behind."""
    statistic: str = ""
    """What a value is over seeds, and what the band around it; empty where no seeds are summarised."""
    n: int | NDArray[np.int64] | None = None
    """How many seeds a value is of, all values or each."""


@dataclass(frozen=True)
class Panel:
    """Lines that share a unit."""

    title: str
    unit: str
    lines: tuple[Line, ...]
    range: tuple[float, float] | None = None
    from_zero: bool = False
    axis: str = ""
    """What its y axis says where the title stands above it; the title if empty."""
    log: bool = False
    """Whether its y axis is logarithmic; `app.figures.chart_choices.on_log_axis` makes its values fit for that."""

    @property
    def band_ink(self) -> float:
        """Opacity of each band: where bands lie over each other, together they stay lighter than the lines."""
        return min(MOST_BAND_INK, 0.6 / max(1, sum(line.low is not None for line in self.lines)))


@dataclass(frozen=True)
class Mark:
    """A vertical line with a label, e.g. where a run was resumed."""

    x: float
    label: str


@dataclass(frozen=True)
class Chart:
    """Panels over one kind of x; `caption` says how to read them, `description` says it to a screen reader.

    Panels are stacked over one x axis; with `columns` a file shows them side by side, each with its own x axis.
    """

    name: str
    title: str
    x_label: str
    panels: tuple[Panel, ...]
    caption: str
    description: str
    marks: tuple[Mark, ...] = ()
    columns: int = 1
    subtitle: str = ""
    """What is averaged over what, in few words: it stands on the figure itself."""
    x_log: bool = False
    """Whether its x axis is logarithmic; every x is above 0 then."""

    @property
    def lines(self) -> Iterator[tuple[Panel, Line]]:
        """Go through every line with its panel."""
        return ((panel, line) for panel in self.panels for line in panel.lines)

    @property
    def is_empty(self) -> bool:
        """Whether there is no point to draw."""
        return not any(np.isfinite(line.y).any() for _, line in self.lines)

    def within(self, window: Sequence[float] | None) -> "Chart":
        """Keep the points inside a window of x, both ends included."""
        if window is None:
            return self
        panels = tuple(replace(panel, lines=tuple(_cut(line, window) for line in panel.lines)) for panel in self.panels)
        return replace(self, panels=panels)

    def to_frame(self) -> pd.DataFrame:
        """List every point in long form: panel, unit, series, x, value, low, high; over seeds also statistic and n."""
        columns = ["panel", "unit", "series", "x", "value", "low", "high"]
        over_seeds = ["statistic", "n"] if any(line.statistic for _, line in self.lines) else []
        parts = [
            pd.DataFrame(
                {
                    "panel": panel.title,
                    "unit": panel.unit,
                    "series": line.name,
                    "x": line.x,
                    "value": line.y,
                    "low": line.low if line.low is not None else np.nan,
                    "high": line.high if line.high is not None else np.nan,
                    "statistic": line.statistic or None,
                    "n": pd.Series(line.n, index=range(len(line.x)), dtype="Int64"),
                },
                columns=[*columns, *over_seeds],
            )
            for panel, line in self.lines
            if len(line.x)
        ]
        return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=columns)

    def to_component(self) -> dict[str, Any]:
        """Give the canvas component what it draws; a missing value is null."""
        return {
            "panels": [
                {
                    "title": panel.title,
                    "unit": panel.unit,
                    "range": list(panel.range) if panel.range else None,
                    "zero": panel.from_zero,
                    "log": panel.log,
                    "lines": [_to_component(line) for line in panel.lines],
                }
                for panel in self.panels
            ],
            "xLabel": self.x_label,
            "xLog": self.x_log,
            "alt": self.description,
            "subtitle": self.subtitle or None,
            "marks": [{"x": mark.x, "label": mark.label} for mark in self.marks],
        }


def _cut(line: Line, window: Sequence[float]) -> Line:
    return keep_points(line, (line.x >= window[0]) & (line.x <= window[1]))


def keep_points(line: Line, keep: NDArray[np.bool_]) -> Line:
    """Keep some points of a line, with their band."""
    return replace(
        line,
        x=line.x[keep],
        y=line.y[keep],
        low=None if line.low is None else line.low[keep],
        high=None if line.high is None else line.high[keep],
        n=line.n[keep] if isinstance(line.n, np.ndarray) else line.n,
    )


def _to_component(line: Line) -> dict[str, Any]:
    return {
        "name": line.name,
        "label": line.label,
        "color": line.color,
        "x": line.x.tolist(),
        "y": _nullable(line.y),
        "lo": None if line.low is None else _nullable(line.low),
        "hi": None if line.high is None else _nullable(line.high),
        "dash": list(line.dash) if line.dash else None,
        "markers": line.markers,
        "width": line.width,
        "faint": line.faint,
        "marker": line.marker or None,
        "group": line.group or None,
    }


def _nullable(values: Values) -> list[float | None]:
    return [float(f"{v:.6g}") if np.isfinite(v) else None for v in values.tolist()]
