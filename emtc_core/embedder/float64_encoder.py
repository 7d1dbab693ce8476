"""Linear layers with ReLU in float64, for embeddings where float32 is too coarse. A row does not depend on other rows.

With BLAS, the order of the sum over a row's terms depends on the position of the row in the batch; in float64 this
happened for every tested number of rows and width. Here the order is always that of the inputs.
"""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray
from torch import Tensor

Doubles = NDArray[np.float64]
CHUNK_ROWS = 4096
"""Rows that pass through all layers together; their outputs fit into the CPU cache."""


def encode_float64(layers: list[tuple[Tensor, Tensor | None]], x_MK: NDArray[np.float32]) -> Doubles:
    """Compute linear layers with ReLU between them in float64.

    Source: `Encoder.forward`.

    Args:
        layers: Weights [K, N] and bias [N] of each layer, dimensionless.
        x_MK: [M, K], inputs of the first layer, dimensionless.

    Returns:
        [M, N] float64 [embedding], outputs of the last layer; a row's bits do not depend on the other rows.
    """
    layers_f64: list[tuple[Doubles, Doubles]] = []
    for weight, bias in layers:
        weight_f64 = np.ascontiguousarray(weight.detach().cpu().numpy(), np.float64)
        n_outputs = weight_f64.shape[1]
        bias_f64 = np.zeros(n_outputs) if bias is None else bias.detach().cpu().numpy().astype(np.float64)
        layers_f64.append((weight_f64, bias_f64))
    chunks = [np.zeros((0, layers_f64[-1][0].shape[1]))]
    for start in range(0, len(x_MK), CHUNK_ROWS):
        values = x_MK[start : start + CHUNK_ROWS].astype(np.float64)
        for i, (weight, bias) in enumerate(layers_f64):
            values = _multiply(values if i == 0 else np.maximum(values, 0.0), weight, bias)
        chunks.append(values)
    return np.concatenate(chunks)


@njit(cache=True, nogil=True)
def _multiply(
    x: NDArray[Any], weight: NDArray[Any], bias: NDArray[Any]
) -> NDArray[Any]:  # pragma: no cover  # compiled
    """Compute x W + b. Four inputs share one pass over y, because reading and writing y is the largest cost."""
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
