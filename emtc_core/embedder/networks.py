"""Encoder and decoder of the semantic embedder, and the fixed random projection as an alternative.

The encoder maps (state, t / T_lim) to a small embedding. The decoder maps the embedding to the state and the return.
`Embedder` also contains the optimizer and the generators, so its state is one unit in a checkpoint. Stage before:
rollout; after: memory (embed) and fit (train).
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from emtc_core.arrays import check_shape
from emtc_core.config.memory import EmbedConfig
from emtc_core.devices import copy_state, send_tensor
from emtc_core.embedder.float64_encoder import encode_float64
from emtc_core.embedder.return_scale import ReturnScale

State = NDArray[np.float32] | Tensor
Times = NDArray[np.integer[Any]] | Tensor

HOST = torch.device("cpu")
RANDOM_PROJECTION_SEED = 123456  # as in EMU and EMC (B13)
# BLAS uses other kernels for fewer rows than MIN_ROWS, for a number of rows that is not a multiple of ROW_TILE, and for
# a width that is not a multiple of WIDTH. With those kernels the last bit of a row depends on the number of rows.
MIN_ROWS = 64
ROW_TILE = 4
WIDTH = 16
CHUNK_ROWS = (2048, 65_536)  # on a CPU, so that the outputs of the layers fit into the cache, and on a GPU


class Encoder(nn.Module):
    """Maps states [M, S] and normalized time [M, 1] to embeddings [M, X]."""

    def __init__(self, state_dim: int, hidden: int, dim: int) -> None:
        super().__init__()
        self.trunk = _trunk(state_dim + 1, hidden)
        self.out = nn.Linear(hidden, dim)

    def forward(self, state_MS: Tensor, time_M1: Tensor) -> Tensor:
        """Compute the embeddings f_phi(s, t).

        Source: the encoder of HyunghoNa/EMU, src/controllers/vae_embedder.py.

        Args:
            state_MS: [M, S] [state features].
            time_M1: [M, 1], time steps divided by the episode limit, dimensionless.

        Returns:
            [M, X] [embedding].
        """
        return self.out(self.trunk(torch.cat([state_MS, time_M1], dim=1)))


class Decoder(nn.Module):
    """Maps embeddings [M, X] and normalized time [M, 1] to states [M, S] and returns [M]."""

    def __init__(self, state_dim: int, hidden: int, dim: int) -> None:
        super().__init__()
        self.trunk = _trunk(dim + 1, hidden)
        self.state = nn.Linear(hidden, state_dim)
        self.h = nn.Linear(hidden, 1)

    def forward(self, x_MX: Tensor, time_M1: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the decoded states f_psi^s and returns f_psi^H (Eq. 5).

        Args:
            x_MX: [M, X] [embedding].
            time_M1: [M, 1], time steps divided by the episode limit, dimensionless.

        Returns:
            States [M, S] [state features], and returns [M] in the embedder's return unit.
        """
        hidden_MH = self.trunk(torch.cat([x_MX, time_M1], dim=1))
        return self.state(hidden_MH), self.h(hidden_MH).squeeze(1)


def _trunk(inputs: int, hidden: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())


def hidden_layers(part: Encoder | Decoder) -> list[nn.Linear]:
    """List the linear layers of the trunk."""
    return [layer for layer in part.trunk if isinstance(layer, nn.Linear)]


class Embedder:
    """The built-in embedders of `embed.type`. Only `fit` uses the decoder and the optimizer."""

    def __init__(
        self, config: EmbedConfig, *, state_dim: int, episode_limit: int, device: str | torch.device, seed: int
    ) -> None:
        self.config = config
        self.state_dim = state_dim
        self.episode_limit = episode_limit
        self.device = torch.device(device)
        self.generator = torch.Generator().manual_seed(seed)
        self._init_generator = torch.Generator().manual_seed(seed)
        self.return_scale = ReturnScale(config.return_scale)
        self.device_step: object = None
        """Buffers and CUDA graph that `fit` reuses on a GPU (`device_step.DeviceStep`)."""
        if config.type == "random":
            self.projection = _random_projection(state_dim, config.dim).to(self.device)
        else:
            with torch.random.fork_rng(devices=[]):  # `initialize` overwrites the weights of the constructors
                self.encoder = Encoder(state_dim, config.hidden, config.dim).to(self.device)
                self.decoder = Decoder(state_dim, config.hidden, config.dim).to(self.device)
            self.initialize()

    @property
    def dim(self) -> int:
        """Number of embedding dimensions."""
        return self.config.dim

    @property
    def is_trainable(self) -> bool:
        """Whether the embedder has weights to train."""
        return self.config.type != "random"

    @property
    def reads_states_on_gpu(self) -> bool:
        """Whether refits read the states of all nodes on a GPU, so that the memory should store them there."""
        return self.is_trainable and self.device.type == "cuda"

    @property
    def parameters(self) -> list[nn.Parameter]:
        """All parameters of encoder and decoder."""
        return [*self.encoder.parameters(), *self.decoder.parameters()]

    def initialize(self) -> None:
        """Initialize the weights with PyTorch's default distribution and reset the optimizer (B1, B2)."""
        for part in (self.encoder, self.decoder):
            for layer in part.modules():
                if isinstance(layer, nn.Linear):
                    _draw_linear(layer, self._init_generator)
        self.optimizer = torch.optim.Adam(self.parameters, lr=self.config.lr, fused=True)

    @torch.no_grad()
    def embed(self, state: State, t: Times, *, for_write: bool = False) -> Tensor:
        """Embed states at their time steps, x = f_phi(s, t) (Algorithm 2).

        On a CPU a row's result does not depend on the other rows of the batch. If the same (state, t) is written,
        queried and re-projected with the same weights, the distance is exactly 0.

        Args:
            state: [M, S] float32 [state features].
            t: [M], time steps in the episode [steps]; ignored by the random projection.
            for_write: The embedding is stored in a node. Matters only with `time_norm = "write_T_lim+1"` (A14).

        Returns:
            [M, X] float32 [embedding], on the embedder's device.
        """
        check_shape("state", state, (None, self.state_dim))
        check_shape("t", t, (len(state),))
        state_MS, time_M1 = self.to_inputs(state, t, for_write=for_write)
        M = len(state_MS)
        C = _padded_rows(min(M, CHUNK_ROWS[self.device.type == "cuda"]))
        layers = self._widened_layers()
        buffers = [torch.zeros(C, len(weight_KN), device=self.device) for weight_KN, _ in layers]
        buffers.append(torch.empty(C, layers[-1][0].shape[1], device=self.device))
        x_MX = torch.empty(M, self.dim, device=self.device)
        for start in range(0, M, C):
            rows = slice(start, min(start + C, M))
            x_MX[rows] = _encode(layers, buffers, state_MS[rows], time_M1[rows])[:, : self.dim]
        return x_MX

    @torch.no_grad()
    def embed_float64(self, state: State, t: Times, *, for_write: bool = False) -> NDArray[np.float64]:
        """Embed states like `embed`, from the same float32 inputs and weights, with all operations in float64.

        It always runs on the CPU and takes about three times as long as `embed` there. A row's result does not depend
        on the other rows.

        Source: `embed`.

        Args:
            state: [M, S] float32 [state features].
            t: [M], time steps in the episode [steps].
            for_write: See `embed`.

        Returns:
            [M, X] float64 [embedding].
        """
        check_shape("state", state, (None, self.state_dim))
        check_shape("t", t, (len(state),))
        inputs = torch.cat(self._to_inputs(state, t, for_write=for_write, device=HOST), dim=1).numpy()
        if self.config.type == "random":
            return encode_float64([(self.projection, None)], inputs[:, :-1])
        layers = (*hidden_layers(self.encoder), self.encoder.out)
        return encode_float64([(layer.weight.t(), layer.bias) for layer in layers], inputs)

    def to_inputs(self, state: State, t: Times, *, for_write: bool = False) -> tuple[Tensor, Tensor]:
        """Convert states and time steps to the inputs of the encoder, on the device.

        Source: EMU's time input t / T_lim (A14).

        Args:
            state: [M, S] [state features].
            t: [M], time steps in the episode [steps].
            for_write: See `embed`.

        Returns:
            States [M, S] float32 [state features], and times [M, 1] divided by the episode limit, dimensionless.
        """
        return self._to_inputs(state, t, for_write=for_write, device=self.device)

    def _to_inputs(self, state: State, t: Times, *, for_write: bool, device: torch.device) -> tuple[Tensor, Tensor]:
        plus_one = for_write and self.config.time_norm == "write_T_lim+1"
        state_MS, time_M = (_send(values, device).to(torch.float32) for values in (state, t))
        return state_MS, time_M.unsqueeze(1) / (self.episode_limit + plus_one)

    def _widened_layers(self) -> list[tuple[Tensor, Tensor | None]]:
        """List the weights [K, N] and biases [N] of the layers, padded with zero units to multiples of WIDTH."""
        if self.config.type == "random":
            return [_widen(self.projection.t(), None, inputs=self.state_dim + 1)]
        widened: list[tuple[Tensor, Tensor | None]] = []
        inputs = self.state_dim + 1
        for layer in (*hidden_layers(self.encoder), self.encoder.out):
            widened.append(_widen(layer.weight, layer.bias, inputs=inputs))
            inputs = widened[-1][0].shape[1]
        return widened

    def get_state(self) -> dict[str, Any]:
        """Return a copy of everything that affects future results, as tensors, primitives and dictionaries."""
        if not self.is_trainable:
            return {}
        return {
            "encoder": copy_state(self.encoder.state_dict()),
            "decoder": copy_state(self.decoder.state_dict()),
            "return_scale": self.return_scale.get_state(),
            "optimizer": copy_state(self.optimizer.state_dict()),
            "generator": self.generator.get_state(),
            "init_generator": self._init_generator.get_state(),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `get_state`."""
        if not self.is_trainable:
            return
        self.encoder.load_state_dict(state["encoder"])
        self.decoder.load_state_dict(state["decoder"])
        self.optimizer = torch.optim.Adam(self.parameters, lr=self.config.lr, fused=True)
        self.optimizer.load_state_dict(state["optimizer"])
        self.return_scale.set_state(state["return_scale"])
        self.generator.set_state(state["generator"])
        self._init_generator.set_state(state["init_generator"])


def _widen(weight: Tensor, bias: Tensor | None, *, inputs: int) -> tuple[Tensor, Tensor | None]:
    """Pad weights [N, K] with zeros to K = `inputs` and to a multiple of WIDTH for N; return the transpose."""
    extra = -weight.shape[0] % WIDTH
    padded = nn.functional.pad(weight, (0, inputs - weight.shape[1], 0, extra))
    return padded.t(), None if bias is None else nn.functional.pad(bias, (0, extra))


def _padded_rows(n_rows: int) -> int:
    """Return the smallest number of rows >= `n_rows` for which a row's bits do not depend on the number of rows."""
    return max(n_rows + -n_rows % ROW_TILE, MIN_ROWS)


def _encode(
    layers: list[tuple[Tensor, Tensor | None]], buffers: list[Tensor], state_MS: Tensor, time_M1: Tensor
) -> Tensor:
    """Compute the layers for one chunk of rows, padded by `_padded_rows`, in preallocated arrays."""
    rows = _padded_rows(len(state_MS))
    x, *outputs = (part[:rows] for part in buffers)
    x[: len(state_MS), :-1] = state_MS
    x[: len(state_MS), -1:] = time_M1
    for (weight, bias), output in zip(layers, outputs, strict=True):
        torch.mm(x, weight, out=output) if bias is None else torch.addmm(bias, x, weight, out=output)
        x = output if output is outputs[-1] else output.relu_()
    return x[: len(state_MS)]


def _send(values: State | Times, device: torch.device) -> Tensor:
    """Convert to a tensor on a device. Arrays are copied if torch cannot share them (negative strides, read-only)."""
    tensor = values if isinstance(values, Tensor) else torch.from_numpy(np.require(values, requirements=["C", "W"]))
    return tensor.to(device) if tensor.is_cuda else send_tensor(tensor, device)


def _random_projection(state_dim: int, dim: int) -> Tensor:
    """Make the transposed projection [S, dim]; its entries have the standard deviation 1/sqrt(dim) (B13)."""
    generator = np.random.RandomState(RANDOM_PROJECTION_SEED)
    return torch.from_numpy(generator.normal(0.0, 1.0 / np.sqrt(dim), (dim, state_dim)).T.astype(np.float32).copy())


def _draw_linear(layer: nn.Linear, generator: torch.Generator) -> None:
    bound = 1.0 / layer.in_features**0.5
    for parameter in (layer.weight, layer.bias):
        values = torch.empty(parameter.shape).uniform_(-bound, bound, generator=generator)
        parameter.data.copy_(values)
