"""The real StarCraft II micromanagement tasks: oxwhirl's `smac` package over Blizzard's game.

Description: SMAC's maps in its default settings, one game and one worker process per copy, played side by side. The
    worker runs in an environment of its own, so the package's old protobuf meets nobody else's.
Actions, Observations, State, Rewards: the package's own, see its documentation; the state holds the agents'
    last actions.
Episode end: `terminated` when a side is gone; `truncated` at the map's limit, or when the game or its worker
    was lost and had to be started anew.
Arguments: none; the game is the newest version under SC2PATH (published results: 4.10).
Differences from the original: the time limit is told from an end of the game. The game is seeded when it is
    launched, by the first `reset(seed)`; later seeds change nothing, and StarCraft II does not promise equal
    games for equal seeds anyway. Enemies stand in the game's own order, not EMU's sorted one.

`smac` on the package index is an unrelated hyperparameter optimiser; it is recognised and named.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from emtc_core.config.train import EnvConfig
from emtc_core.envs.adapter import empty_scene, refuse_obstacle, refuse_unknown_map
from emtc_core.envs.base import EnvInfo, Scene, VectorEnv
from emtc_core.envs.skirmish.maps import MAPS
from emtc_core.envs.skirmish.maps import make_scene as draw
from emtc_core.envs.smac import places
from emtc_core.envs.smac.env import SmacEnv
from emtc_core.envs.smac.link import GameLink, Play
from emtc_core.envs.smac.maps import ARENAS, SMAC_MAPS, describe, smac_arguments, state_names

HOW_TO_GET = "emtc setup smac"


def list_maps() -> list[str]:
    """List SMAC's maps, the paper's first, and any other that lies among them: the package must register it."""
    others = (name for name in SMAC_MAPS if name not in MAPS)
    found = (name for name, path in places.find_maps().items() if path.parent.name == "SMAC_Maps")
    return [*MAPS, *others, *(name for name in found if name not in SMAC_MAPS and name not in ARENAS)]


def find_obstacle() -> str:
    """Look for the package, the game and the maps, in this order."""
    return places.find_obstacle("smac", "")


def find_info(config: EnvConfig) -> EnvInfo | None:
    """Sizes of a known map; another is measured when it runs."""
    known = SMAC_MAPS.get(config.map)
    if known is not None:
        return describe("smac", config.map, known.sizes())
    refuse_unknown_map("smac", config.map, list_maps())
    return None


def make_env(config: EnvConfig, *, n_envs: int) -> VectorEnv:
    """Start `n_envs` workers; each launches its game with its first reset."""
    refuse_unknown_map("smac", config.map, list_maps())
    refuse_obstacle("smac", places.find_obstacle("smac", config.map), HOW_TO_GET)
    python, play = places.find_python(), Play("smac", config.map, smac_arguments(config.map))
    return SmacEnv(lambda: GameLink(python, play), env="smac", map=config.map, n_envs=n_envs, draw=make_scene)


def make_scene(map: str, states: NDArray[np.float32]) -> Scene:
    """Draw stored states: the layout is the simulator's, so is the drawing."""
    if map not in MAPS:
        names = state_names(SMAC_MAPS[map]) if map in SMAC_MAPS else ()
        return empty_scene(f"smac {map}", states, "Only the paper's maps can be drawn from their states.", names)
    return replace(draw(MAPS[map], states), title=f"smac {map}", note="StarCraft II.", walkable=None)
