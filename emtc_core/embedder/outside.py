"""An embedder that a package or module outside brings, in the place of this project's own.

Its factory is called as `make(config, state_dim=…, episode_limit=…, seed=…)` with the settings of `embed.*`. What it
makes has

    embed(state [M, S] float32, t [M]) -> [M, embed.dim] float32    each row by itself, equal for equal rows
    fit(state [M, S], t [M], h [M]) -> {name: number} or None       optional; the numbers are recorded under user/
    get_state() -> {name: tensor or number}, set_state(state)       optional; without them it is as new after a resume

all of NumPy arrays on the processor. Stage before: memory (`sample`); after: memory (`reproject`).
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from emtc_core.config.memory import EmbedConfig
from emtc_core.config.outside import PLUGGED
from emtc_core.embedder.fit import Sample
from emtc_core.embedder.networks import Embedder, State, Times
from emtc_core.errors import PluginError
from emtc_core.metrics import open_values
from emtc_core.plugins import Plugin, get_plugin


class OutsideEmbedder(Embedder):
    """What memory and refit ask of an embedder, answered by a plug-in."""

    def __init__(
        self,
        plugin: Plugin,
        config: EmbedConfig,
        *,
        state_dim: int,
        episode_limit: int,
        device: str | torch.device,
        seed: int,
    ) -> None:
        self.plugin, self.config = plugin, config
        self.state_dim, self.episode_limit, self.device = state_dim, episode_limit, torch.device(device)
        self._made = plugin.load()(config, state_dim=state_dim, episode_limit=episode_limit, seed=seed)

    @property
    def is_trainable(self) -> bool:
        """Whether it has a `fit`."""
        return hasattr(self._made, "fit")

    @property
    def reads_states_on_gpu(self) -> bool:
        """No: a plug-in gets arrays on the processor."""
        return False

    def embed(self, state: State, t: Times, *, for_write: bool = False) -> Tensor:
        """Embed states [M, S] at steps [M] to [M, dim] on the embedder's device.

        Raises:
            PluginError: If the plug-in returns another shape.
        """
        x_MX = np.asarray(self._made.embed(_on_host(state, np.float32), _on_host(t, np.int64)), np.float32)
        if x_MX.shape != (len(state), self.dim):
            raise PluginError(
                f"The embedder {self.plugin.label} must return shape {(len(state), self.dim)}, got {x_MX.shape}."
            )
        return torch.from_numpy(x_MX.copy()).to(self.device)

    def embed_fine(self, state: State, t: Times, *, for_write: bool = False) -> NDArray[np.float64]:
        """Embed as `embed` does: how finely it computes is the plug-in's to decide."""
        return self.embed(state, t).cpu().numpy().astype(np.float64)

    def fit(self, sample: Sample) -> dict[str, float]:
        """Let it learn from nodes; return its numbers as they are recorded."""
        told = (
            self._made.fit(_on_host(sample.state, np.float32), sample.t, sample.h)
            if self.is_trainable and len(sample.h)
            else None
        )
        return open_values("user", told or {})

    def get_state(self) -> dict[str, Any]:
        """What a checkpoint keeps of it."""
        return self._made.get_state() if hasattr(self._made, "get_state") else {}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from `get_state`."""
        if hasattr(self._made, "set_state"):
            self._made.set_state(state)


def make_embedder(
    config: EmbedConfig, *, state_dim: int, episode_limit: int, device: torch.device, seed: int
) -> Embedder:
    """Make the embedder that `embed.type` names, this project's or one from outside."""
    sizes: dict[str, Any] = {"state_dim": state_dim, "episode_limit": episode_limit, "device": device, "seed": seed}
    kind, own = PLUGGED["embed.type"]
    if config.type in own:
        return Embedder(config, **sizes)
    return OutsideEmbedder(get_plugin(kind, config.type, known=own), config, **sizes)


def _on_host(values: State | Times, dtype: type) -> NDArray[Any]:
    return np.asarray(values.cpu() if isinstance(values, Tensor) else values, dtype)
