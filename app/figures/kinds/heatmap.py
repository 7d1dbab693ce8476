"""Heatmap: one number for each combination of two settings, as plain values; what was not measured stays empty."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from app.figures.theme import VIRIDIS


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
