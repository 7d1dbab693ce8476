"""Scaling of embeddings into the space where delta is tested (A10, A15).

z = (x - mean) / (std + 1e-8) per dimension, mean and std over all nodes. Statistics change for all nodes at
once, never for some. `EpisodicMemory` decides when; its docstring says so.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

EPS = 1e-8
RESOLUTION = 1e-6


@dataclass(frozen=True)
class Scaling:
    """Per-dimension centre and divisor [X], float64."""

    mean: NDArray[np.float64]
    divisor: NDArray[np.float64]

    def apply(self, x: NDArray[np.float32]) -> NDArray[np.float64]:
        """Scale embeddings [M, X]."""
        return (x - self.mean) / self.divisor


def identity_scaling(dim: int) -> Scaling:
    """Leave embeddings as they are (`delta_space = "raw"`)."""
    return Scaling(np.zeros(dim), np.ones(dim))


def measure_scaling(x: NDArray[np.float32]) -> Scaling:
    """Measure the scaling of some embeddings [M, X], M >= 1.

    A dimension whose spread is within float32 rounding of its mean tells nodes apart by noise only; dividing
    by it would make noise look like distance. Such a dimension, and any dimension while there is a single
    node, is centred and left in its raw unit.
    """
    mean = x.mean(axis=0, dtype=np.float64)
    std = np.sqrt(((x - mean) ** 2).mean(axis=0))
    is_constant = std <= RESOLUTION * np.abs(mean)
    return Scaling(mean, np.where(is_constant, 1.0, std + EPS))
