"""Scaling of embeddings into the space where delta is tested (A10, A15).

z = (x - mean) / (std + 1e-8) per dimension, mean and std over all nodes. Statistics change for all nodes at
once, never for some. `EpisodicMemory` decides when; its docstring says so.

Rounding. Where its mean outweighs its spread, a dimension of a float32 embedding is off by some k 2^-24 |mean|,
hence in the scaled space by k 2^-24 |mean| / std. Measured on 3s_vs_5z against float64 embeddings by the same weights
(presets paper and wide, a refit every 1,000 steps, 29 to 11,720 nodes): k <= 4 there, std/|mean| never below 0.11, no
node further than 3.3e-6 from its float64 place. That is 18 % of delta = 1.8e-5; the distance of two nodes is off by
37 % of delta at most. From std/|mean| = 0.03 down it can be off by delta itself, and at delta = 1.8e-7 it always is.
So each refresh measures rounding on PROBES nodes; where it exceeds TOLERANCE of delta, all embeddings are computed
and kept in float64 (`is_fine`) until the next re-projection, which asks anew.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

Embeddings = NDArray[np.float32 | np.float64]

EPS = 1e-8
RESOLUTION = 1e-6
PROBES = 256  # nodes on which rounding is measured
TOLERANCE = 1 / 3  # of delta, for one node; a third is left to the nodes that were not probed


@dataclass(frozen=True)
class Scaling:
    """Per-dimension centre and divisor [X], float64."""

    mean: NDArray[np.float64]
    divisor: NDArray[np.float64]
    is_fine: bool = False  # belongs to float64 embeddings

    def apply(self, x: Embeddings, out: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
        """Scale embeddings [M, X], into `out` where it is given."""
        centred = np.subtract(x, self.mean, out=out)
        return np.divide(centred, self.divisor, out=centred)


def identity_scaling(dim: int, *, is_fine: bool = False) -> Scaling:
    """Leave embeddings as they are (`delta_space = "raw"`)."""
    return Scaling(np.zeros(dim), np.ones(dim), is_fine)


def measure_scaling(x: Embeddings) -> Scaling:
    """Measure the scaling of some embeddings [M, X], M >= 1.

    A dimension whose spread is a millionth of its mean hardly tells nodes apart, in float32 by noise only. Such a
    dimension, and any dimension while there is a single node, is centred and left in its raw unit.
    """
    mean = _sum_rows(x) / len(x)
    std = np.sqrt(_sum_squares(x, mean) / len(x))
    is_constant = std <= RESOLUTION * np.abs(mean)
    return Scaling(mean, np.where(is_constant, 1.0, std + EPS), x.dtype == np.float64)


@njit(cache=True, nogil=True)
def _sum_rows(x: NDArray[Any]) -> NDArray[Any]:  # pragma: no cover  # compiled
    """Sum over rows in their order, in float64; a column of a million needs no copy."""
    total = np.zeros(x.shape[1])
    for i in range(len(x)):
        for j in range(x.shape[1]):
            total[j] += x[i, j]
    return total


@njit(cache=True, nogil=True)
def _sum_squares(x: NDArray[Any], mean: NDArray[Any]) -> NDArray[Any]:  # pragma: no cover  # compiled
    """Sum the squared distances from the mean, likewise."""
    total = np.zeros(x.shape[1])
    for i in range(len(x)):
        for j in range(x.shape[1]):
            gap = x[i, j] - mean[j]
            total[j] += gap * gap
    return total


def largest_rounding(x: NDArray[np.float32], fine: NDArray[np.float64], scaling: Scaling) -> float:
    """Largest Euclidean distance, in the scaled space, between a float32 embedding [M, X] and its float64 place."""
    return float(np.linalg.norm((x - fine) / scaling.divisor, axis=1).max())


def choose_probes(rows: int) -> NDArray[np.int64]:
    """Rows on which rounding is measured, spread evenly."""
    return np.linspace(0, rows - 1, min(rows, PROBES)).astype(np.int64)
