"""Every environment by name: its module is imported when it is asked for, never before.

What lives here: the list of environments and the questions that trainers, pages and the command line ask
of any of them. What does not: a game. To add one, write a module with the names of `adapter.Adapter` and
give it one line in `ADAPTERS`.
"""

from dataclasses import dataclass, replace
from difflib import get_close_matches
from importlib import import_module
from typing import cast

import numpy as np
from numpy.typing import NDArray

from emtc_core.config.train import EnvConfig
from emtc_core.envs.adapter import Adapter
from emtc_core.envs.base import EnvInfo, Scene, VectorEnv, find_targets
from emtc_core.envs.trust import refuse_unlisted
from emtc_core.errors import EnvUnavailableError

ADAPTERS: dict[str, str] = {
    "skirmish": "emtc_core.envs.skirmish.adapter",
    "grf": "emtc_core.envs.grf.adapter",
    "smac": "emtc_core.envs.smac.adapter",
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
        raise EnvUnavailableError(f"{reason} See: emtc doctor")


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
    return [row for name in ADAPTERS for row in _rows(name)]


def doctor_rows() -> list[DoctorRow]:
    """For each environment, whether it can run here and how to get it if not."""
    rows: list[DoctorRow] = []
    for name in ADAPTERS:
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
        close = get_close_matches(name, ADAPTERS, n=1)
        hint = f" Did you mean {close[0]}?" if close else ""
        raise EnvUnavailableError(f"env.name must be one of {', '.join(ADAPTERS)}, got {name!r}.{hint}")
    return cast(Adapter, import_module(ADAPTERS[name]))  # a module; a test checks its names


def _rows(name: str) -> list[EnvRow]:
    adapter = get_adapter(name)
    obstacle = adapter.find_obstacle()
    reason = obstacle and f"{obstacle} See: emtc doctor"
    return [_row(adapter, name, map, reason) for map in adapter.list_maps()]


def _row(adapter: Adapter, name: str, map: str, reason: str) -> EnvRow:
    info = adapter.find_info(EnvConfig(name=name, map=map))
    if info is None:
        return EnvRow(name, map, not reason, reason, None, None, None, None, None)
    sizes = (info.n_agents, info.n_actions, info.obs_dim, info.state_dim, info.episode_limit)
    return EnvRow(name, map, not reason, reason, *sizes)
