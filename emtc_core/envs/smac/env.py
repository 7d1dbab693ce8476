"""The real StarCraft II micromanagement tasks: oxwhirl's `smac` package with Blizzard's game.

Description: SMAC's maps in their default settings, with one game and one worker process per copy. The games run in
    parallel: all requests are sent before the first reply is read. A worker uses a separate Python environment,
    because the package needs an old protobuf version.
Actions, Observations, State, Rewards: those of the package, see its documentation. The state contains the agents'
    last actions.
Episode end: `terminated` when one side has no unit left; `truncated` at the map's limit, or when the game or its worker
    has ended and had to be restarted.
Arguments: none. The game is the newest version in SC2PATH (published results: 4.10).
Differences from the original: the time limit is a truncation, not an end of the game. The game is seeded when it
    starts, in the first `reset(seed)`. Later seeds have no effect, and StarCraft II does not guarantee equal games for
    equal seeds. Enemies are in the game's order, not sorted as in EMU.

The package `smac` on the package index is an unrelated hyperparameter optimizer. It is detected and reported.
"""

import logging
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from emtc_core.arrays import check_shape, derive_seed
from emtc_core.config.train import EnvConfig
from emtc_core.envs.base import (
    EnvInfo,
    Observation,
    VectorEnv,
    blank_observation,
    check_actions,
    check_can_run,
    check_map,
    check_was_reset,
    copy_observation,
)
from emtc_core.envs.scene import Scene, empty_scene
from emtc_core.envs.skirmish.maps import MAPS
from emtc_core.envs.skirmish.maps import make_scene as make_skirmish_scene
from emtc_core.envs.smac import game_link
from emtc_core.envs.smac.game_link import CLOSE_TIMEOUT_S, Arrays, GameLink, GameSpec, LostWorkerError
from emtc_core.envs.smac.maps import ARENAS, SMAC_MAPS, make_info, smac_arguments, state_names
from emtc_core.errors import EnvUnavailableError

HOW_TO_GET = "python -m emtc_core.envs.smac.install"
MAX_LOSSES = 3
"""A copy that loses this number of workers without completing a battle stops the run with an error."""

_LOG = logging.getLogger(__name__)


def list_maps() -> list[str]:
    """List the paper's maps, SMAC's other maps, and any further map file in the folder SMAC_Maps.

    The package must register such a further map itself.
    """
    others = (name for name in SMAC_MAPS if name not in MAPS)
    files = (name for name, path in game_link.find_maps().items() if path.parent.name == "SMAC_Maps")
    return [*MAPS, *others, *(name for name in files if name not in SMAC_MAPS and name not in ARENAS)]


def find_unavailable_reason() -> str:
    """Check the package, the game and the maps, in this order."""
    return game_link.find_unavailable_reason("smac", "")


def find_info(config: EnvConfig) -> EnvInfo | None:
    """Return the sizes of one of SMAC's maps; None for another map, whose sizes are read from the started game."""
    if config.map in SMAC_MAPS:
        return make_info("smac", config.map, SMAC_MAPS[config.map].sizes())
    check_map("smac", config.map, list_maps())
    return None


def make_env(config: EnvConfig, *, n_envs: int) -> VectorEnv:
    """Start `n_envs` workers. Each starts its game at the first reset."""
    check_map("smac", config.map, list_maps())
    check_can_run("smac", game_link.find_unavailable_reason("smac", config.map), HOW_TO_GET)
    python, play = game_link.find_python(), GameSpec("smac", config.map, smac_arguments(config.map))
    return SmacEnv(lambda: GameLink(python, play), env="smac", map=config.map, n_envs=n_envs, draw=make_scene)


def make_scene(map: str, states: NDArray[np.float32]) -> Scene:
    """Make the frames of one episode from its stored states.

    The paper's maps have the simulator's state layout, so the simulator's scene is used. Other maps show the values.

    Args:
        map: Name of the map.
        states: [T, S] [state features]. Source: SMAC's `StarCraft2Env.get_state`.
    """
    if map not in MAPS:
        names = state_names(SMAC_MAPS[map]) if map in SMAC_MAPS else ()
        return empty_scene(f"smac {map}", states, "Only the paper's maps can be drawn from their states.", names)
    return replace(make_skirmish_scene(MAPS[map], states), title=f"smac {map}", note="StarCraft II.", walkable=None)


class SmacEnv:
    """B games in worker processes. If a game ends unexpectedly, its battle is truncated and a new game starts.

    Args:
        start: Starts one worker.
        env: Name of the environment.
        map: Name of the map.
        n_envs: Number of games.
        draw: Makes a scene from the map and states [T, S].
    """

    def __init__(
        self,
        start: Callable[[], GameLink],
        *,
        env: str,
        map: str,
        n_envs: int,
        draw: Callable[[str, NDArray[np.float32]], Scene],
    ) -> None:
        self._start, self._map, self._draw = start, map, draw
        self.n_envs = n_envs
        self._seed: int | None = None
        self._losses, self._starts = [0] * n_envs, [0] * n_envs
        self._games: list[GameLink | None] = []
        try:
            for _ in range(n_envs):
                self._games.append(start())
            games = [game for game in self._games if game is not None]
            for game in games:
                game.receive_hello()
                game.request_make(0)
            sizes = [game.receive_sizes() for game in games]
            self.info = make_info(env, map, sizes[0])
        except BaseException:
            self.close()
            raise
        self._over = np.zeros(n_envs, bool)
        self._last = blank_observation(self.info, n_envs)

    def reset(self, seed: int | None = None) -> Observation:
        """Start a new battle in every game. The first call seeds and starts the games."""
        first = self._seed is None
        if self._seed is None:
            self._seed = seed or 0
        self._last = blank_observation(self.info, self.n_envs)
        self._over[:] = False
        remaining = list(range(self.n_envs))
        with self._kill_all_on_error():
            while remaining:
                remaining = self._start_battles(remaining, first=first)
        return copy_observation(self._last)

    def step(self, actions: NDArray[np.integer]) -> Observation:
        """Advance every battle that has not ended by one step.

        Source: SMAC's `StarCraft2Env.step`.

        Args:
            actions: [B, N], action index of each agent.
        """
        check_was_reset(self._seed is not None)
        check_shape("actions", actions, (self.n_envs, self.info.n_agents))
        check_actions(actions, self._last.avail, self._over)
        self._last.reward[:] = 0
        running = np.flatnonzero(~self._over).tolist()
        action_lists = actions.tolist()
        with self._kill_all_on_error():
            for copy in running:
                self._try(copy, lambda game, copy=copy: game.request_step(action_lists[copy]))
            for copy in running:
                self._try(copy, lambda game, copy=copy: self._read_step(copy, game))
        for copy in running:
            if self._games[copy] is None:
                self._truncate(copy)
        return copy_observation(self._last)

    def scene(self, states: NDArray[np.float32]) -> Scene:
        """Make the frames of one episode from its stored states.

        Args:
            states: [T, S] [state features]. Source: SMAC's `StarCraft2Env.get_state`.
        """
        return self._draw(self._map, states)

    def close(self) -> None:
        """Quit every game and wait for all of them in parallel. A second call has no effect."""
        games, self._games = [game for game in self._games if game is not None], []
        for game in games:
            game.close()
        if games:
            with ThreadPoolExecutor(len(games)) as threads:
                list(threads.map(lambda game: game.kill(CLOSE_TIMEOUT_S), games))

    def _start_battles(self, copies: list[int], *, first: bool) -> list[int]:
        """Start a battle in some copies and return the copies whose worker was lost.

        Args:
            copies: The copies.
            first: Whether this is the first reset, in which every game gets its seed.
        """
        to_seed = [copy for copy in copies if self._games[copy] is None or (first and self._starts[copy] == 0)]
        for copy in to_seed:
            if self._games[copy] is None:
                self._games[copy] = self._start()
                self._try(copy, GameLink.receive_hello)
            self._try(copy, lambda game, copy=copy: game.request_make(self._next_seed(copy)))
        for copy in to_seed:
            self._try(copy, GameLink.receive_sizes)
        for copy in copies:
            self._try(copy, GameLink.request_reset)
        for copy in copies:
            self._try(copy, lambda game, copy=copy: self._store_arrays(copy, game.receive_arrays()))
        return [copy for copy in copies if self._games[copy] is None]

    def _next_seed(self, copy: int) -> int:
        """Derive a new seed for each start of a copy's game: with the seed of a lost game it could be lost again."""
        start, self._starts[copy] = self._starts[copy], self._starts[copy] + 1
        counters = (copy,) if start == 0 else (copy, start)
        return derive_seed(self._seed or 0, "smac", *counters)

    @contextmanager
    def _kill_all_on_error(self) -> Generator[None]:
        """End every game if the block raises, even by a signal.

        A reply that was not read would be taken for the reply to the next request.
        """
        try:
            yield
        except BaseException:
            for copy, game in enumerate(self._games):
                self._games[copy] = None
                if game is not None:
                    game.kill()
            raise

    def _try(self, copy: int, action: Callable[[GameLink], object]) -> None:
        """Call `action` with the worker of a copy, if it has one. A lost worker is recorded and logged.

        Raises:
            EnvUnavailableError: If the copy has lost `MAX_LOSSES` workers.
        """
        game = self._games[copy]
        if game is None:
            return
        try:
            action(game)
        except LostWorkerError as error:
            self._games[copy] = None
            self._losses[copy] += 1
            _LOG.warning("copy %d: %s", copy, error)
            if self._losses[copy] >= MAX_LOSSES:
                raise EnvUnavailableError(
                    f"StarCraft II was lost {MAX_LOSSES} times in copy {copy} without a completed battle. {error}"
                ) from error

    def _read_step(self, copy: int, game: GameLink) -> None:
        step = game.receive_step()
        if step is None:
            _LOG.warning("StarCraft II lost its connection in copy %d and was restarted", copy)
            self._truncate(copy)
            return
        self._store_arrays(copy, step.arrays)
        last = self._last
        last.reward[copy], last.won[copy] = step.reward, step.won
        last.truncated[copy], last.terminated[copy] = step.truncated, step.over and not step.truncated
        self._over[copy] = step.over
        if step.over:
            self._losses[copy] = 0

    def _truncate(self, copy: int) -> None:
        """Truncate a battle whose game has ended. Its last observation is kept."""
        self._last.truncated[copy] = self._over[copy] = True

    def _store_arrays(self, copy: int, arrays: Arrays) -> None:
        self._last.obs[copy] = arrays["obs"]
        self._last.state[copy] = arrays["state"]
        self._last.avail[copy] = arrays["avail"]
