"""Chart: lines in panels, as plain values.

A figure module makes a Chart from data frames. `plotly_view`, `lines_view` and the canvas component draw the same
Chart, so that page, export and Jupyter notebook show the same values.

The page Notebook (`app.notebook`) stores pinned charts as JSON with the names of the fields below. So a renamed field
makes stored charts unreadable.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from app.figures.color_math import make_text_color
from app.figures.theme import Marker, Mode, get_theme_colors

Values = NDArray[np.float64]
MAX_BAND_OPACITY = 0.2
UNSMOOTHED_NOTE = "The faint lines are not smoothed."
"""Sentence of a caption about the lines of measured values, which are drawn behind the smoothed lines."""


_SEED_COUNT = re.compile(r" \((n = [^)]*)\)$")
"""The number of seeds at the end of the name of a line. It can be a range over the panels: "n = 3 to 5"."""
_MODES: tuple[Mode, ...] = ("light", "dark")


class LegendKey(NamedTuple):
    """What identifies an entry of a legend. Lines of several panels with the same name and style have one entry."""

    name: str
    color: str
    dash: tuple[int, int] | None
    marker: Marker


@dataclass(frozen=True)
class Line:
    """One series of points, with or without a band."""

    name: str
    color: str
    x: Values
    y: Values
    low: Values | None = None
    """Lower edge of the band; None: no band."""
    high: Values | None = None
    """Upper edge of the band; None: no band."""
    dash: tuple[int, int] | None = None
    """Lengths of dash and gap [px]; None: a solid line."""
    markers: bool = False
    """Whether every point has a marker. False: a few points have one, if a shape is set in `marker`."""
    width: float = 2.0
    """Width [px]. 0: only the markers are drawn."""
    faint: bool = False
    """Whether the line is thin, transparent, and without legend entry and tooltip."""
    marker: Marker = ""
    """Shape of the markers. Empty: no shape is set, and circles are drawn where markers are needed."""
    label: str = ""
    """Short name, which is written at the end of the line."""
    group: str = ""
    """Only for a faint line: the name of the main line to which it belongs."""
    unsmoothed: bool = False
    """Whether it shows the measured values behind a smoothed line. Pages draw it, images do not."""
    smoothable: bool = True
    """Whether smoothing applies to it. False for a setting over time (such as τ), a constant or a running mean."""
    statistic: str = ""
    """The statistic over seeds and the meaning of the band; empty if the line does not summarize seeds."""
    n: int | NDArray[np.int64] | None = None
    """Number of seeds per point: one number for all points, or one for each point."""

    @property
    def legend_key(self) -> LegendKey:
        """The entry of the line in a legend."""
        return LegendKey(self.name, self.color, self.dash, self.marker)

    @property
    def seed_count(self) -> str:
        """The number of seeds in the name, such as "n = 3" or "n = 3 to 5"; empty if the name has none."""
        match = _SEED_COUNT.search(self.name)
        return match[1] if match else ""

    @property
    def name_without_seed_count(self) -> str:
        """The name without the number of seeds at its end."""
        return _SEED_COUNT.sub("", self.name)


@dataclass(frozen=True)
class Panel:
    """Lines with a common unit and a common y axis."""

    title: str
    unit: str
    lines: tuple[Line, ...]
    range: tuple[float, float] | None = None
    """Limits of the y axis; None: they are computed from the values."""
    from_zero: bool = False
    """Whether the y axis starts at 0, unless `range` is set."""
    axis: str = ""
    """Text of the label of the y axis, if the title is written above the panel. Empty: the title is the label."""
    log: bool = False
    """Whether the y axis is logarithmic. Set it with `with_log_y_axis`, which also removes values <= 0."""
    caption: str = ""
    """What the panel shows, if it is drawn without the other panels of its chart."""

    @property
    def band_opacity(self) -> float:
        """Opacity of each band. Many bands get a low opacity, so that overlapping bands stay lighter than the lines."""
        n_bands = sum(line.low is not None for line in self.lines)
        return min(MAX_BAND_OPACITY, 0.6 / max(1, n_bands))

    def format_last_values(self) -> str:
        """Return a text with the last finite value of each line."""
        texts = []
        for line in self.lines:
            finite = line.y[np.isfinite(line.y)]
            value = f"{finite[-1]:.3g}" if len(finite) else "none yet"
            texts.append(f"{line.label or line.name} {value}")
        return ", ".join(texts)


@dataclass(frozen=True)
class Mark:
    """A vertical line at `x` with a label, for example at the step at which a run was resumed."""

    x: float
    label: str


@dataclass(frozen=True)
class Chart:
    """Panels with the same quantity on x."""

    name: str
    """Name of the figure, for example in `emtc export --figure`."""
    title: str
    x_label: str
    panels: tuple[Panel, ...]
    caption: str
    description: str
    """Alternative text for screen readers."""
    marks: tuple[Mark, ...] = ()
    """Vertical lines in all panels."""
    columns: int = 1
    """1: the panels are stacked over one x axis. More: the panels are in a grid, each with an x axis."""
    subtitle: str = ""
    """Short text on the figure: the statistic and the meaning of the band."""
    x_log: bool = False
    """Whether the x axis is logarithmic. If True, every x must be above 0."""

    @property
    def panel_lines(self) -> Iterator[tuple[Panel, Line]]:
        """Iterate over all lines as pairs (panel, line)."""
        return ((panel, line) for panel in self.panels for line in panel.lines)

    @property
    def is_empty(self) -> bool:
        """Whether the chart has no finite point."""
        return not any(np.isfinite(line.y).any() for _, line in self.panel_lines)

    def keep_window(self, window: Sequence[float] | None) -> "Chart":
        """Keep the points inside a range of x (low, high), both ends included. None: keep all points."""
        if window is None:
            return self
        low, high = window
        panels = []
        for panel in self.panels:
            lines = [keep_points(line, (line.x >= low) & (line.x <= high)) for line in panel.lines]
            panels.append(replace(panel, lines=tuple(lines)))
        return replace(self, panels=tuple(panels))

    def keep_panel(self, title: str) -> "Chart":
        """Keep only the panel with this title. The chart gets its caption, and a description with its last values.

        Raises:
            KeyError: If no panel has this title.
        """
        panel = next((panel for panel in self.panels if panel.title == title), None)
        if panel is None:
            raise KeyError(title)
        description = f"{panel.title} over {self.x_label}. Latest values: {panel.format_last_values()}."
        return replace(self, panels=(panel,), caption=panel.caption or self.caption, description=description)

    def without_unsmoothed_lines(self) -> "Chart":
        """Remove the lines of measured values behind smoothed lines, and the sentence about them in the caption."""
        panels = []
        for panel in self.panels:
            lines = [line for line in panel.lines if not line.unsmoothed]
            panels.append(replace(panel, lines=tuple(lines)))
        # the sentence is the same constant in all captions, so it can be removed by its text
        return replace(self, panels=tuple(panels), caption=self.caption.replace(f" {UNSMOOTHED_NOTE}", ""))

    def split(self) -> list["Chart"]:
        """Make one chart of each panel, so that each panel has an x axis."""
        return [replace(self, panels=(panel,), columns=1) for panel in self.panels]

    def to_frame(self) -> pd.DataFrame:
        """Return one row per point: panel, unit, series, x, value, low, high.

        If any line has a statistic over seeds, there are also the columns statistic and n.
        """
        columns = ["panel", "unit", "series", "x", "value", "low", "high"]
        seed_columns = ["statistic", "n"] if any(line.statistic for _, line in self.panel_lines) else []
        frames = [
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
                    # one number is repeated for all points, an array has one per point, None is a missing value
                    "n": pd.Series(line.n, index=range(len(line.x)), dtype="Int64"),
                },
                columns=[*columns, *seed_columns],
            )
            for panel, line in self.panel_lines
            if len(line.x)
        ]
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=columns)

    def to_component(self) -> dict[str, Any]:
        """Return the dict that is sent as JSON to `curves.js`, the canvas component. A missing value is None."""
        return {
            "panels": [
                {
                    "title": panel.title,
                    "unit": panel.unit,
                    "range": list(panel.range) if panel.range else None,
                    "zero": panel.from_zero,
                    "log": panel.log,
                    "lines": [_line_to_component(line) for line in panel.lines],
                }
                for panel in self.panels
            ],
            "xLabel": self.x_label,
            "xLog": self.x_log,
            "alt": self.description,
            "subtitle": self.subtitle or None,
            "marks": [{"x": mark.x, "label": mark.label} for mark in self.marks],
        }


def keep_points(line: Line, keep: NDArray[np.bool_]) -> Line:
    """Return the line with only those points where `keep` is True, and the band at these points."""
    return replace(
        line,
        x=line.x[keep],
        y=line.y[keep],
        low=None if line.low is None else line.low[keep],
        high=None if line.high is None else line.high[keep],
        n=line.n[keep] if isinstance(line.n, np.ndarray) else line.n,
    )


def _line_to_component(line: Line) -> dict[str, Any]:
    return {
        "name": line.name,
        "nameWithoutCount": line.name_without_seed_count,
        "n": line.n.tolist() if isinstance(line.n, np.ndarray) else line.n,
        "label": line.label,
        "color": line.color,
        "textColor": _make_text_colors(line) if line.label else None,
        "x": line.x.tolist(),
        "y": _round_to_json(line.y),
        "lo": None if line.low is None else _round_to_json(line.low),
        "hi": None if line.high is None else _round_to_json(line.high),
        "dash": list(line.dash) if line.dash else None,
        "markers": line.markers,
        "width": line.width,
        "faint": line.faint,
        "marker": line.marker or None,
        "group": line.group or None,
        "smoothable": line.smoothable,
    }


def _make_text_colors(line: Line) -> dict[Mode, str]:
    """Return the color of the line's label for each theme."""
    return {mode: make_text_color(line.color, get_theme_colors(mode)[1]) for mode in _MODES}


def _round_to_json(values: Values) -> list[float | None]:
    """Round values to 6 digits. JSON has no NaN and no infinity, so they become None."""
    return [float(f"{value:.6g}") if np.isfinite(value) else None for value in values.tolist()]
