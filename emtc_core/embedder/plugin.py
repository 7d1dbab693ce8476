"""Plug-in embedders: an embedder from another package or module replaces the built-in one.

The factory is called as `make(config, state_dim=…, episode_limit=…, seed=…)` with the settings of `embed.*`. It returns
an object with these methods:

    embed(state [M, S] float32, t [M]) -> [M, embed.dim] float32    a row's result must not depend on other rows
    fit(state [M, S], t [M], h [M]) -> {name: number} or None       optional; the numbers are recorded under user/
    get_state() -> {name: tensor or number}, set_state(state)       optional; without them, a resume loses its state

All arrays are NumPy arrays on the CPU. After `fit`, the memory embeds all nodes again.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from emtc_core.config.memory import EmbedConfig
from emtc_core.config.plugin_settings import PLUGIN_SETTINGS
from emtc_core.embedder.fit import Sample
from emtc_core.embedder.networks import Embedder, State, Times
from emtc_core.errors import PluginError
from emtc_core.metrics import prepare_open_values
from emtc_core.plugins import get_plugin


class PluginEmbedder(Embedder):
    """Adapter with the interface of `Embedder` for a plug-in."""

    def __init__(
        self,
        config: EmbedConfig,
        *,
        state_dim: int,
        episode_limit: int,
        device: str | torch.device,
        seed: int,
    ) -> None:
        self.config = config
        self.state_dim, self.episode_limit, self.device = state_dim, episode_limit, torch.device(device)
        make = get_plugin("embedder", config.type).bind(config.plugin)
        self._implementation = make(config, state_dim=state_dim, episode_limit=episode_limit, seed=seed)

    @property
    def is_trainable(self) -> bool:
        """Whether the plug-in has a `fit` method."""
        return hasattr(self._implementation, "fit")

    @property
    def reads_states_on_gpu(self) -> bool:
        """False: a plug-in gets arrays on the CPU."""
        return False

    def embed(self, state: State, t: Times, *, for_write: bool = False) -> Tensor:
        """Embed states at their time steps.

        Source: the plug-in.

        Args:
            state: [M, S] [state features].
            t: [M], time steps in the episode [steps].
            for_write: Not used by plug-ins.

        Returns:
            [M, X] float32 [embedding], on the embedder's device.

        Raises:
            PluginError: If the plug-in returns another shape.
        """
        return torch.from_numpy(self.embed_to_host(state, t)).to(self.device)

    def embed_to_host(self, state: State, t: Times, *, for_write: bool = False) -> NDArray[np.float32]:
        """Embed states like `embed`; return an array.

        Source: the plug-in.

        Args:
            state: [M, S] float32 [state features].
            t: [M], time steps in the episode [steps].
            for_write: Not used by plug-ins.

        Returns:
            [M, X] float32 [embedding].

        Raises:
            PluginError: If the plug-in returns another shape.
        """
        x_MX = np.asarray(self._implementation.embed(_on_host(state, np.float32), _on_host(t, np.int64)), np.float32)
        if x_MX.shape != (len(state), self.dim):
            raise PluginError(
                f"The embedder {self.config.type} must return shape {(len(state), self.dim)}, got {x_MX.shape}."
            )
        return x_MX.copy()

    def embed_float64(self, state: State, t: Times, *, for_write: bool = False) -> NDArray[np.float64]:
        """Return the result of `embed` as float64; the plug-in chooses the precision of its computation.

        Source: the plug-in.

        Args:
            state: [M, S] [state features].
            t: [M], time steps in the episode [steps].
            for_write: Not used by plug-ins.

        Returns:
            [M, X] float64 [embedding].
        """
        return self.embed_to_host(state, t).astype(np.float64)

    def fit(self, sample: Sample) -> dict[str, float]:
        """Train the plug-in on a sample of nodes; return its metrics by name `user/...`."""
        values = (
            self._implementation.fit(_on_host(sample.state, np.float32), sample.t, sample.h)
            if self.is_trainable and len(sample.h)
            else None
        )
        return prepare_open_values("user", values or {})

    def get_state(self) -> dict[str, Any]:
        """Return the state of the plug-in for a checkpoint; empty if it has no `get_state`."""
        return self._implementation.get_state() if hasattr(self._implementation, "get_state") else {}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `get_state`."""
        if hasattr(self._implementation, "set_state"):
            self._implementation.set_state(state)


def make_embedder(
    config: EmbedConfig, *, state_dim: int, episode_limit: int, device: torch.device, seed: int
) -> Embedder:
    """Make the built-in embedder or the plug-in named by `embed.type`.

    Args:
        config: Settings of `embed.*`.
        state_dim: S.
        episode_limit: Largest number of steps in an episode.
        device: Device of the embeddings.
        seed: Random seed of weights and augmentation.
    """
    sizes: dict[str, Any] = {"state_dim": state_dim, "episode_limit": episode_limit, "device": device, "seed": seed}
    _, built_in = PLUGIN_SETTINGS["embed.type"]
    return Embedder(config, **sizes) if config.type in built_in else PluginEmbedder(config, **sizes)


def _on_host(values: State | Times, dtype: type) -> NDArray[Any]:
    return np.asarray(values.cpu() if isinstance(values, Tensor) else values, dtype)
