"""Every difference, on any torch device: the fallback where faiss is missing, and the judge of the others."""

import numpy as np
import torch
from numpy.typing import NDArray

from emtc_core.memory.index.base import Metric, Points, Slots

PAIRS_AT_ONCE = 32_000_000  # bounds the distance block to 256 MB


class BruteIndex:
    """Exact differences in float64, not the |a|² - 2ab + |b|² expansion, whose rounding exceeds delta."""

    def __init__(self, metric: Metric, *, device: str = "cpu") -> None:
        self._p = 2.0 if metric == "l2" else float("inf")
        self._device = device
        self.z = torch.zeros((0, 1), dtype=torch.float64)

    def build(self, z: Points) -> None:
        """Copy all rows to the device."""
        self.z = torch.tensor(z, dtype=torch.float64, device=self._device)

    def query(self, q: Points) -> tuple[Slots, NDArray[np.float64]]:
        """Find the nearest node of each query."""
        if not len(self.z):
            return np.full(len(q), -1), np.full(len(q), np.inf)
        rows = max(1, PAIRS_AT_ONCE // len(self.z))
        found = [self._nearest(part) for part in torch.tensor(q, device=self._device).split(rows)]
        slots, distances = (torch.cat(column).cpu().numpy() for column in zip(*found, strict=True))
        return slots, distances

    def _nearest(self, q_QX: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mode = "donot_use_mm_for_euclid_dist"
        distance_QM = torch.cdist(q_QX, self.z, p=self._p, compute_mode=mode)
        nearest_Q = distance_QM.min(dim=1).values
        slot_M = torch.arange(len(self.z), device=self._device)
        is_nearest_QM = distance_QM == nearest_Q[:, None]
        slots_Q = torch.where(is_nearest_QM, slot_M, len(self.z)).min(dim=1).values
        return slots_Q, nearest_Q
