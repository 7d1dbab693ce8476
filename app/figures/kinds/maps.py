"""What one quantity colours, as plain values: clouds, maps (clouds side by side), and heat maps.

A cloud is the points of a memory snapshot in a plane. Maps share one colour scale, with paths over them where an
episode is followed. A heat map has one number for each combination of two settings; what was not measured stays empty.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from app.analysis.selection import Quantity
from app.figures.theme import TWO, VIRIDIS

MOST_JUMPS = 3
"""Errors that are written beside a path."""


def scale_ends(values: NDArray[np.floating], quantity: Quantity) -> tuple[float, float]:
    """Choose the values at the ends of a colour scale so that one point in a hundred may lie beyond either.

    Where nearly all points share one value, those that do not decide: a scale without a length would show nothing.
    """
    finite = values[np.isfinite(values)]
    if quantity.binary or not len(finite):
        return 0.0, 1.0
    low, high = np.quantile(finite, (0.01, 0.99))
    unlike = finite[finite != low]
    if low == high and len(unlike):
        low, high = min(low, np.quantile(unlike, 0.01)), max(high, np.quantile(unlike, 0.99))
    return float(low), float(high)


@dataclass(frozen=True)
class Cloud:
    """Points with the memory slot each stands for; a missing value is NaN."""

    name: str
    title: str
    x_label: str
    y_label: str
    x: NDArray[np.float32]
    y: NDArray[np.float32]
    slot: NDArray[np.int64]
    value: NDArray[np.float32]
    quantity: Quantity
    caption: str
    fields: tuple[tuple[str, NDArray[np.float32]], ...] = ()
    """Every quantity of the points with its key, where there is room for all of them."""
    scale: tuple[str, ...] = VIRIDIS

    @property
    def value_label(self) -> str:
        """The coloured quantity with its unit."""
        return f"{self.quantity.name} [{self.quantity.unit}]"

    @property
    def colors(self) -> tuple[str, ...]:
        """The colour scale, low to high."""
        return TWO if self.quantity.binary and self.scale == VIRIDIS else self.scale

    @property
    def low(self) -> float:
        """Value at the lower end of the scale; one point in a hundred may lie below."""
        return scale_ends(self.value, self.quantity)[0]

    @property
    def high(self) -> float:
        """Value at the upper end of the scale; one point in a hundred may lie above."""
        return scale_ends(self.value, self.quantity)[1]

    @property
    def description(self) -> str:
        """What the picture shows, in words."""
        return f"{self.title}: {len(self.slot)} points coloured by {self.value_label}. {self.caption}"

    def to_frame(self) -> pd.DataFrame:
        """List every point: slot, x, y and the quantities, the coloured one first."""
        place = {"slot": self.slot, "x": self.x, "y": self.y}
        return pd.DataFrame({**place, self.quantity.key: self.value, **dict(self.fields)})


def largest_errors(delta_mem: NDArray[np.floating], most: int) -> NDArray[np.int64]:
    """Choose the steps with the largest errors above 0, at most so many, in order."""
    known = np.flatnonzero(np.nan_to_num(delta_mem) > 0)
    return np.sort(known[np.argsort(-delta_mem[known], kind="stable")][:most])


@dataclass(frozen=True)
class Trace:
    """The nodes that an episode retrieved, in order."""

    label: str
    color: str
    t: NDArray[np.int64]  # [K] steps of the episode
    x: NDArray[np.float32]  # [K]; NaN where the node is not on the map
    y: NDArray[np.float32]
    delta_mem: NDArray[np.float64]  # [K] error of the transition that begins there; NaN: unknown

    def jumps(self, most: int = MOST_JUMPS) -> NDArray[np.int64]:
        """Choose the places on the map with the largest errors above 0, at most so many, in order."""
        return largest_errors(np.where(np.isfinite(self.x), self.delta_mem, np.nan), most)


@dataclass(frozen=True)
class Maps:
    """One cloud per panel; `traces` has one entry per panel or none."""

    name: str
    title: str
    panels: tuple[Cloud, ...]
    caption: str
    traces: tuple[Trace | None, ...] = ()

    @property
    def low(self) -> float:
        """Value at the lower end of the common scale."""
        return min(panel.low for panel in self.panels)

    @property
    def high(self) -> float:
        """Value at the upper end of the common scale."""
        return max(panel.high for panel in self.panels)

    @property
    def description(self) -> str:
        """What the picture shows, in words."""
        return f"{self.title}: {'; '.join(panel.title for panel in self.panels)}. {self.caption}"

    def trace_of(self, place: int) -> Trace | None:
        """Return the path over a panel, or None."""
        return self.traces[place] if self.traces else None

    def to_frame(self) -> pd.DataFrame:
        """List every point and every place of a path: panel, kind, slot, t, x, y, value, delta_mem."""
        parts = []
        for place, panel in enumerate(self.panels):
            points = panel.to_frame().rename(columns={panel.quantity.key: "value"})
            parts.append(points.assign(panel=panel.title, kind="memory"))
            if (trace := self.trace_of(place)) is not None:
                path = {"t": trace.t, "x": trace.x, "y": trace.y, "delta_mem": trace.delta_mem}
                parts.append(pd.DataFrame(path).assign(panel=panel.title, kind="path"))
        columns = ["panel", "kind", "slot", "t", "x", "y", "value", "delta_mem"]
        return pd.concat(parts, ignore_index=True).reindex(columns=columns)


@dataclass(frozen=True)
class Grid:
    """One map of values [Y, X], row 0 at the bottom; NaN where nothing was measured. `counts` says over how many."""

    title: str
    values: NDArray[np.float64]
    counts: NDArray[np.int64]

    @property
    def best(self) -> NDArray[np.bool_]:
        """Of the cells with two seeds or more those with the greatest value as it is printed; none if all are alike."""
        shown = np.where(self.counts > 1, np.round(self.values, 3), np.nan)
        known = np.isfinite(shown)
        best = known & (shown == np.nanmax(shown, initial=-np.inf))
        return best & bool((best != known).any())

    @property
    def cells(self) -> Iterator[tuple[int, int, float, int, bool]]:
        """Go through the measured cells: row, column, value, count, whether it is the best."""
        best = self.best
        for y, x in np.argwhere(np.isfinite(self.values)).tolist():
            yield y, x, float(self.values[y, x]), int(self.counts[y, x]), bool(best[y, x])


@dataclass(frozen=True)
class Heatmap:
    """Grids side by side on one colour scale; `x` and `y` are the values of the two settings as text."""

    name: str
    title: str
    x_label: str
    y_label: str
    x: tuple[str, ...]
    y: tuple[str, ...]
    grids: tuple[Grid, ...]
    value_label: str
    caption: str
    statistic: str = ""
    """What a value is over seeds."""

    @property
    def colors(self) -> tuple[str, ...]:
        """The colour scale, low to high."""
        return VIRIDIS

    @property
    def is_empty(self) -> bool:
        """Whether no cell was measured."""
        return not any(np.isfinite(grid.values).any() for grid in self.grids)

    @property
    def bounds(self) -> tuple[float, float]:
        """The ends of the colour scale, common to all grids; never equal."""
        known = np.concatenate([grid.values[np.isfinite(grid.values)] for grid in self.grids] or [np.empty(0)])
        if not len(known):
            return 0.0, 1.0
        low, high = float(known.min()), float(known.max())
        return (low, high) if high > low else (low - 0.05, high + 0.05)

    @property
    def description(self) -> str:
        """What the picture shows, in words."""
        parts = [
            f"{grid.title}: " + (", ".join(self._say(grid, *cell) for cell in grid.cells) or "no cell measured")
            for grid in self.grids
        ]
        return f"{self.title}. {self.value_label} by {self.x_label} and {self.y_label}. " + ". ".join(parts)

    def ink_at(self, value: float) -> str:
        """Choose black or white text, whichever reads better on the colour of a value."""
        low, high = self.bounds
        return "#ffffff" if (value - low) / (high - low) < 0.6 else "#1f2430"

    def to_frame(self) -> pd.DataFrame:
        """List every cell, also the empty ones: panel, both settings, value, what it is, n, best."""
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

    def _say(self, grid: Grid, y: int, x: int, value: float, count: int, best: bool) -> str:
        return f"{value:.3f} at {self.x[x]} and {self.y[y]} (n = {count}{', best' if best else ''})"
