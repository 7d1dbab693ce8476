"""Figures with a color scale, as plain values: clouds, maps and heat maps.

A node is one stored state of the episodic memory. A cloud shows the nodes of a memory snapshot as points in a plane.
`Maps` are clouds side by side with one color scale. A cloud or a panel of `Maps` can show the path of an episode, which
connects the nodes that the episode retrieved. A heat map has one value for each combination of two settings.

Notebook entries store these figures as JSON with the names of their fields, so a renamed field makes them unreadable.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from app.analysis.selection import NodeQuantity
from app.figures.theme import BINARY_COLORS, VIRIDIS, VIRIDIS_ON_DARK

MAX_LABELED_ERRORS = 3
"""Largest number of points of a path that are labeled with their consistency error Δ_mem."""


def compute_color_limits(values: NDArray[np.floating], quantity: NodeQuantity) -> tuple[float, float]:
    """Compute the limits of a color scale: the 1 % and the 99 % quantile of the finite values.

    Points with the value `quantity.no_effect` are gray, so they do not count. If nearly all points have one value, both
    quantiles are equal and the scale would have length 0. In this case the quantiles of the other values are included.
    The limits of a logarithmic scale are positive. For counts on a logarithmic scale, such as visits, they are the
    minimum and the maximum, because few nodes have most of the visits.
    """
    finite = values[np.isfinite(values) & (values != quantity.no_effect)]
    if quantity.is_log:
        finite = finite[finite > 0]
    if quantity.is_binary or not len(finite):
        return 0.1 if quantity.is_log else 0.0, 1.0
    if has_full_range(quantity):
        return float(finite.min()), float(finite.max())
    low, high = np.quantile(finite, (0.01, 0.99))
    other_values = finite[finite != low]
    if low == high and len(other_values):
        other_low, other_high = np.quantile(other_values, (0.01, 0.99))
        low = min(low, other_low)
        high = max(high, other_high)
    return float(low), float(high)


def has_full_range(quantity: NodeQuantity) -> bool:
    """Return whether the color scale of a quantity contains all values: the counts on a logarithmic scale."""
    return quantity.is_log and quantity.is_integer


def describe_color_limits(quantity: NodeQuantity) -> str:
    """Name the values at the ends of the color scale of a quantity; empty for a quantity with the values yes and no."""
    if quantity.is_binary:
        return ""
    return "minimum to maximum" if has_full_range(quantity) else "1 % to 99 % quantile"


@dataclass(frozen=True)
class Cloud:
    """Memory nodes as points in a plane."""

    name: str
    title: str
    x_label: str
    y_label: str
    x: NDArray[np.float32]
    y: NDArray[np.float32]
    slot: NDArray[np.int64]
    """Index of each node in the memory."""
    value: NDArray[np.float32]
    """The colored quantity; NaN: the node has no value."""
    quantity: NodeQuantity
    caption: str
    fields: tuple[tuple[str, NDArray[np.float32]], ...] = ()
    """All other quantities of the points as (key, values); empty for large clouds."""
    scale: tuple[str, ...] = VIRIDIS
    """Color scale, low to high, except for a quantity with the values yes and no: see `colors`."""
    traces: "tuple[Trace, ...]" = ()
    """Paths of episodes over the nodes."""

    @property
    def value_label(self) -> str:
        """The name of the colored quantity with its unit."""
        return f"{self.quantity.name} [{self.quantity.unit}]"

    @property
    def colors(self) -> tuple[str, ...]:
        """The color scale that is drawn, low to high: `scale`, or two colors for yes and no."""
        return BINARY_COLORS if self.quantity.is_binary and self.scale == VIRIDIS else self.scale

    def on_dark_background(self) -> "Cloud":
        """Replace viridis by the scale that the page Memory uses in the dark theme."""
        return replace(self, scale=VIRIDIS_ON_DARK) if self.colors == VIRIDIS else self

    @property
    def low(self) -> float:
        """Value at the lower end of the scale (`compute_color_limits`)."""
        return compute_color_limits(self.value, self.quantity)[0]

    @property
    def high(self) -> float:
        """Value at the upper end of the scale (`compute_color_limits`)."""
        return compute_color_limits(self.value, self.quantity)[1]

    @property
    def has_color(self) -> NDArray[np.bool_]:
        """Whether each point is drawn in color [M]: it has a value, and the value is not `quantity.no_effect`."""
        return np.isfinite(self.value) & (self.value != self.quantity.no_effect)

    @property
    def scale_label(self) -> str:
        """The name of the colored quantity with its unit, and the value of the gray points."""
        gray = self.quantity.no_effect
        return self.value_label if gray is None else f"{self.value_label}, gray: {gray:g}"

    @property
    def description(self) -> str:
        """The alternative text for screen readers."""
        return f"{self.title}: {len(self.slot)} points colored by {self.scale_label}. {self.caption}"

    def to_frame(self) -> pd.DataFrame:
        """Return one row per node: slot, x, y, quantities (the colored one first); then one row per step of a path."""
        coordinates = {"slot": self.slot, "x": self.x, "y": self.y}
        nodes = pd.DataFrame({**coordinates, self.quantity.key: self.value, **dict(self.fields)})
        if not self.traces:
            return nodes
        paths = [trace.to_frame().assign(path=trace.label) for trace in self.traces]
        return pd.concat([nodes, *paths], ignore_index=True)


def largest_errors(delta_mem: NDArray[np.floating], limit: int) -> NDArray[np.int64]:
    """Return the steps with the largest errors above 0, at most `limit`, in ascending order of the step."""
    positive = np.flatnonzero(np.nan_to_num(delta_mem) > 0)
    largest_first = positive[np.argsort(-delta_mem[positive], kind="stable")]
    return np.sort(largest_first[:limit])


@dataclass(frozen=True)
class Trace:
    """The path of an episode: the nodes that it retrieved, in order."""

    label: str
    color: str
    t: NDArray[np.int64]  # [K] steps of the episode
    x: NDArray[np.float32]  # [K]; NaN if the node is not on the map
    y: NDArray[np.float32]  # [K]; NaN if the node is not on the map
    delta_mem: NDArray[np.float64]  # [K] consistency error of the transition that starts at step t; NaN: unknown

    def to_frame(self) -> pd.DataFrame:
        """Return one row per step of the path: t, x, y, delta_mem."""
        return pd.DataFrame({"t": self.t, "x": self.x, "y": self.y, "delta_mem": self.delta_mem})

    def find_largest_errors(self, limit: int = MAX_LABELED_ERRORS) -> NDArray[np.int64]:
        """Return the indices of the points on the map with the largest errors above 0, at most `limit`, ascending."""
        errors_on_map = np.where(np.isfinite(self.x), self.delta_mem, np.nan)
        return largest_errors(errors_on_map, limit)


@dataclass(frozen=True)
class Maps:
    """Clouds side by side with one color scale."""

    name: str
    title: str
    panels: tuple[Cloud, ...]
    caption: str
    traces: tuple[Trace | None, ...] = ()
    """The path of an episode in each panel, or None for no path; empty: no panel has a path."""

    def on_dark_background(self) -> "Maps":
        """Replace viridis by the scale that the page Memory uses in the dark theme."""
        return replace(self, panels=tuple(panel.on_dark_background() for panel in self.panels))

    @property
    def low(self) -> float:
        """Value at the lower end of the common color scale."""
        return min(panel.low for panel in self.panels)

    @property
    def high(self) -> float:
        """Value at the upper end of the common color scale."""
        return max(panel.high for panel in self.panels)

    @property
    def description(self) -> str:
        """The alternative text for screen readers."""
        return f"{self.title}: {'; '.join(panel.title for panel in self.panels)}. {self.caption}"

    def find_trace(self, index: int) -> Trace | None:
        """Return the path of an episode in panel `index`, or None."""
        return self.traces[index] if self.traces else None

    def to_frame(self) -> pd.DataFrame:
        """Return one row per node and per step of a path: panel, kind, slot, t, x, y, value, delta_mem."""
        frames = []
        for index, panel in enumerate(self.panels):
            nodes = panel.to_frame().rename(columns={panel.quantity.key: "value"})
            frames.append(nodes.assign(panel=panel.title, kind="memory"))
            trace = self.find_trace(index)
            if trace is not None:
                frames.append(trace.to_frame().assign(panel=panel.title, kind="path"))
        columns = ["panel", "kind", "slot", "t", "x", "y", "value", "delta_mem"]
        return pd.concat(frames, ignore_index=True).reindex(columns=columns)


@dataclass(frozen=True)
class Grid:
    """One panel of a heat map. Row 0 is at the bottom."""

    title: str
    values: NDArray[np.float64]
    """The value of each cell [Y, X]; NaN: not measured."""
    counts: NDArray[np.int64]
    """The number of seeds of each cell [Y, X]."""

    @property
    def best(self) -> NDArray[np.bool_]:
        """Mask of the cells with the largest value, rounded to 3 digits, among the cells with at least two seeds.

        If all these cells have the same value, no cell is marked.
        """
        rounded = np.where(self.counts > 1, np.round(self.values, 3), np.nan)
        is_candidate = np.isfinite(rounded)
        is_best = is_candidate & (rounded == np.nanmax(rounded, initial=-np.inf))
        have_different_values = bool((is_best != is_candidate).any())
        return is_best & have_different_values

    @property
    def cells(self) -> Iterator[tuple[int, int, float, int, bool]]:
        """Iterate over the measured cells: row, column, value, number of seeds, whether it is the best."""
        best = self.best
        for row, column in np.argwhere(np.isfinite(self.values)).tolist():
            value = float(self.values[row, column])
            yield row, column, value, int(self.counts[row, column]), bool(best[row, column])


@dataclass(frozen=True)
class Heatmap:
    """Grids side by side with one color scale."""

    name: str
    title: str
    x_label: str
    y_label: str
    x: tuple[str, ...]
    """The values of the first setting as text, one for each column of the grids."""
    y: tuple[str, ...]
    """The values of the second setting as text, one for each row of the grids."""
    grids: tuple[Grid, ...]
    value_label: str
    caption: str
    statistic: str = ""
    """The statistic over seeds."""

    @property
    def colors(self) -> tuple[str, ...]:
        """The color scale, low to high."""
        return VIRIDIS

    @property
    def is_empty(self) -> bool:
        """Whether no cell was measured."""
        return not any(np.isfinite(grid.values).any() for grid in self.grids)

    @property
    def bounds(self) -> tuple[float, float]:
        """The limits of the color scale of all grids; never equal."""
        finite = np.concatenate([grid.values[np.isfinite(grid.values)] for grid in self.grids] or [np.empty(0)])
        if not len(finite):
            return 0.0, 1.0
        low, high = float(finite.min()), float(finite.max())
        return (low, high) if high > low else (low - 0.05, high + 0.05)

    @property
    def description(self) -> str:
        """The alternative text for screen readers."""
        parts = []
        for grid in self.grids:
            cells = [
                f"{value:.3f} at {self.x[column]} and {self.y[row]} (n = {count}{', best' if best else ''})"
                for row, column, value, count, best in grid.cells
            ]
            parts.append(f"{grid.title}: " + (", ".join(cells) or "no cell measured"))
        return f"{self.title}. {self.value_label} by {self.x_label} and {self.y_label}. " + ". ".join(parts)

    def get_text_color(self, value: float) -> str:
        """Return black or white, whichever is easier to read on the color of a value."""
        low, high = self.bounds
        is_on_dark_color = (value - low) / (high - low) < 0.6  # the upper 40 % of viridis are light
        return "#ffffff" if is_on_dark_color else "#1f2430"

    def to_frame(self) -> pd.DataFrame:
        """Return one row per cell, also for cells without a value: panel, y, x, value, statistic, n, best."""
        rows = [
            {
                "panel": grid.title,
                self.y_label: y,
                self.x_label: x,
                "value": grid.values[i, j],
                "statistic": self.statistic or None,
                "n": int(grid.counts[i, j]),
                "best": bool(grid.best[i, j]),
            }
            for grid in self.grids
            for i, y in enumerate(self.y)
            for j, x in enumerate(self.x)
        ]
        return pd.DataFrame(rows, columns=["panel", self.y_label, self.x_label, "value", "statistic", "n", "best"])
