"""SMACv2: random teams at random positions, by oxwhirl's `smacv2` package with Blizzard's game.

Description: the fifteen scenarios of its authors' table, with the settings of their experiments. The types of a team
    are sampled one by one. Half of the starts are surrounded, half reflected. Each unit type has its own attack range,
    an agent observes its own position, and there is no field of view. One game and one worker process per copy, as in
    `smac`.
Actions, Observations, State, Rewards: those of the package. Rewards are scaled by the enemies of the first battle, so
    a return can exceed 20 against a stronger team.
Episode end, Arguments: as in `smac`.
Differences from the original: as in `smac`. Also, teams and positions depend on the seed; the package cannot seed them.
"""

import numpy as np
from numpy.typing import NDArray

from emtc_core.config.train import EnvConfig
from emtc_core.envs.base import EnvInfo, VectorEnv, check_can_run, check_map
from emtc_core.envs.scene import Scene, empty_scene
from emtc_core.envs.smac import game_link
from emtc_core.envs.smac.env import HOW_TO_GET, SmacEnv
from emtc_core.envs.smac.game_link import GameLink, GameSpec
from emtc_core.envs.smac.maps import ARENA, SMACV2_MAPS, make_info, smacv2_arguments, state_names


def list_maps() -> list[str]:
    """List the scenarios of SMACv2's table."""
    return list(SMACV2_MAPS)


def find_unavailable_reason() -> str:
    """Check the package, the game and the map file, in this order."""
    return game_link.find_unavailable_reason("smacv2", ARENA)


def find_info(config: EnvConfig) -> EnvInfo:
    """Return the sizes of a scenario."""
    check_map("smacv2", config.map, list_maps())
    return make_info("smacv2", config.map, SMACV2_MAPS[config.map].sizes())


def make_env(config: EnvConfig, *, n_envs: int) -> VectorEnv:
    """Start `n_envs` workers. Each starts its game at the first reset."""
    check_map("smacv2", config.map, list_maps())
    check_can_run("smacv2", find_unavailable_reason(), HOW_TO_GET)
    python, play = game_link.find_python(), GameSpec("smacv2", config.map, smacv2_arguments(config.map))
    return SmacEnv(lambda: GameLink(python, play), env="smacv2", map=config.map, n_envs=n_envs, draw=make_scene)


def make_scene(map: str, states: NDArray[np.float32]) -> Scene:
    """Make a scene that shows the values of the stored states, because the teams change between battles.

    Args:
        map: Name of the scenario.
        states: [T, S] [state features]. Source: SMACv2's `StarCraft2Env.get_state`.
    """
    check_map("smacv2", map, list_maps())
    note = "Battles of SMACv2 are shown as values."
    return empty_scene(f"smacv2 {map}", states, note, state_names(SMACV2_MAPS[map]))
