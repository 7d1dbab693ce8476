"""Scaling of embeddings. The merge radius delta is tested on scaled embeddings (A10, A15).

z = (x - mean) / (std + 1e-8) per dimension, with mean and std over all nodes. All nodes are scaled again at once; the
docstring of `memory` lists when.

Rounding. If |mean| is larger than std, a dimension of a float32 embedding has an error of about k 2^-24 |mean|. In the
scaled space this is k 2^-24 |mean| / std. It was measured on 3s_vs_5z against float64 embeddings with the same weights
(presets paper and wide, a refit every 1,000 steps, 29 to 11,720 nodes): k <= 4, std/|mean| >= 0.11, and the error of a
node's position <= 3.3e-6. That is 18 % of delta = 1.8e-5; the error of the distance of two nodes was at most 37 % of
delta. For std/|mean| <= 0.03 this error can reach delta, and for delta = 1.8e-7 it always does. So each measurement of
the scaling also measures the rounding error on PROBES nodes. If it exceeds TOLERANCE · delta, all embeddings are
computed and stored in float64 (`is_float64`) until the next re-projection, which measures again. With a GPU, a
re-projection embeds all nodes there, and queries are embedded on the host; the errors of both are measured against the
same float64 embeddings. Two nodes, or a node and a query, then differ by at most two errors. Embeddings are not always
in float64, because the embedding of 200,000 states of 3s_vs_5z takes 52 ms in float32 and 153 ms in float64 on one
thread: a training that needs about 1,250 ms for 1,000 env steps would be 8 % slower.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

Embeddings = NDArray[np.float32 | np.float64]

EPS = 1e-8
RESOLUTION = 1e-6  # a dimension with std <= RESOLUTION * |mean| counts as constant
PROBES = 256  # nodes on which the rounding error is measured
TOLERANCE = 1 / 3  # largest error of one probed node, relative to delta; leaves a third for nodes that are not probed


@dataclass(frozen=True)
class Scaling:
    """Mean and divisor per dimension [X], float64.

    Source: the normalization of embeddings in EMU's episodic memory (A10).
    """

    mean: NDArray[np.float64]  # [X] [embedding]
    divisor: NDArray[np.float64]  # [X] [embedding]; 1 for a constant dimension
    is_float64: bool = False  # whether it was measured on float64 embeddings

    def apply(self, x: Embeddings, out: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
        """Scale embeddings: z = (x - mean) / divisor.

        Source: the normalization of embeddings in EMU's episodic memory (A10).

        Args:
            x: [M, X] [embedding].
            out: [M, X], array for the result [normalized embedding]. None: a new array.

        Returns:
            [M, X] float64 [normalized embedding].
        """
        centered = np.subtract(x, self.mean, out=out)
        return np.divide(centered, self.divisor, out=centered)


def identity_scaling(dim: int, *, is_float64: bool = False) -> Scaling:
    """Make a scaling that does not change embeddings (`delta_space = "raw"`)."""
    return Scaling(np.zeros(dim), np.ones(dim), is_float64)


def measure_scaling(x: Embeddings) -> Scaling:
    """Measure mean and standard deviation of embeddings.

    If std is at most a millionth of |mean|, the dimension hardly distinguishes nodes; in float32 only by rounding
    noise. Such a dimension is centered but not divided. With a single node, this applies to all
    dimensions.

    Source: the normalization of embeddings in EMU's episodic memory (A10, A15).

    Args:
        x: [M, X] [embedding], M >= 1.
    """
    mean = _sum_rows(x) / len(x)
    std = np.sqrt(_sum_squares(x, mean) / len(x))
    is_constant = std <= RESOLUTION * np.abs(mean)
    return Scaling(mean, np.where(is_constant, 1.0, std + EPS), x.dtype == np.float64)


@njit(cache=True, nogil=True)
def _sum_rows(x: NDArray[Any]) -> NDArray[Any]:  # pragma: no cover  # compiled
    """Sum over rows in their order, in float64, without a float64 copy of the array."""
    total = np.zeros(x.shape[1])
    for i in range(len(x)):
        for j in range(x.shape[1]):
            total[j] += x[i, j]
    return total


@njit(cache=True, nogil=True)
def _sum_squares(x: NDArray[Any], mean: NDArray[Any]) -> NDArray[Any]:  # pragma: no cover  # compiled
    """Sum the squared differences from the mean over rows in their order, in float64."""
    total = np.zeros(x.shape[1])
    for i in range(len(x)):
        for j in range(x.shape[1]):
            gap = x[i, j] - mean[j]
            total[j] += gap * gap
    return total


def max_rounding_error(x: NDArray[np.float32], x_float64: NDArray[np.float64], scaling: Scaling) -> float:
    """Compute the largest Euclidean distance between float32 and float64 embeddings after scaling.

    Source: see the top of this module.

    Args:
        x: [M, X] [embedding].
        x_float64: [M, X] [embedding], the same embeddings in float64.
        scaling: The scaling.

    Returns:
        A scalar [normalized embedding].
    """
    return float(np.linalg.norm((x - x_float64) / scaling.divisor, axis=1).max())


def select_probes(rows: int) -> NDArray[np.int64]:
    """Select the rows on which rounding is measured, evenly spaced.

    Source: see the top of this module.

    Args:
        rows: Number of nodes, M.

    Returns:
        [P], row indices, P = min(M, PROBES).
    """
    return np.linspace(0, rows - 1, min(rows, PROBES)).astype(np.int64)
