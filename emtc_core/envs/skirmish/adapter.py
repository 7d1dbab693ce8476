"""Skirmish as the registry sees it. The simulator itself (and numba) is imported when one is made."""

import numpy as np
from numpy.typing import NDArray

from emtc_core.config.train import EnvConfig
from emtc_core.envs.base import EnvInfo, Scene, VectorEnv, refuse_unknown_map
from emtc_core.envs.skirmish.maps import MAPS, make_info
from emtc_core.envs.skirmish.maps import make_scene as draw

HOW_TO_GET = "It is part of EMTC Lab; nothing is to be installed."


def list_maps() -> list[str]:
    """List the simulator's maps."""
    return list(MAPS)


def find_obstacle() -> str:
    """Nothing can be missing."""
    return ""


def find_info(config: EnvConfig) -> EnvInfo:
    """A map's sizes."""
    refuse_unknown_map("skirmish", config.map, list_maps())
    return make_info(MAPS[config.map], config.skirmish)


def make_env(config: EnvConfig, *, n_envs: int) -> VectorEnv:
    """Start `n_envs` simulated battles."""
    refuse_unknown_map("skirmish", config.map, list_maps())
    from emtc_core.envs.skirmish.env import make_skirmish

    return make_skirmish(config.map, n_envs=n_envs, config=config.skirmish)


def make_scene(map: str, states: NDArray[np.float32]) -> Scene:
    """Draw stored states."""
    refuse_unknown_map("skirmish", map, list_maps())
    return draw(MAPS[map], states)
