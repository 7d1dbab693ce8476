"""`ReturnScale`, the unit of the embedder's return target: 1, or the running standard deviation of the returns (B15).

The published return loss is (H - H^)². For returns of about 20 it is hundreds of times larger than InfoNCE, so it
dominates the gradient. `return_scale = "std"` minimizes ((H - H^) / sigma_H)², the fraction of unexplained variance,
which does not depend on the unit of the rewards. The target is H / sigma_H and the head predicts H^ / sigma_H. Nothing
is centered and nothing else changes.
"""

from collections.abc import Mapping
from typing import Literal

import numpy as np
from numpy.typing import NDArray

UPDATE_RATE = 0.1
"""Weight of the latest sample in the running variance; slow enough for the weights of the head to adapt."""
MIN_RELATIVE_STD = 1e-6
"""A standard deviation below this fraction of the largest |H| is rounding error."""


class ReturnScale:
    """Divisor of the return target: 1 (`none`) or the running standard deviation of the returns (`std`)."""

    def __init__(self, unit: Literal["none", "std"]) -> None:
        self._unit = unit
        self._variance: float | None = None

    @property
    def divisor(self) -> float:
        """1, or sigma_H [return]; also 1 as long as all returns were equal."""
        return 1.0 if self._variance is None else self._variance**0.5

    def update(self, h_M: NDArray[np.float64]) -> float:
        """Update the running variance with the returns of a refit's nodes; return the divisor for this refit.

        The first sample sets the variance; later ones change it with the rate `UPDATE_RATE`. A sample of equal
        returns is skipped.

        Source: own extension of Eq. 5 (B15).

        Args:
            h_M: [M], H of the nodes [return].
        """
        if self._unit == "none" or not np.isfinite(h_M).all():
            return self.divisor
        variance = float(np.var(h_M, dtype=np.float64))
        if variance <= (MIN_RELATIVE_STD * np.abs(h_M).max()) ** 2:
            return self.divisor
        previous = variance if self._variance is None else self._variance
        self._variance = previous + UPDATE_RATE * (variance - previous)
        return self.divisor

    def get_state(self) -> dict[str, float | None]:
        """Return the running variance."""
        return {"variance": self._variance}

    def set_state(self, state: Mapping[str, float | None]) -> None:
        """Restore the result of `get_state`."""
        self._variance = state["variance"]
