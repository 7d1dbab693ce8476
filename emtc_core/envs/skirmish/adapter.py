"""The adapter of skirmish. It imports the simulator, and with it numba, only when an environment is made."""

import numpy as np
from numpy.typing import NDArray

from emtc_core.config.train import EnvConfig
from emtc_core.envs.base import EnvInfo, VectorEnv, check_map
from emtc_core.envs.scene import Scene
from emtc_core.envs.skirmish.maps import MAPS, make_info
from emtc_core.envs.skirmish.maps import make_scene as make_map_scene

HOW_TO_GET = "It is part of EMTC Lab; no installation is needed."


def list_maps() -> list[str]:
    """List the simulator's maps."""
    return list(MAPS)


def find_unavailable_reason() -> str:
    """Return "", because the simulator can always run."""
    return ""


def find_info(config: EnvConfig) -> EnvInfo:
    """Return the sizes of a map."""
    check_map("skirmish", config.map, list_maps())
    return make_info(MAPS[config.map], config.skirmish)


def make_env(config: EnvConfig, *, n_envs: int) -> VectorEnv:
    """Start `n_envs` simulated battles."""
    check_map("skirmish", config.map, list_maps())
    from emtc_core.envs.skirmish.env import make_skirmish

    return make_skirmish(config.map, n_envs=n_envs, config=config.skirmish)


def make_scene(map: str, states: NDArray[np.float32]) -> Scene:
    """Make the frames of one episode from its stored states.

    Args:
        map: Name of the map.
        states: [T, S] [state features]. Source: `observe.py`, which documents the layout.
    """
    check_map("skirmish", map, list_maps())
    return make_map_scene(MAPS[map], states)
