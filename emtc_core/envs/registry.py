"""Every environment by name: its module is imported when it is asked for, never before.

What lives here: the list of environments and the questions that trainers, pages and the command line ask of any of
them. What does not: a game. To add one, write a module with the names of `base.Adapter` and give it one line in
`ADAPTERS`.

`OutsideAdapter` is an environment that an installed package or a module of `EMTC_PLUGINS` brings: a factory, called
once for each copy with its typed arguments (`env.<name>.…`, and `map` where it asks for one), which returns a
PettingZoo `ParallelEnv` that is batched here. A factory with a parameter `n_envs` is called once and returns a whole
`VectorEnv`. Optional attributes of the factory: `maps`, the names of its maps (else one, "default");
`make_scene(states)`, which draws replays.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from importlib import import_module
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from emtc_core.config.outside import arguments_of, call_factory
from emtc_core.config.train import EnvConfig
from emtc_core.envs.base import Adapter, EnvInfo, Scene, VectorEnv, empty_scene, find_targets, refuse_unknown_map
from emtc_core.envs.trust import refuse_unlisted
from emtc_core.errors import EnvUnavailableError, PluginError
from emtc_core.plugins import Plugin, find_plugin, list_names

ADAPTERS: dict[str, str] = {
    "skirmish": "emtc_core.envs.skirmish.adapter",
    "grf": "emtc_core.envs.grf.env",
    "smac": "emtc_core.envs.smac.env",
    "smacv2": "emtc_core.envs.smac.v2",
    "smax": "emtc_core.envs.smax",
    "pettingzoo": "emtc_core.envs.pettingzoo",
}

IMPORTED_BY_MAP = frozenset({"pettingzoo"})
"""Environments whose map is an import path."""


@dataclass(frozen=True)
class EnvRow:
    """One environment and map as `emtc envs` lists it; a size is None where only a started game knows it."""

    env: str
    map: str
    available: bool
    reason: str
    """Why it is not available, with the next step; empty when it is."""
    n_agents: int | None
    n_actions: int | None
    obs_dim: int | None
    state_dim: int | None
    episode_limit: int | None
    origin: str = ""
    """Distribution and version, or module, of one from outside; empty for this project's own."""


@dataclass(frozen=True)
class DoctorRow:
    """Whether an environment can run on this machine, and what to do if not."""

    env: str
    usable: bool
    reason: str
    how_to_get: str


def make_env(config: EnvConfig, *, n_envs: int) -> VectorEnv:
    """Start `n_envs` copies of the environment and map that `config` names.

    Raises:
        EnvUnavailableError: In one or two sentences, if the name or map is unknown or something is missing.
        ValueError: If `n_envs` is not positive.
    """
    if n_envs < 1:
        raise ValueError(f"n_envs must be at least 1, got {n_envs}")
    return get_adapter(config.name).make_env(config, n_envs=n_envs)


def get_env_info(config: EnvConfig) -> EnvInfo | None:
    """Sizes of an environment and map without starting it; None where only a started one knows.

    Raises:
        EnvUnavailableError: If the environment or map is unknown.
    """
    return get_adapter(config.name).find_info(config)


def check_available(config: EnvConfig) -> None:
    """Refuse an environment or map that cannot run here, before anything is created.

    Raises:
        EnvUnavailableError: If it is unknown, or something that it needs is missing.
    """
    adapter = get_adapter(config.name)
    adapter.find_info(config)
    reason = adapter.find_obstacle()
    if reason:
        raise EnvUnavailableError(reason, hint="See: emtc doctor", reason="missing", subject=config.name)


def is_tried(config: EnvConfig) -> bool:
    """Whether only a trial tells the sizes of an environment, and whether it says who won: a stranger's."""
    return config.name not in ADAPTERS or config.name in IMPORTED_BY_MAP


def list_names_of_envs() -> list[str]:
    """List every environment, this project's own first."""
    return [*ADAPTERS, *(name for name in list_names("env") if name not in ADAPTERS)]


def usual_map(env: str) -> str:
    """The map of an environment where nobody names one: its first.

    Raises:
        EnvUnavailableError: If no environment has that name.
    """
    return "3m" if env in ADAPTERS else get_adapter(env).list_maps()[0]


def check_trusted(config: EnvConfig) -> None:
    """Refuse an environment that would import a module which only a file or a row names.

    Raises:
        EnvUnavailableError: If this machine's user does not list that module; see `trust`.
    """
    if config.name in IMPORTED_BY_MAP:
        refuse_unlisted(config.map)


def make_scene(env: str, map: str, states: NDArray[np.float32], actions: NDArray[np.integer] | None = None) -> Scene:
    """Turn the stored states [T, S] of one episode into frames, with nothing of the game installed.

    With the actions [T - 1, N] units aim at what they name, in environments whose states do not say it.

    Raises:
        EnvUnavailableError: If the environment or map is unknown.
    """
    scene = get_adapter(env).make_scene(map, states)
    if actions is None or scene.target is not None:
        return scene
    return replace(scene, target=find_targets(scene, actions, name_actions(env, map)))


def name_actions(env: str, map: str) -> tuple[str, ...]:
    """Names of the actions of an environment and map; nothing where only a started game knows them.

    Raises:
        EnvUnavailableError: If the environment or map is unknown.
    """
    info = get_env_info(EnvConfig(name=env, map=map))
    return info.action_names if info else ()


def list_envs() -> list[EnvRow]:
    """List every environment and map, installed or not, with its sizes wherever they are known."""
    return [row for name in list_names_of_envs() for row in _rows(name)]


def doctor_rows() -> list[DoctorRow]:
    """For each environment, whether it can run here and how to get it if not."""
    rows: list[DoctorRow] = []
    for name in list_names_of_envs():
        adapter = get_adapter(name)
        reason = adapter.find_obstacle()
        rows.append(DoctorRow(name, not reason, reason, adapter.HOW_TO_GET))
    return rows


def get_adapter(name: str) -> Adapter:
    """Import the module of one environment.

    Raises:
        EnvUnavailableError: If no environment has that name.
    """
    if name not in ADAPTERS:
        if plugin := find_plugin("env", name):
            return OutsideAdapter(plugin)
        known = list_names_of_envs()
        close = get_close_matches(name, known, n=1)
        meant = f"Did you mean {close[0]}? " if close else ""
        raise EnvUnavailableError(
            f"env.name must be one of {', '.join(known)} (got {name!r}).",
            hint=f"{meant}For a plug-in, install its package or list its module in EMTC_PLUGINS.",
            reason="unknown",
            subject="env.name",
        )
    return cast(Adapter, import_module(ADAPTERS[name]))  # a module; a test checks its names


def _rows(name: str) -> list[EnvRow]:
    adapter = get_adapter(name)
    obstacle = adapter.find_obstacle()
    reason = obstacle and f"{obstacle} See: emtc doctor"
    return [_row(adapter, name, map, reason) for map in adapter.list_maps()]


def _row(adapter: Adapter, name: str, map: str, reason: str) -> EnvRow:
    info = adapter.find_info(EnvConfig(name=name, map=map)) if name in ADAPTERS else None
    if info is None:
        origin = adapter.plugin.origin if isinstance(adapter, OutsideAdapter) else ""
        return EnvRow(name, map, not reason, reason, None, None, None, None, None, origin)
    sizes = (info.n_agents, info.n_actions, info.obs_dim, info.state_dim, info.episode_limit)
    return EnvRow(name, map, not reason, reason, *sizes)


ONE_MAP = "default"
NO_DRAWING = "This environment does not say how to draw its states: its factory has no make_scene(states)."


class OutsideAdapter:
    """Answers for one plug-in."""

    def __init__(self, plugin: Plugin) -> None:
        self.plugin = plugin
        self.HOW_TO_GET = f"it comes from {plugin.origin}"

    def list_maps(self) -> list[str]:
        """List its maps; one that cannot be loaded has one."""
        try:
            maps: Sequence[Any] = getattr(self.plugin.load(), "maps", ())
        except PluginError:
            maps = ()
        return [str(map) for map in maps] or [ONE_MAP]

    def find_obstacle(self) -> str:
        """Why it cannot be loaded; "" when it can."""
        try:
            arguments_of(self.plugin)
        except PluginError as error:
            return str(error)
        return ""

    def find_info(self, config: EnvConfig) -> EnvInfo | None:
        """Only the map is checked: sizes are known once it has been made."""
        refuse_unknown_map(config.name, config.map, self.list_maps())
        return None

    def make_env(self, config: EnvConfig, *, n_envs: int) -> VectorEnv:
        """Make `n_envs` copies.

        Raises:
            EnvUnavailableError: If the factory fails, or makes no environment.
        """
        refuse_unknown_map(config.name, config.map, self.list_maps())
        whole = "n_envs" in inspect.signature(self.plugin.load()).parameters
        copies = {"n_envs": n_envs} if whole else {}
        made = [self._call(config, copies) for _ in range(1 if whole else n_envs)]
        first = made[0]
        if isinstance(first, VectorEnv):
            if first.n_envs != n_envs:
                raise EnvUnavailableError(f"{self.plugin.label} must make {n_envs} copies, got {first.n_envs}.")
            return first
        if not hasattr(first, "possible_agents") or hasattr(first, "agent_iter"):
            raise EnvUnavailableError(
                f"{self.plugin.label} must return a ParallelEnv of PettingZoo, or with a parameter n_envs a VectorEnv, "
                f"got {type(first).__name__}."
            )
        return self._batch(made, config)

    def _call(self, config: EnvConfig, copies: dict[str, int]) -> Any:
        try:
            return call_factory(self.plugin, config.map, config.arguments, copies)
        except Exception as error:  # anything may go wrong in a stranger's code; the cause stays in the traceback
            raise EnvUnavailableError(f"{self.plugin.label} failed when it was called: {error!r}.") from error

    def _batch(self, made: list[Any], config: EnvConfig) -> VectorEnv:
        from emtc_core.envs.pettingzoo import PettingZooEnv

        env = PettingZooEnv(made, map=config.map, config=config.pettingzoo, draw=self._draw)
        limit = config.arguments.get("episode_limit", config.pettingzoo.episode_limit)
        env.info = replace(env.info, env=config.name, episode_limit=int(limit))
        return env

    def make_scene(self, map: str, states: NDArray[np.float32]) -> Scene:
        """Draw stored states if the factory can."""
        return self._draw(states)

    def _draw(self, states: NDArray[np.float32]) -> Scene:
        draw: Callable[[NDArray[np.float32]], Scene] | None = getattr(self.plugin.load(), "make_scene", None)
        return empty_scene(self.plugin.label, states, NO_DRAWING) if draw is None else draw(states)
