"""The encoder's layers on one device, prepared for embeddings of any number of rows.

BLAS uses other kernels for fewer rows than MIN_ROWS, for a number of rows that is not a multiple of ROW_TILE, and for a
width that is not a multiple of WIDTH. With those kernels the last bit of a row depends on the number of rows. So the
layers and the rows are padded with zeros. The padded layers are made once for each version of the weights.
"""

import torch
from torch import Tensor, nn

MIN_ROWS = 64
ROW_TILE = 4
WIDTH = 16
CHUNK_ROWS = (2048, 65_536)  # on a CPU, so that the outputs of the layers fit into the cache, and on a GPU

Layers = list[tuple[Tensor, Tensor | None]]  # weight [N, K] and bias [N] of each layer


class PaddedLayers:
    """Linear layers with ReLU between them, for inputs of which the last column is the time."""

    def __init__(self, layers: Layers, *, n_inputs: int) -> None:
        """Copy and pad the layers.

        Args:
            layers: Weight and bias of each layer.
            n_inputs: Number of columns of the inputs. If the first layer has fewer, the last columns are ignored.
        """
        self._layers: list[tuple[Tensor, Tensor | None]] = []
        self._n_outputs = len(layers[-1][0])
        n = n_inputs
        for weight, bias in layers:
            self._layers.append(_pad(weight, bias, n_inputs=n))
            n = self._layers[-1][0].shape[1]

    def encode(self, state_MS: Tensor, time_M1: Tensor) -> Tensor:
        """Compute all layers.

        Source: `Encoder.forward`.

        Args:
            state_MS: [M, S] [state features], on the device of the layers.
            time_M1: [M, 1], time steps divided by the episode limit, dimensionless.

        Returns:
            [M, X] [embedding]. On a CPU a row's bits do not depend on the other rows.
        """
        M, device = len(state_MS), state_MS.device
        C = _count_padded_rows(min(M, CHUNK_ROWS[device.type == "cuda"]))
        buffers = [torch.zeros(C, len(weight_KN), device=device) for weight_KN, _ in self._layers]
        buffers.append(torch.empty(C, self._layers[-1][0].shape[1], device=device))
        x_MX = torch.empty(M, self._n_outputs, device=device)
        for start in range(0, M, C):
            rows = slice(start, min(start + C, M))
            x_MX[rows] = self._encode_chunk(buffers, state_MS[rows], time_M1[rows])[:, : self._n_outputs]
        return x_MX

    def _encode_chunk(self, buffers: list[Tensor], state_MS: Tensor, time_M1: Tensor) -> Tensor:
        """Compute the layers for one chunk of rows, with padding rows, in preallocated arrays."""
        rows = _count_padded_rows(len(state_MS))
        x, *outputs = (part[:rows] for part in buffers)
        x[: len(state_MS), :-1] = state_MS
        x[: len(state_MS), -1:] = time_M1
        for (weight, bias), output in zip(self._layers, outputs, strict=True):
            torch.mm(x, weight, out=output) if bias is None else torch.addmm(bias, x, weight, out=output)
            x = output if output is outputs[-1] else output.relu_()
        return x[: len(state_MS)]


def _pad(weight: Tensor, bias: Tensor | None, *, n_inputs: int) -> tuple[Tensor, Tensor | None]:
    """Pad weights [N, K] with zeros to K = `n_inputs` and to a multiple of WIDTH for N; return the transpose."""
    extra = -weight.shape[0] % WIDTH
    padded = nn.functional.pad(weight, (0, n_inputs - weight.shape[1], 0, extra))
    return padded.t(), None if bias is None else nn.functional.pad(bias, (0, extra))


def _count_padded_rows(n_rows: int) -> int:
    """Return the smallest number of rows >= `n_rows` for which a row's bits do not depend on the number of rows."""
    return max(n_rows + -n_rows % ROW_TILE, MIN_ROWS)
