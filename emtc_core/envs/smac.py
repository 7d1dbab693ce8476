"""The real StarCraft II micromanagement tasks: oxwhirl's `smac` package over Blizzard's game.

Description: SMAC's maps in its default settings, one game process per copy, played side by side by threads.
Actions, Observations, State, Rewards: the package's own, see its documentation; the state holds the agents'
    last actions.
Episode end: `terminated` when a side is gone; `truncated` at the map's limit, or when the game's connection
    broke and it had to be started anew.
Arguments: none; the game is the newest version under SC2PATH (published results: 4.10).
Differences from the original: the time limit is told from an end of the game. The game is seeded when it is
    launched, by the first `reset(seed)`; later seeds change nothing, and StarCraft II does not promise equal
    games for equal seeds anyway. Enemies stand in the game's own order, not EMU's sorted one.

`smac` on the package index is an unrelated hyperparameter optimiser; it is recognised and named.
"""

import logging
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from emtc_core.arrays import check_shape
from emtc_core.config.env import EnvConfig, SkirmishConfig
from emtc_core.envs.adapter import empty_scene, refuse_obstacle, refuse_unknown_map
from emtc_core.envs.base import EnvInfo, Observation, Scene, VectorEnv
from emtc_core.envs.batch import blank_observation, copy_observation, refuse_unavailable
from emtc_core.envs.skirmish.maps import MAPS, MOVES, make_info
from emtc_core.envs.skirmish.scene import make_scene as draw
from emtc_core.errors import EnvUnavailableError
from emtc_core.seeding import derive_seed

_LOG = logging.getLogger(__name__)

HOW_TO_GET = (
    "pip uninstall -y smac; pip install git+https://github.com/oxwhirl/smac.git; download StarCraft II 4.10 for "
    "Linux from github.com/Blizzard/s2client-proto and unzip it; export SC2PATH=/path/to/StarCraftII; copy the "
    "package's SMAC_Maps folder to $SC2PATH/Maps"
)
REWARD_RANGE = (0.0, 20.0)


class Game(Protocol):
    """What we use of the documented interface of `smac.env.StarCraft2Env`."""

    def reset(self) -> object: ...

    def step(self, actions: Sequence[int], /) -> tuple[float, bool, dict[str, Any]]: ...

    def get_obs(self) -> Sequence[NDArray[Any]]: ...

    def get_state(self) -> NDArray[Any]: ...

    def get_avail_actions(self) -> Sequence[Sequence[int]]: ...

    def get_env_info(self) -> dict[str, Any]: ...

    def close(self) -> None: ...


def list_maps() -> list[str]:
    """List the paper's maps, and every other that the installed package registers."""
    return [*MAPS, *(name for name in _registered_maps() if name not in MAPS)]


def find_obstacle() -> str:
    """Look for the package, the game and the maps, in this order."""
    root = _package_root()
    if root is None:
        return "the package smac is not installed."
    if not (root / "env" / "starcraft2").is_dir():
        return "smac on this machine is the hyperparameter optimiser of that name, not StarCraft's."
    if find_spec("pysc2") is None:
        return "the package pysc2 is not installed."
    game = _game_folder()
    if not (game / "Versions").is_dir():
        return f"StarCraft II is not in {game} (SC2PATH)."
    if not list((game / "Maps").rglob("*.SC2Map")):
        return f"SMAC's maps are not in {game / 'Maps'}."
    return ""


def find_info(config: EnvConfig) -> EnvInfo | None:
    """Tell the sizes of a known map; a map beyond the paper's is measured when it runs."""
    refuse_unknown_map("smac", config.map, list_maps())
    if config.map not in MAPS:
        return None
    return replace(make_info(MAPS[config.map], SkirmishConfig()), env="smac", enemy_names=(), repeats_starts=False)


def make_env(config: EnvConfig, *, n_envs: int) -> VectorEnv:
    """Launch `n_envs` games; each starts with its first reset."""
    refuse_unknown_map("smac", config.map, list_maps())
    refuse_obstacle("smac", find_obstacle(), HOW_TO_GET)
    if not any(path.stem == config.map for path in (_game_folder() / "Maps").rglob("*.SC2Map")):
        raise EnvUnavailableError(f"smac cannot find {config.map}.SC2Map under {_game_folder() / 'Maps'}.")
    starcraft = import_module("smac.env").StarCraft2Env

    def launch(seed: int) -> Game:
        # The flag does no more than mark the time limit in the step's info.
        return starcraft(map_name=config.map, seed=seed, continuing_episode=True)

    return SmacEnv(launch, map=config.map, n_envs=n_envs)


def make_scene(map: str, states: NDArray[np.float32]) -> Scene:
    """Draw stored states: the layout is the simulator's, so is the drawing."""
    if map not in MAPS:
        return empty_scene(map, states, "Only the paper's maps can be drawn from their states.")
    return replace(draw(MAPS[map], states), title=f"smac {map}", note="StarCraft II.", walkable=None)


class SmacEnv:
    """B games of StarCraft II stepped together."""

    def __init__(self, launch: Callable[[int], Game], *, map: str, n_envs: int) -> None:
        self._launch = launch
        self._map = map
        self._n_envs = n_envs
        self._games: list[Game] = []
        self._threads = ThreadPoolExecutor(n_envs, thread_name_prefix="smac")
        probe = launch(0)  # constructing starts no game; its sizes are known then
        self._info = _measure(probe, map)
        probe.close()
        self._over = np.ones(n_envs, bool)
        self._last = blank_observation(self._info, n_envs)

    @property
    def info(self) -> EnvInfo:
        """The sizes."""
        return self._info

    @property
    def n_envs(self) -> int:
        """Number of games."""
        return self._n_envs

    def reset(self, seed: int | None = None) -> Observation:
        """Start a new battle in every game; the first call launches them."""
        if not self._games:
            base = 0 if seed is None else seed
            self._games = [self._launch(derive_seed(base, "smac", copy)) for copy in range(self._n_envs)]
        else:
            self._spare_a_relaunch()
        self._last = blank_observation(self._info, self._n_envs)
        self._over[:] = False
        list(self._threads.map(self._restart, range(self._n_envs)))
        return copy_observation(self._last)

    def step(self, actions: NDArray[np.integer]) -> Observation:
        """Give orders in every battle that is still on."""
        check_shape("actions", actions, (self._n_envs, self._info.n_agents))
        refuse_unavailable(actions, self._last.avail, self._over)
        self._last.reward[:] = 0
        running = np.flatnonzero(~self._over).tolist()
        list(self._threads.map(lambda copy: self._advance(copy, actions[copy]), running))
        return copy_observation(self._last)

    def scene(self, states: NDArray[np.float32]) -> Scene:
        """Draw stored states."""
        return make_scene(self._map, states)

    def close(self) -> None:
        """Quit every game once."""
        games, self._games = self._games, []
        for game in games:
            game.close()
        self._threads.shutdown()

    def _restart(self, copy: int) -> None:
        self._games[copy].reset()
        self._read(copy)

    def _advance(self, copy: int, actions: NDArray[np.integer]) -> None:
        reward, over, info = self._games[copy].step([int(action) for action in actions])
        lost_connection = over and "battle_won" not in info
        if lost_connection:
            _LOG.warning("StarCraft II lost its connection in copy %d and was started anew", copy)
        else:
            self._read(copy)
        last = self._last
        last.reward[copy] = reward
        last.truncated[copy] = over and (lost_connection or info.get("episode_limit", False))
        last.terminated[copy] = over and not last.truncated[copy]
        last.won[copy] = over and bool(info.get("battle_won", False))
        self._over[copy] = over

    def _read(self, copy: int) -> None:
        game, last = self._games[copy], self._last
        last.obs[copy] = np.stack(game.get_obs())
        last.state[copy] = game.get_state()
        last.avail[copy] = np.asarray(game.get_avail_actions(), bool)

    def _spare_a_relaunch(self) -> None:
        """Keep `StarCraft2Env.reset` from launching a second game if its first episode was not played out."""
        for game in self._games:
            if getattr(game, "_episode_count", 1) == 0:
                game._episode_count = 1  # type: ignore[attr-defined]


def _measure(game: Game, map: str) -> EnvInfo:
    """Read the sizes off a game, known map or not."""
    facts = game.get_env_info()
    n_actions = int(facts["n_actions"])
    return EnvInfo(
        env="smac",
        map=map,
        n_agents=int(facts["n_agents"]),
        n_actions=n_actions,
        obs_dim=int(facts["obs_shape"]),
        state_dim=int(facts["state_shape"]),
        episode_limit=int(facts["episode_limit"]),
        reward_range=REWARD_RANGE,
        agent_block=len(facts.get("agent_features", ())),
        action_names=(*MOVES, *(f"attack {k}" for k in range(n_actions - len(MOVES)))),
        repeats_starts=False,
    )


def _package_root() -> Path | None:
    """Find the folder of whatever `smac` is, without importing it: the optimiser takes seconds to load."""
    spec = find_spec("smac")
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))


def _game_folder() -> Path:
    return Path(os.environ.get("SC2PATH", Path.home() / "StarCraftII")).expanduser()


def _registered_maps() -> list[str]:
    if find_obstacle():
        return []
    return list(import_module("smac.env.starcraft2.maps.smac_maps").get_smac_map_registry())
