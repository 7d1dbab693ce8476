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
from emtc_core.devices import copy_state, fetch, send_tensor
from emtc_core.embedder.float64_encoder import encode_float64
from emtc_core.embedder.padded_layers import Layers, PaddedLayers
from emtc_core.embedder.return_scale import ReturnScale

State = NDArray[np.float32] | Tensor
Times = NDArray[np.integer[Any]] | Tensor

HOST = torch.device("cpu")
RANDOM_PROJECTION_SEED = 123456  # as in EMU and EMC (B13)


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
    """The built-in embedders of `embed.type`. Only `fit` uses the decoder and the optimizer.

    An embedder on a GPU has a copy of the encoder's weights on the host, so that the embedding of one episode does not
    wait for the GPU. Whatever changes the weights calls `on_new_weights`.
    """

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
        self._host_layers: Layers | None = None
        self._padded_layers: dict[torch.device, PaddedLayers] = {}
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
        self.on_new_weights()

    def pack_encoder(self) -> Tensor:
        """Copy all parameters of the encoder to one vector [P] on the device, dimensionless.

        Source: implementation detail.
        """
        return torch.cat([parameter.detach().flatten() for parameter in self.encoder.parameters()])

    def on_new_weights(self, on_host: Tensor | None = None) -> None:
        """Drop everything that was made from the previous weights. Must be called after each change of the encoder.

        Source: implementation detail.

        Args:
            on_host: [P], result of `pack_encoder` on the host, dimensionless. None: the next embedding on the host
                copies the weights, which waits for a GPU.
        """
        self._padded_layers.clear()
        self._host_layers = None if on_host is None else self._unpack_encoder(on_host)

    def _unpack_encoder(self, packed: Tensor) -> Layers:
        """Return weights and biases of the encoder as views of the result of `pack_encoder`."""
        layers: Layers = []
        for layer in self._encoder_layers():
            weight, bias, packed = packed.split(
                [layer.weight.numel(), len(layer.bias), len(packed) - layer.weight.numel() - len(layer.bias)]
            )
            layers.append((weight.view_as(layer.weight), bias))
        return layers

    def _encoder_layers(self) -> list[nn.Linear]:
        return [*hidden_layers(self.encoder), self.encoder.out]

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
        return self._embed(state, t, for_write=for_write, device=self.device)

    @torch.no_grad()
    def embed_to_host(self, state: State, t: Times, *, for_write: bool = False) -> NDArray[np.float32]:
        """Embed states like `embed`, but on the host. For few rows this is faster than to wait for a GPU.

        Source: `embed`.

        Args:
            state: [M, S] float32 [state features].
            t: [M], time steps in the episode [steps].
            for_write: See `embed`.

        Returns:
            [M, X] float32 [embedding].
        """
        return self._embed(state, t, for_write=for_write, device=HOST).numpy()

    def _embed(self, state: State, t: Times, *, for_write: bool, device: torch.device) -> Tensor:
        check_shape("state", state, (None, self.state_dim))
        check_shape("t", t, (len(state),))
        if device not in self._padded_layers:
            self._padded_layers[device] = PaddedLayers(self._get_layers(device), n_inputs=self.state_dim + 1)
        return self._padded_layers[device].encode(*self._to_inputs(state, t, for_write=for_write, device=device))

    def _get_layers(self, device: torch.device) -> Layers:
        """Return the encoder's weights [N, K] and biases [N] on its own device or on the host."""
        if self.config.type == "random":
            return [(self.projection.to(device).t(), None)]
        if device == self.device:
            return [(layer.weight.detach(), layer.bias.detach()) for layer in self._encoder_layers()]
        if self._host_layers is None:
            self._host_layers = self._unpack_encoder(fetch(self.pack_encoder()).wait())
        return self._host_layers

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
            inputs = inputs[:, :-1]
        return encode_float64([(weight.t(), bias) for weight, bias in self._get_layers(HOST)], inputs)

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
        self.on_new_weights()


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
