"""Sampling weights of stored episodes, set from errors that may still be on their way from a GPU.

A weight set from the host counts from the next draw. Those of a GPU count one draw later, always: the host then asks
for update k + 1 without waiting for update k, and nothing depends on which of them was faster.
"""

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from emtc_core.device import AsyncCopy, fetch

SMALLEST = 1e-8


@dataclass
class Coming:
    """Weights not yet in force; episodes that have left since are -1."""

    places: NDArray[np.int64]
    weights: AsyncCopy


class Priorities:
    """One weight for each place of a replay buffer."""

    def __init__(self, places: int, *, lag: int) -> None:
        """Start at 1 everywhere; `lag` is how many draws a weight comes late."""
        self._weight = np.ones(places)
        self._lag = lag
        self._coming: deque[Coming] = deque()

    def reset(self, place: int) -> None:
        """Begin anew at 1, for another episode."""
        self._weight[place] = 1.0
        for coming in self._coming:
            coming.places[coming.places == place] = -1

    def set(self, places: NDArray[np.integer], weights: Tensor) -> None:
        """Set the weights (> 0) of these places."""
        self._coming.append(Coming(np.array(places, np.int64), fetch(weights)))
        self._settle()

    def draw(self, n: int, among: int, alpha: float, rng: np.random.Generator) -> NDArray[np.int64]:
        """Draw n different ones of the first `among` places, by weight to the power alpha."""
        weight = self._weight[:among] ** alpha
        return rng.choice(among, n, replace=False, p=weight / weight.sum())

    def get_state(self, size: int) -> dict[str, Any]:
        """Return the weights of the first places, and those that are coming."""
        coming = [{"places": torch.from_numpy(c.places.copy()), "weights": c.weights.wait()} for c in self._coming]
        return {"priority": torch.from_numpy(self._weight[:size].copy()), "coming_priorities": coming}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_state` returned."""
        weight = state["priority"].numpy()
        self._weight[: len(weight)] = weight
        saved = state.get("coming_priorities", [])  # absent in older checkpoints
        self._coming = deque(Coming(c["places"].numpy().copy(), AsyncCopy(c["weights"])) for c in saved)
        self._settle()

    def _settle(self) -> None:
        while len(self._coming) > self._lag:
            coming = self._coming.popleft()
            held = coming.places >= 0
            weights = np.maximum(coming.weights.wait().numpy(), SMALLEST)
            self._weight[coming.places[held]] = weights[held]
