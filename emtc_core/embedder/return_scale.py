"""Unit in which the embedder learns returns: theirs, or their own running standard deviation (B15).

The printed return loss is (H - H^)². With returns of size 20 it is hundreds of times InfoNCE, whose gradient it
then drowns. `return_scale = "std"` minimises ((H - H^) / sigma_H)², the share of the variance of H that the
decoder leaves unexplained, which weighs the same whatever the rewards' unit: the target is H / sigma_H, the head
decodes H^ / sigma_H, nothing is centred, and everything else stays. Stage before: memory (`sample`); after: fit.
"""

from collections.abc import Mapping
from typing import Literal

import numpy as np
from numpy.typing import NDArray

RATE = 0.1  # share of the latest sample; the head's unit then moves slower than its weights can follow
RESOLUTION = 1e-6  # a spread within rounding of the mean is none


class ReturnScale:
    """Divisor of the return target."""

    def __init__(self, how: Literal["none", "std"]) -> None:
        self._how = how
        self._variance: float | None = None

    @property
    def divisor(self) -> float:
        """1 or sigma_H [return]; 1 before any two returns differed."""
        return 1.0 if self._variance is None else self._variance**0.5

    def update(self, h_M: NDArray[np.float64]) -> float:
        """Take the returns of one refit's nodes into the running variance; return the divisor for this refit.

        The first sample sets it; each later one moves it by `RATE` of the way. Returns that are all alike say
        nothing about a unit.
        """
        if self._how == "none" or not np.isfinite(h_M).all():
            return self.divisor
        variance = float(np.var(h_M, dtype=np.float64))
        if variance <= (RESOLUTION * np.abs(h_M).max()) ** 2:
            return self.divisor
        before = variance if self._variance is None else self._variance
        self._variance = before + RATE * (variance - before)
        return self.divisor

    def get_state(self) -> dict[str, float | None]:
        """Copy the running variance."""
        return {"variance": self._variance}

    def set_state(self, state: Mapping[str, float | None]) -> None:
        """Continue from `get_state`."""
        self._variance = state["variance"]
