"""Encoder and decoder of the semantic embedder, and the fixed random projection that replaces them.

The encoder maps (state, t / T_lim) to a small embedding; the decoder maps it back to the state and the
return. `Embedder` also owns the optimizer and the generator, so its state is one unit in a checkpoint.
Nothing here knows the memory. Stage before: rollout; after: memory (embed) and fit (train).

`ReturnScale` is the unit in which returns are learned: theirs, or their own running standard deviation (B15). The
printed return loss is (H - H^)². With returns of size 20 it is hundreds of times InfoNCE, whose gradient it
then drowns. `return_scale = "std"` minimises ((H - H^) / sigma_H)², the share of the variance of H that the
decoder leaves unexplained, which weighs the same whatever the rewards' unit: the target is H / sigma_H, the head
decodes H^ / sigma_H, nothing is centred, and everything else stays.

`encode_fine` is for embeddings that float32 rounds too coarsely: products in float64 whose rows do not depend on one
another. A BLAS adds up a row's terms in an order that depends on where in a batch the row stands; in float64 no number
of rows and no width was found at which it does not. Here the order is that of the inputs, always.
"""

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray
from torch import Tensor, nn

from emtc_core.arrays import check_shape
from emtc_core.config.memory import EmbedConfig
from emtc_core.devices import copy_state, restore, send_tensor

State = NDArray[np.float32] | Tensor
Times = NDArray[np.integer[Any]] | Tensor

HOST = torch.device("cpu")
RANDOM_PROJECTION_SEED = 123456  # EMU's and EMC's; B13
# Matrix products with fewer rows than MIN_ROWS, a number of rows that is not a multiple of ROW_TILE, or a width that
# is not a multiple of WIDTH use other BLAS kernels. There the last bit of a row depends on the number of rows.
MIN_ROWS = 64
ROW_TILE = 4
WIDTH = 16
CHUNK_ROWS = (2048, 65_536)  # on a CPU, whose cache then holds the layers' outputs, and on a GPU

RATE = 0.1  # share of the latest sample; the head's unit then moves slower than its weights can follow
RESOLUTION = 1e-6  # a spread within rounding of the mean is none

Doubles = NDArray[np.float64]
ROWS = 4096  # whose outputs a processor's cache holds


class Encoder(nn.Module):
    """(state, normalised time) → embedding."""

    def __init__(self, state_dim: int, hidden: int, dim: int) -> None:
        super().__init__()
        self.trunk = _trunk(state_dim + 1, hidden)
        self.out = nn.Linear(hidden, dim)

    def forward(self, state_MS: Tensor, time_M1: Tensor) -> Tensor:
        return self.out(self.trunk(torch.cat([state_MS, time_M1], dim=1)))


class Decoder(nn.Module):
    """(embedding, normalised time) → state and return."""

    def __init__(self, state_dim: int, hidden: int, dim: int) -> None:
        super().__init__()
        self.trunk = _trunk(dim + 1, hidden)
        self.state = nn.Linear(hidden, state_dim)
        self.h = nn.Linear(hidden, 1)

    def forward(self, x_MX: Tensor, time_M1: Tensor) -> tuple[Tensor, Tensor]:
        hidden_MH = self.trunk(torch.cat([x_MX, time_M1], dim=1))
        return self.state(hidden_MH), self.h(hidden_MH).squeeze(1)


def _trunk(inputs: int, hidden: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())


def hidden_layers(part: Encoder | Decoder) -> list[nn.Linear]:
    """List the linear layers before the last."""
    return [layer for layer in part.trunk if isinstance(layer, nn.Linear)]


class Embedder:
    """The embedder that `embed.type` names: `embed` for everyone, networks and optimizer for `fit` alone."""

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
        """What `fit` keeps on a GPU between two refits (`device_step.DeviceStep`)."""
        if config.type == "random":
            self.projection = _random_projection(state_dim, config.dim).to(self.device)
        else:
            with torch.random.fork_rng(devices=[]):  # the constructors' own draws are overwritten below
                self.encoder = Encoder(state_dim, config.hidden, config.dim).to(self.device)
                self.decoder = Decoder(state_dim, config.hidden, config.dim).to(self.device)
            self.initialize()

    @property
    def dim(self) -> int:
        """Number of embedding dimensions."""
        return self.config.dim

    @property
    def is_trainable(self) -> bool:
        """Whether `fit` changes anything."""
        return self.config.type != "random"

    @property
    def reads_states_on_gpu(self) -> bool:
        """Whether every refit reads the states of all nodes on a GPU, so that they should be kept there."""
        return self.is_trainable and self.device.type == "cuda"

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Weights of encoder and decoder."""
        return [*self.encoder.parameters(), *self.decoder.parameters()]

    def initialize(self) -> None:
        """Draw fresh weights (PyTorch's default distribution) and forget the optimizer's moments. B1, B2."""
        for part in (self.encoder, self.decoder):
            for layer in part.modules():
                if isinstance(layer, nn.Linear):
                    _draw_linear(layer, self._init_generator)
        self.optimizer = torch.optim.Adam(self.parameters, lr=self.config.lr, fused=True)

    @torch.no_grad()
    def embed(self, state: State, t: Times, *, for_write: bool = False) -> Tensor:
        """Embed states at their time steps.

        The result of a row does not depend on its neighbours in the batch, so the same (state, t) written,
        queried and re-projected by the same weights is at distance exactly 0 (on CPU).

        Args:
            state: [M, S] float32.
            t: [M] step inside the episode; ignored by the random projection.
            for_write: The embedding becomes a node's; differs only under `time_norm = "write_T_lim+1"`. A14.

        Returns:
            [M, dim] float32 on the embedder's device.
        """
        check_shape("state", state, (None, self.state_dim))
        check_shape("t", t, (len(state),))
        state_MS, time_M1 = self.to_inputs(state, t, for_write=for_write)
        M = len(state_MS)
        C = _padded_rows(min(M, CHUNK_ROWS[self.device.type == "cuda"]))
        layers = self._widened_layers()
        room = [torch.zeros(C, len(weight_KN), device=self.device) for weight_KN, _ in layers]
        room.append(torch.empty(C, layers[-1][0].shape[1], device=self.device))
        x_MX = torch.empty(M, self.dim, device=self.device)
        for start in range(0, M, C):
            rows = slice(start, min(start + C, M))
            x_MX[rows] = _encode(layers, room, state_MS[rows], time_M1[rows])[:, : self.dim]
        return x_MX

    @torch.no_grad()
    def embed_fine(self, state: State, t: Times, *, for_write: bool = False) -> NDArray[np.float64]:
        """Embed as `embed` does, from the same float32 inputs and weights, with every operation in float64.

        On the processor always, there at some three times the time; a row's bits are the same in any batch here too.
        """
        check_shape("state", state, (None, self.state_dim))
        check_shape("t", t, (len(state),))
        inputs = torch.cat(self._to_inputs(state, t, for_write=for_write, device=HOST), dim=1).numpy()
        if self.config.type == "random":
            return encode_fine([(self.projection, None)], inputs[:, :-1])
        layers = (*hidden_layers(self.encoder), self.encoder.out)
        return encode_fine([(layer.weight.t(), layer.bias) for layer in layers], inputs)

    def to_inputs(self, state: State, t: Times, *, for_write: bool = False) -> tuple[Tensor, Tensor]:
        """Move states to the device as float32 and normalise their time index to [M, 1]."""
        return self._to_inputs(state, t, for_write=for_write, device=self.device)

    def _to_inputs(self, state: State, t: Times, *, for_write: bool, device: torch.device) -> tuple[Tensor, Tensor]:
        longer = for_write and self.config.time_norm == "write_T_lim+1"
        state_MS, time_M = (_send(values, device).to(torch.float32) for values in (state, t))
        return state_MS, time_M.unsqueeze(1) / (self.episode_limit + longer)

    def _widened_layers(self) -> list[tuple[Tensor, Tensor | None]]:
        """List each layer of `embed`, its weights [K, N] filled up with zero units to multiples of WIDTH."""
        if self.config.type == "random":
            return [_widen(self.projection.t(), None, inputs=self.state_dim + 1)]
        widened: list[tuple[Tensor, Tensor | None]] = []
        inputs = self.state_dim + 1
        for layer in (*hidden_layers(self.encoder), self.encoder.out):
            widened.append(_widen(layer.weight, layer.bias, inputs=inputs))
            inputs = widened[-1][0].shape[1]
        return widened

    def copy(self) -> "Embedder":
        """Make another one that shares nothing with this one and would go on the same way."""
        sizes = {"state_dim": self.state_dim, "episode_limit": self.episode_limit}
        other = Embedder(self.config, **sizes, device=self.device, seed=0)
        other.set_state(self.get_state())
        return other

    def get_state(self) -> dict[str, Any]:
        """Copy everything that decides future results: tensors, primitives and dictionaries of them."""
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
        """Continue from `get_state`."""
        if not self.is_trainable:
            return
        self.encoder.load_state_dict(state["encoder"])
        self.decoder.load_state_dict(state["decoder"])
        self.optimizer = torch.optim.Adam(self.parameters, lr=self.config.lr, fused=True)
        self.optimizer.load_state_dict(state["optimizer"])
        if "return_scale" in state:  # checkpoints of before it know none
            self.return_scale.set_state(state["return_scale"])
        restore(self.generator, state["generator"])
        restore(self._init_generator, state["init_generator"])


def _widen(weight: Tensor, bias: Tensor | None, *, inputs: int) -> tuple[Tensor, Tensor | None]:
    """Transpose weights [N, K] for rows of `inputs` >= K numbers and fill N up to a multiple of WIDTH."""
    more = -weight.shape[0] % WIDTH
    wide = nn.functional.pad(weight, (0, inputs - weight.shape[1], 0, more))
    return wide.t(), None if bias is None else nn.functional.pad(bias, (0, more))


def _padded_rows(n_rows: int) -> int:
    """Return the number of rows for which a product gives each row the same bits as in any other batch."""
    return max(n_rows + -n_rows % ROW_TILE, MIN_ROWS)


def _encode(
    layers: list[tuple[Tensor, Tensor | None]], room: list[Tensor], state_MS: Tensor, time_M1: Tensor
) -> Tensor:
    """Compute the layers for one chunk of rows, padded by `_padded_rows`, in preallocated arrays."""
    rows = _padded_rows(len(state_MS))
    x, *outputs = (part[:rows] for part in room)
    x[: len(state_MS), :-1] = state_MS
    x[: len(state_MS), -1:] = time_M1
    for (weight, bias), output in zip(layers, outputs, strict=True):
        torch.mm(x, weight, out=output) if bias is None else torch.addmm(bias, x, weight, out=output)
        x = output if output is outputs[-1] else output.relu_()
    return x[: len(state_MS)]


def _send(values: State | Times, device: torch.device) -> Tensor:
    tensor = _as_tensor(values)
    return tensor.to(device) if tensor.is_cuda else send_tensor(tensor, device)


def _as_tensor(values: State | Times) -> Tensor:
    """Share memory where torch can; it refuses negative strides and warns of read-only arrays."""
    return values if isinstance(values, Tensor) else torch.from_numpy(np.require(values, requirements=["C", "W"]))


def _random_projection(state_dim: int, dim: int) -> Tensor:
    """W transposed, [S, dim]; std 1/sqrt(dim), not variance. B13."""
    legacy = np.random.RandomState(RANDOM_PROJECTION_SEED)
    return torch.from_numpy(legacy.normal(0.0, 1.0 / np.sqrt(dim), (dim, state_dim)).T.astype(np.float32).copy())


def _draw_linear(layer: nn.Linear, generator: torch.Generator) -> None:
    bound = 1.0 / layer.in_features**0.5
    for parameter in (layer.weight, layer.bias):
        drawn = torch.empty(parameter.shape).uniform_(-bound, bound, generator=generator)
        parameter.data.copy_(drawn)


class ReturnScale:
    """Divisor of the return target."""

    def __init__(self, how: Literal["none", "std"]) -> None:
        self._how = how
        self._variance: float | None = None

    @property
    def divisor(self) -> float:
        """1 or sigma_H [return]; 1 before any two returns differed."""
        return 1.0 if self._variance is None else self._variance**0.5

    def update(self, h_M: NDArray[np.float64]) -> float:
        """Take the returns of one refit's nodes into the running variance; return the divisor for this refit.

        The first sample sets it; each later one moves it by `RATE` of the way. Returns that are all alike say
        nothing about a unit.
        """
        if self._how == "none" or not np.isfinite(h_M).all():
            return self.divisor
        variance = float(np.var(h_M, dtype=np.float64))
        if variance <= (RESOLUTION * np.abs(h_M).max()) ** 2:
            return self.divisor
        before = variance if self._variance is None else self._variance
        self._variance = before + RATE * (variance - before)
        return self.divisor

    def get_state(self) -> dict[str, float | None]:
        """Copy the running variance."""
        return {"variance": self._variance}

    def set_state(self, state: Mapping[str, float | None]) -> None:
        """Continue from `get_state`."""
        self._variance = state["variance"]


def encode_fine(layers: list[tuple[Tensor, Tensor | None]], x_MK: NDArray[np.float32]) -> Doubles:
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
