"""What one reading of the paper said about a run's recorded episodes, point by point."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Point(Protocol):
    """What one reading said at one moment; see emtc_core.training.readings.ReadingPoint."""

    @property
    def env_step(self) -> int: ...

    @property
    def tau(self) -> float: ...

    @property
    def delta_new(self) -> tuple[float, float, float]: ...

    @property
    def beta_new(self) -> tuple[float, float, float]: ...

    @property
    def delta_links(self) -> float: ...

    @property
    def beta_links(self) -> float: ...

    @property
    def merge_rate(self) -> float: ...

    @property
    def closed(self) -> float: ...

    @property
    def size(self) -> int: ...


@dataclass(frozen=True)
class Reading:
    """One reading's points in order."""

    name: str
    points: Sequence[Point]

    def series(self, value: Callable[[Point], float]) -> NDArray[np.float64]:
        """One number of every point, as an array."""
        return np.array([value(point) for point in self.points], np.float64)
