"""Sampling weights of the episodes of a replay buffer (prioritized episode replay).

Weights are computed from TD errors that may still be on a GPU. Weights from the host are used from the next draw on.
Weights from a GPU are used one draw later, always. So the host can start update k + 1 without waiting for update k, and
the result does not depend on timing.
"""

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from emtc_core.devices import AsyncCopy

MIN_WEIGHT = 1e-8
"""Lower bound of a sampling weight."""


@dataclass
class PendingWeights:
    """Weights that are not used yet. The index of an episode that was replaced since then is -1.

    Source: implementation detail.
    """

    indices: NDArray[np.int64]  # [K] indices in the buffer
    weights: AsyncCopy  # [K]


class Priorities:
    """One sampling weight per episode of a replay buffer."""

    def __init__(self, capacity: int, *, lag: int) -> None:
        """Set all weights to 1. A new weight takes effect after `lag` further calls of `set`."""
        self._weight = np.ones(capacity)
        self._lag = lag
        self._pending: deque[PendingWeights] = deque()

    def reset(self, index: int) -> None:
        """Set the weight of a new episode to 1, and drop pending weights of the episode that it replaces."""
        self._weight[index] = 1.0
        for pending in self._pending:
            pending.indices[pending.indices == index] = -1

    def set(self, indices: NDArray[np.integer], weights: AsyncCopy) -> None:
        """Set the sampling weights of episodes.

        Source: the prioritized episode replay of lich14/CDS, CDS_GRF.

        Args:
            indices: [K], indices in the buffer.
            weights: [K], > 0 [unit varies].
        """
        self._pending.append(PendingWeights(np.array(indices, np.int64), weights))
        self._apply_due()

    def draw(self, n: int, size: int, alpha: float, rng: np.random.Generator) -> NDArray[np.int64]:
        """Sample n of the first `size` indices without replacement, with probability proportional to weight ** alpha.

        Source: the prioritized episode replay of lich14/CDS, CDS_GRF.

        Args:
            n: Number of indices.
            size: Number of episodes in the buffer.
            alpha: Exponent of the weights.
            rng: Random generator.

        Returns:
            Indices, shape [n].
        """
        weight = self._weight[:size] ** alpha
        return rng.choice(size, n, replace=False, p=weight / weight.sum())

    def get_state(self, size: int) -> dict[str, Any]:
        """Return the weights of the first `size` episodes and the pending weights, for a checkpoint."""
        pending = [{"indices": torch.from_numpy(p.indices.copy()), "weights": p.weights.wait()} for p in self._pending]
        return {"priority": torch.from_numpy(self._weight[:size].copy()), "pending_priorities": pending}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the result of `get_state`."""
        weight = state["priority"].numpy()
        self._weight[: len(weight)] = weight
        saved = state["pending_priorities"]
        self._pending = deque(PendingWeights(p["indices"].numpy().copy(), AsyncCopy(p["weights"])) for p in saved)
        self._apply_due()

    def _apply_due(self) -> None:
        while len(self._pending) > self._lag:
            pending = self._pending.popleft()
            is_valid = pending.indices >= 0
            weights = np.maximum(pending.weights.wait().numpy(), MIN_WEIGHT)
            self._weight[pending.indices[is_valid]] = weights[is_valid]
