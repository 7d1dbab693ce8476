"""SMACv2: random teams at random places, by oxwhirl's `smacv2` package over Blizzard's game.

Description: the fifteen scenarios of its authors' table, in the settings of their experiments: teams drawn type by
    type, half of the starts surrounded and half reflected, ranges of the units themselves, own place observed,
    no field of view. Everything else as in `smac`: one game and one worker process per copy.
Actions, Observations, State, Rewards: the package's own. Rewards are scaled by the enemies of the first battle, so
    that a return may exceed 20 against a stronger team.
Episode end, Arguments: as in `smac`.
Differences from the original: as in `smac`; teams and places follow the seed, which the package has no way to give.
"""

import numpy as np
from numpy.typing import NDArray

from emtc_core.config.train import EnvConfig
from emtc_core.envs.base import EnvInfo, Scene, VectorEnv, empty_scene, refuse_obstacle, refuse_unknown_map
from emtc_core.envs.smac import places
from emtc_core.envs.smac.env import HOW_TO_GET, SmacEnv
from emtc_core.envs.smac.maps import ARENA, SMACV2_MAPS, describe, smacv2_arguments, state_names
from emtc_core.envs.smac.places import GameLink, Play


def list_maps() -> list[str]:
    """List the scenarios of SMACv2's table."""
    return list(SMACV2_MAPS)


def find_obstacle() -> str:
    """Look for the package, the game and the one map file, in this order."""
    return places.find_obstacle("smacv2", ARENA)


def find_info(config: EnvConfig) -> EnvInfo:
    """A scenario's sizes."""
    refuse_unknown_map("smacv2", config.map, list_maps())
    return describe("smacv2", config.map, SMACV2_MAPS[config.map].sizes())


def make_env(config: EnvConfig, *, n_envs: int) -> VectorEnv:
    """Start `n_envs` workers; each launches its game with its first reset."""
    refuse_unknown_map("smacv2", config.map, list_maps())
    refuse_obstacle("smacv2", find_obstacle(), HOW_TO_GET)
    python, play = places.find_python(), Play("smacv2", config.map, smacv2_arguments(config.map))
    return SmacEnv(lambda: GameLink(python, play), env="smacv2", map=config.map, n_envs=n_envs, draw=make_scene)


def make_scene(map: str, states: NDArray[np.float32]) -> Scene:
    """Show the numbers of stored states, with their names: teams differ from battle to battle."""
    refuse_unknown_map("smacv2", map, list_maps())
    note = "SMACv2's battles are shown as numbers."
    return empty_scene(f"smacv2 {map}", states, note, state_names(SMACV2_MAPS[map]))
