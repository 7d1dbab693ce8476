"""The list of environments, and functions that work for any of them.

The module of an environment is imported only when it is used. To add an environment, write a module that defines the
names of `base.Adapter` and add it to `ADAPTERS`.

`PluginAdapter` is the adapter of a plug-in. Its factory is called as `make(map, n_envs)` and returns a `VectorEnv` with
`n_envs` copies, or a list of `n_envs` PettingZoo `ParallelEnv`, which are batched here. Optional attributes of the
factory: `maps`, the names of its maps (if missing: one map, "default"), and `make_scene(states)`, which makes the
frames of a replay.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from typing import cast

import numpy as np
from numpy.typing import NDArray

from emtc_core.config.train import EnvConfig
from emtc_core.envs.base import Adapter, EnvInfo, VectorEnv, check_map
from emtc_core.envs.scene import Scene, empty_scene, find_targets
from emtc_core.errors import EnvUnavailableError
from emtc_core.plugins import HOW_TO_ADD, Plugin, find_plugin, list_names

ONE_MAP = "default"
"""Name of the map of a plug-in without `maps`."""
NO_DRAWING = "This environment cannot draw its states: its factory has no make_scene(states)."

ADAPTERS: dict[str, str] = {
    "skirmish": "emtc_core.envs.skirmish.adapter",
    "grf": "emtc_core.envs.grf.env",
    "smac": "emtc_core.envs.smac.env",
    "smacv2": "emtc_core.envs.smac.v2",
    "smax": "emtc_core.envs.smax",
    "pettingzoo": "emtc_core.envs.pettingzoo",
}
"""Name of an environment and its module."""

IMPORTED_BY_MAP = frozenset({"pettingzoo"})
"""Environments whose map is an import path. The module is imported only by a training or an evaluation."""


@dataclass(frozen=True)
class EnvRow:
    """One environment and map as `emtc envs` lists it. A size is None if only the started game has it."""

    env: str
    map: str
    available: bool
    reason: str
    """Why it is not available, with the next step; empty if it is available."""
    n_agents: int | None
    n_actions: int | None
    obs_dim: int | None
    state_dim: int | None
    episode_limit: int | None


@dataclass(frozen=True)
class DoctorRow:
    """Whether an environment can run on this machine, and how to install what is missing."""

    env: str
    usable: bool
    reason: str
    how_to_get: str


def make_env(config: EnvConfig, *, n_envs: int) -> VectorEnv:
    """Start `n_envs` copies of the environment and map that `config` names.

    Raises:
        EnvUnavailableError: If the environment or map is unknown, or something that it needs is missing.
        ValueError: If `n_envs` is not positive.
    """
    if n_envs < 1:
        raise ValueError(f"n_envs must be at least 1, got {n_envs}")
    return get_adapter(config.name).make_env(config, n_envs=n_envs)


def get_env_info(config: EnvConfig) -> EnvInfo | None:
    """Get the sizes of an environment and map without starting it; None if only a started environment has them.

    Raises:
        EnvUnavailableError: If the environment or map is unknown.
    """
    return get_adapter(config.name).find_info(config)


def check_available(config: EnvConfig) -> None:
    """Check that an environment and map can run here. Call this before a run is created.

    Raises:
        EnvUnavailableError: If the environment or map is unknown, or something that it needs is missing.
    """
    adapter = get_adapter(config.name)
    adapter.find_info(config)
    reason = adapter.find_unavailable_reason()
    if reason:
        raise EnvUnavailableError(reason, hint="See: emtc doctor")


def is_external(config: EnvConfig) -> bool:
    """Check whether the environment is a plug-in or imported by its map.

    Whether such an environment reports success is known only when it runs.
    """
    return config.name not in ADAPTERS or config.name in IMPORTED_BY_MAP


def describe_env(config: EnvConfig) -> str:
    """Return the name of an environment in messages: the import path of its map, or the name of the environment."""
    return config.map if config.name in IMPORTED_BY_MAP else config.name


def list_env_names() -> list[str]:
    """List every environment, the built-in ones first."""
    return list_names("environment", ADAPTERS)


def get_default_map(env: str) -> str:
    """Get the default map of an environment: 3m for the built-in ones, else the first of its maps.

    Raises:
        EnvUnavailableError: If no environment has that name.
    """
    return "3m" if env in ADAPTERS else get_adapter(env).list_maps()[0]


def find_map_module(config: EnvConfig) -> str:
    """Return the module that the map of an environment names; "" if its map is not an import path."""
    return config.map.partition(":")[0] if config.name in IMPORTED_BY_MAP else ""


def check_importable(config: EnvConfig) -> None:
    """Check that the module of a map is installed or in the user's folder. It is not imported.

    Raises:
        EnvUnavailableError: If it is not found.
    """
    if config.name in IMPORTED_BY_MAP:
        from emtc_core.envs.pettingzoo import check_module

        check_module(config.map)


def make_scene(env: str, map: str, states: NDArray[np.float32], actions: NDArray[np.integer] | None = None) -> Scene:
    """Make the frames of one episode from its stored states. The game need not be installed.

    Args:
        env: Name of the environment.
        map: Name of the map.
        states: [T, S] [state features]. Source: `Observation.state` of each step.
        actions: [T - 1, N], action indices. They give the targets of the units if the states do not contain them.

    Raises:
        EnvUnavailableError: If the environment or map is unknown.
    """
    scene = get_adapter(env).make_scene(map, states)
    if actions is None or scene.target is not None:
        return scene
    return replace(scene, target=find_targets(scene, actions, get_action_names(env, map)))


def get_action_names(env: str, map: str) -> tuple[str, ...]:
    """Get the names of the actions of an environment and map; empty if only the started game has them.

    Raises:
        EnvUnavailableError: If the environment or map is unknown.
    """
    info = get_env_info(EnvConfig(name=env, map=map))
    return info.action_names if info else ()


def list_envs() -> list[EnvRow]:
    """List every environment and map, installed or not, with its sizes if they are known."""
    rows: list[EnvRow] = []
    for name in list_env_names():
        adapter = get_adapter(name)
        obstacle = adapter.find_unavailable_reason()
        reason = f"{obstacle} See: emtc doctor" if obstacle else ""
        for map in adapter.list_maps():
            info = adapter.find_info(EnvConfig(name=name, map=map)) if name in ADAPTERS else None
            sizes: tuple[int | None, ...] = (None,) * 5
            if info is not None:
                sizes = (info.n_agents, info.n_actions, info.obs_dim, info.state_dim, info.episode_limit)
            rows.append(EnvRow(name, map, not reason, reason, *sizes))
    return rows


def list_doctor_rows() -> list[DoctorRow]:
    """List for each environment whether it can run here, and how to install it."""
    rows: list[DoctorRow] = []
    for name in list_env_names():
        adapter = get_adapter(name)
        reason = adapter.find_unavailable_reason()
        rows.append(DoctorRow(name, not reason, reason, adapter.HOW_TO_GET))
    return rows


def get_adapter(name: str) -> Adapter:
    """Get the adapter of an environment; a built-in one is the module, which is imported here.

    Raises:
        EnvUnavailableError: If no environment has that name.
    """
    if name not in ADAPTERS:
        if (plugin := find_plugin(name)) and plugin.kind == "environment":
            return PluginAdapter(plugin)
        names = list_env_names()
        close = get_close_matches(name, names, n=1)
        suggestion = f"Did you mean {close[0]}? " if close else ""
        raise EnvUnavailableError(
            f"env.name must be one of {', '.join(names)} (got {name!r}).",
            hint=f"{suggestion}{HOW_TO_ADD}",
        )
    return cast(Adapter, import_module(ADAPTERS[name]))  # a test checks that the module has all names of `Adapter`


class PluginAdapter:
    """The adapter of one plug-in."""

    HOW_TO_GET: str = "It is a plug-in."

    def __init__(self, plugin: Plugin) -> None:
        self.plugin = plugin

    def list_maps(self) -> list[str]:
        """List the plug-in's maps; only "default" if it has none."""
        return [str(map) for map in getattr(self.plugin.factory, "maps", ())] or [ONE_MAP]

    def find_unavailable_reason(self) -> str:
        """Return "": a registered plug-in has been imported."""
        return ""

    def find_info(self, config: EnvConfig) -> EnvInfo | None:
        """Check the map and return None, because only a started plug-in has the sizes."""
        check_map(config.name, config.map, self.list_maps())
        return None

    def make_env(self, config: EnvConfig, *, n_envs: int) -> VectorEnv:
        """Make `n_envs` copies.

        Raises:
            EnvUnavailableError: If the factory fails, or does not return `n_envs` copies.
        """
        check_map(config.name, config.map, self.list_maps())
        try:
            made = self.plugin.bind(config.plugin)(config.map, n_envs)
        except Exception as error:  # a plug-in may raise anything; the traceback contains the cause
            raise EnvUnavailableError(f"{config.name} failed when it was made: {error!r}.") from error
        if isinstance(made, VectorEnv) and made.n_envs == n_envs:
            return made
        if not isinstance(made, list) or len(made) != n_envs or not hasattr(made[0], "possible_agents"):
            raise EnvUnavailableError(
                f"{config.name} must return a VectorEnv with {n_envs} copies or a list of {n_envs} ParallelEnv of "
                f"PettingZoo, got {type(made).__name__}."
            )
        from emtc_core.envs.pettingzoo import PettingZooEnv

        draw = partial(self.make_scene, config.map)
        env = PettingZooEnv(made, map=config.map, config=config.pettingzoo, draw=draw)
        env.info = replace(env.info, env=config.name)
        return env

    def make_scene(self, map: str, states: NDArray[np.float32]) -> Scene:
        """Make the frames of one episode with the factory's `make_scene`; without it, show the state values.

        Args:
            map: Name of the map. Not used, because the factory's function has no such argument.
            states: [T, S] [state features]. Source: `Observation.state` of each step.
        """
        draw: Callable[[NDArray[np.float32]], Scene] | None = getattr(self.plugin.factory, "make_scene", None)
        return empty_scene(self.plugin.name, states, NO_DRAWING) if draw is None else draw(states)
