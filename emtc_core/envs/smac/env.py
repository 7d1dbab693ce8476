"""The real StarCraft II micromanagement tasks: oxwhirl's `smac` package over Blizzard's game.

Description: SMAC's maps in its default settings, one game and one worker process per copy, played side by side: every
    request goes to all games before the first answer is taken. The worker runs in an environment of its own, so the
    package's old protobuf meets nobody else's.
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
    Scene,
    VectorEnv,
    blank_observation,
    copy_observation,
    empty_scene,
    refuse_obstacle,
    refuse_unavailable,
    refuse_unknown_map,
)
from emtc_core.envs.skirmish.maps import MAPS
from emtc_core.envs.skirmish.maps import make_scene as draw
from emtc_core.envs.smac import places
from emtc_core.envs.smac.maps import ARENAS, SMAC_MAPS, describe, smac_arguments, state_names
from emtc_core.envs.smac.places import GRACE_S, Arrays, GameLink, LostWorkerError, Play
from emtc_core.errors import EnvUnavailableError

_LOG = logging.getLogger(__name__)
MOST_LOSSES = 3
"""Workers that a copy may lose without having ended one battle between."""


class SmacEnv:
    """B games; a game that is lost truncates its battle and is started anew for the next one."""

    def __init__(
        self,
        start: Callable[[], GameLink],
        *,
        env: str,
        map: str,
        n_envs: int,
        draw: Callable[[str, NDArray[np.float32]], Scene],
    ) -> None:
        self._start, self._env, self._map, self._draw = start, env, map, draw
        self.n_envs = n_envs
        self._seed: int | None = None
        self._losses, self._starts = [0] * n_envs, [0] * n_envs
        self._games: list[GameLink | None] = []
        try:
            for _ in range(n_envs):
                self._games.append(start())
            self.info = self._measure()
        except BaseException:
            self.close()
            raise
        self._over = np.ones(n_envs, bool)
        self._last = blank_observation(self.info, n_envs)

    def reset(self, seed: int | None = None) -> Observation:
        """Start a new battle in every game; the first call seeds and launches them."""
        first = self._seed is None
        if self._seed is None:
            self._seed = seed or 0
        self._last = blank_observation(self.info, self.n_envs)
        self._over[:] = False
        waiting = list(range(self.n_envs))
        with self._all_or_none():
            while waiting:
                waiting = self._begin(waiting, anew=first)
        return copy_observation(self._last)

    def step(self, actions: NDArray[np.integer]) -> Observation:
        """Give orders in every battle that is still on."""
        check_shape("actions", actions, (self.n_envs, self.info.n_agents))
        refuse_unavailable(actions, self._last.avail, self._over)
        self._last.reward[:] = 0
        running = np.flatnonzero(~self._over).tolist()
        orders = actions.tolist()
        with self._all_or_none():
            for copy in running:
                self._try(copy, lambda game, copy=copy: game.ask_to_step(orders[copy]))
            for copy in running:
                self._try(copy, lambda game, copy=copy: self._advance(copy, game))
        for copy in running:
            if self._games[copy] is None:
                self._cut(copy)
        return copy_observation(self._last)

    def scene(self, states: NDArray[np.float32]) -> Scene:
        """Draw stored states."""
        return self._draw(self._map, states)

    def close(self) -> None:
        """Quit every game once, waiting for all of them together."""
        games, self._games = [game for game in self._games if game is not None], []
        for game in games:
            game.close()
        if games:
            with ThreadPoolExecutor(len(games)) as threads:
                list(threads.map(lambda game: game.kill(GRACE_S), games))

    def _measure(self) -> EnvInfo:
        games = [game for game in self._games if game is not None]
        for game in games:
            game.greet()
            game.ask_to_make(0)
        sizes = [game.take_sizes() for game in games]
        return describe(self._env, self._map, sizes[0])

    def _begin(self, copies: list[int], *, anew: bool) -> list[int]:
        """Start a battle in some copies; return those whose worker was lost over it."""
        fresh = [copy for copy in copies if self._games[copy] is None or (anew and self._starts[copy] == 0)]
        for copy in fresh:
            if self._games[copy] is None:
                self._games[copy] = self._start()
                self._try(copy, GameLink.greet)
            self._try(copy, lambda game, copy=copy: game.ask_to_make(self._next_seed(copy)))
        for copy in fresh:
            self._try(copy, GameLink.take_sizes)
        for copy in copies:
            self._try(copy, GameLink.ask_to_reset)
        for copy in copies:
            self._try(copy, lambda game, copy=copy: self._read(copy, game.take_views()))
        return [copy for copy in copies if self._games[copy] is None]

    def _next_seed(self, copy: int) -> int:
        """Derive the seed of a copy's next game: another one when the last was lost, or it would be lost again."""
        start, self._starts[copy] = self._starts[copy], self._starts[copy] + 1
        counters = (copy,) if start == 0 else (copy, start)
        return derive_seed(self._seed or 0, "smac", *counters)

    @contextmanager
    def _all_or_none(self) -> Generator[None]:
        """End every game if an exchange is broken off, even by a signal: an answer left unread is the next one's."""
        try:
            yield
        except BaseException:
            for copy, game in enumerate(self._games):
                self._games[copy] = None
                if game is not None:
                    game.kill()
            raise

    def _try(self, copy: int, act: Callable[[GameLink], object]) -> None:
        """Do something with a copy's worker if it has one; note it when the worker is lost."""
        game = self._games[copy]
        if game is None:
            return
        try:
            act(game)
        except LostWorkerError as error:
            self._games[copy] = None
            self._losses[copy] += 1
            _LOG.warning("copy %d: %s", copy, error)
            if self._losses[copy] >= MOST_LOSSES:
                raise EnvUnavailableError(
                    f"StarCraft II was lost {MOST_LOSSES} times in copy {copy} without one battle ended. {error}",
                    reason="lost",
                    subject=copy,
                ) from error

    def _advance(self, copy: int, game: GameLink) -> None:
        step = game.take_step()
        if step is None:
            _LOG.warning("StarCraft II lost its connection in copy %d and was started anew", copy)
            self._cut(copy)
            return
        self._read(copy, step.arrays)
        last = self._last
        last.reward[copy], last.won[copy] = step.reward, step.won
        last.truncated[copy], last.terminated[copy] = step.cut, step.over and not step.cut
        self._over[copy] = step.over
        if step.over:
            self._losses[copy] = 0

    def _cut(self, copy: int) -> None:
        """End a battle whose game is gone; its last observation stays."""
        self._last.truncated[copy] = self._over[copy] = True

    def _read(self, copy: int, arrays: Arrays) -> None:
        self._last.obs[copy] = arrays["obs"]
        self._last.state[copy] = arrays["state"]
        self._last.avail[copy] = arrays["avail"]


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
