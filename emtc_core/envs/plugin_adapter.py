"""The adapter of an environment that is a plug-in.

A plug-in is a factory. It is called once per copy with its typed arguments (`env.<name>.…`, and `map` if it has that
parameter) and returns a PettingZoo `ParallelEnv`; the copies are batched here. A factory with a parameter `n_envs` is
called once and returns a `VectorEnv`. Optional attributes of the factory: `maps`, the names of its maps (if missing:
one map, "default"), and `make_scene(states)`, which makes the frames of a replay.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emtc_core.config.plugin_settings import call_factory, make_argument_model
from emtc_core.config.train import EnvConfig
from emtc_core.envs.base import EnvInfo, VectorEnv, check_map
from emtc_core.envs.scene import Scene, empty_scene
from emtc_core.errors import EnvUnavailableError, PluginError
from emtc_core.plugins import Plugin

ONE_MAP = "default"
"""Name of the map of a plug-in without `maps`."""
NO_DRAWING = "This environment cannot draw its states: its factory has no make_scene(states)."


class PluginAdapter:
    """The adapter of one plug-in."""

    def __init__(self, plugin: Plugin) -> None:
        self.plugin = plugin
        self.HOW_TO_GET = f"it comes from {plugin.origin}"

    def list_maps(self) -> list[str]:
        """List the plug-in's maps; only "default" if it has none or cannot be loaded."""
        try:
            maps: Sequence[Any] = getattr(self.plugin.load(), "maps", ())
        except PluginError:
            maps = ()
        return [str(map) for map in maps] or [ONE_MAP]

    def find_unavailable_reason(self) -> str:
        """Return why the plug-in cannot be loaded; "" if it can."""
        try:
            make_argument_model(self.plugin)
        except PluginError as error:
            return str(error)
        return ""

    def find_info(self, config: EnvConfig) -> EnvInfo | None:
        """Check the map and return None, because only a started plug-in has the sizes."""
        check_map(config.name, config.map, self.list_maps())
        return None

    def make_env(self, config: EnvConfig, *, n_envs: int) -> VectorEnv:
        """Make `n_envs` copies.

        Raises:
            EnvUnavailableError: If the factory fails, or does not return an environment.
        """
        check_map(config.name, config.map, self.list_maps())
        is_vectorized = "n_envs" in inspect.signature(self.plugin.load()).parameters
        arguments = {"n_envs": n_envs} if is_vectorized else {}
        try:
            envs = [
                call_factory(self.plugin, config.map, config.arguments, arguments)
                for _ in range(1 if is_vectorized else n_envs)
            ]
        except Exception as error:  # a plug-in may raise anything; the traceback contains the cause
            raise EnvUnavailableError(f"{self.plugin.label} failed when it was called: {error!r}.") from error
        first = envs[0]
        if isinstance(first, VectorEnv):
            if first.n_envs != n_envs:
                raise EnvUnavailableError(f"{self.plugin.label} must make {n_envs} copies, got {first.n_envs}.")
            return first
        if not hasattr(first, "possible_agents") or hasattr(first, "agent_iter"):
            raise EnvUnavailableError(
                f"{self.plugin.label} must return a ParallelEnv of PettingZoo, or with a parameter n_envs a VectorEnv, "
                f"got {type(first).__name__}."
            )
        from emtc_core.envs.pettingzoo import PettingZooEnv

        draw = partial(self.make_scene, config.map)
        env = PettingZooEnv(envs, map=config.map, config=config.pettingzoo, draw=draw)
        limit = config.arguments.get("episode_limit", config.pettingzoo.episode_limit)
        env.info = replace(env.info, env=config.name, episode_limit=int(limit))
        return env

    def make_scene(self, map: str, states: NDArray[np.float32]) -> Scene:
        """Make the frames of one episode with the factory's `make_scene`; without it, show the state values.

        Args:
            map: Name of the map. Not used, because the factory's function has no such argument.
            states: [T, S] [state features]. Source: `Observation.state` of each step.
        """
        draw: Callable[[NDArray[np.float32]], Scene] | None = getattr(self.plugin.load(), "make_scene", None)
        return empty_scene(self.plugin.label, states, NO_DRAWING) if draw is None else draw(states)
