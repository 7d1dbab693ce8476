"""Products in float64 whose rows do not depend on one another, for embeddings that float32 rounds too coarsely.

A BLAS adds up a row's terms in an order that depends on where in a batch the row stands; in float64 no number of
rows and no width was found at which it does not. Here the order is that of the inputs, always.
"""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray
from torch import Tensor

Doubles = NDArray[np.float64]
ROWS = 4096  # whose outputs a processor's cache holds


def encode(layers: list[tuple[Tensor, Tensor | None]], x_MK: NDArray[np.float32]) -> Doubles:
    """Pass rows through linear layers, (weights [K, N], bias [N]) each, with ReLU between two.

    Returns:
        [M, N of the last layer] float64; a row's bits are the same in any batch.
    """
    doubled = [_as_doubles(weight, bias) for weight, bias in layers]
    parts = (_encode_part(doubled, x_MK[start : start + ROWS]) for start in range(0, len(x_MK), ROWS))
    return np.concatenate([np.zeros((0, doubled[-1][0].shape[1])), *parts])


def _as_doubles(weight: Tensor, bias: Tensor | None) -> tuple[Doubles, Doubles]:
    wide = np.ascontiguousarray(weight.detach().cpu().numpy(), np.float64)
    return wide, np.zeros(wide.shape[1]) if bias is None else bias.detach().cpu().numpy().astype(np.float64)


def _encode_part(layers: list[tuple[Doubles, Doubles]], x: NDArray[Any]) -> Doubles:
    values = x.astype(np.float64)
    for i, (weight, bias) in enumerate(layers):
        values = _multiply(values if i == 0 else np.maximum(values, 0.0), weight, bias)
    return values


@njit(cache=True, nogil=True)
def _multiply(
    x: NDArray[Any], weight: NDArray[Any], bias: NDArray[Any]
) -> NDArray[Any]:  # pragma: no cover  # compiled
    """Compute x W + b; four inputs at a time, as reading and writing y costs more than adding to it."""
    rows, inputs = x.shape
    outputs = weight.shape[1]
    y = np.empty((rows, outputs))
    for row in range(rows):
        for j in range(outputs):
            y[row, j] = bias[j]
        whole = inputs - inputs % 4
        for k in range(0, whole, 4):
            a, b, c, d = x[row, k], x[row, k + 1], x[row, k + 2], x[row, k + 3]
            for j in range(outputs):
                more = a * weight[k, j] + b * weight[k + 1, j] + c * weight[k + 2, j] + d * weight[k + 3, j]
                y[row, j] += more
        for k in range(whole, inputs):
            for j in range(outputs):
                y[row, j] += x[row, k] * weight[k, j]
    return y
