"""Google Research Football as the registry sees it. The engine is imported when one is asked for."""

from functools import cache
from importlib.util import find_spec

import numpy as np
from numpy.typing import NDArray

from emtc_core.config.train import EnvConfig
from emtc_core.envs.adapter import refuse_obstacle, refuse_unknown_map
from emtc_core.envs.base import EnvInfo, Scene, VectorEnv
from emtc_core.envs.grf.env import GrfEnv, make_info
from emtc_core.envs.grf.scenarios import SCENARIOS, get_scenario
from emtc_core.envs.grf.scenarios import make_scene as draw

HOW_TO_GET = (
    "apt-get install -y build-essential cmake libgl1-mesa-dev libsdl2-dev libsdl2-image-dev libsdl2-ttf-dev "
    "libsdl2-gfx-dev libboost-python-dev libboost-thread-dev libboost-filesystem-dev libboost-system-dev; "
    "then, with the virtual environment activated: pip install psutil setuptools wheel six 'gym<0.26'; "
    "CXXFLAGS='-fno-semantic-interposition -fno-math-errno -fvisibility-inlines-hidden -flto=auto' "
    "LDFLAGS=-Wl,-Bsymbolic pip install --no-build-isolation gfootball"
)
"""The flags are optional: they make the engine a third faster and change no result."""


def list_maps() -> list[str]:
    """List the academy scenarios."""
    return list(SCENARIOS)


@cache
def find_obstacle() -> str:
    """Import the engine to be sure that its library loads."""
    if find_spec("gfootball_engine") is None:
        return "the package gfootball is not installed."
    from emtc_core.envs.grf.engine import load_engine

    try:
        load_engine()
    except ImportError as error:
        return f"the football engine does not load ({error})."
    return ""


def find_info(config: EnvConfig) -> EnvInfo:
    """A scenario's sizes."""
    refuse_unknown_map("grf", config.map, list_maps())
    return make_info(get_scenario(config.map), config.grf)


def make_env(config: EnvConfig, *, n_envs: int) -> VectorEnv:
    """Start `n_envs` matches."""
    refuse_unknown_map("grf", config.map, list_maps())
    refuse_obstacle("grf", find_obstacle(), HOW_TO_GET)
    return GrfEnv(config.map, n_envs=n_envs, config=config.grf)


def make_scene(map: str, states: NDArray[np.float32]) -> Scene:
    """Draw stored states on a pitch."""
    refuse_unknown_map("grf", map, list_maps())
    return draw(map, states)
