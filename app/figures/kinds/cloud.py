"""Cloud: the points of a memory snapshot in a plane, coloured by one quantity, as plain values."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from app.analysis.selection import Quantity
from app.figures.theme import TWO, VIRIDIS


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
