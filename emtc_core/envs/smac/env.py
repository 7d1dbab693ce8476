"""B games of StarCraft II, each in a process of its own, stepped together.

Every request goes to all games before the first answer is taken, so the games play side by side.
"""

import logging
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from emtc_core.arrays import check_shape
from emtc_core.envs.base import EnvInfo, Observation, Scene, blank_observation, copy_observation, refuse_unavailable
from emtc_core.envs.smac.link import GRACE_S, Arrays, GameLink, LostWorkerError
from emtc_core.envs.smac.maps import describe
from emtc_core.errors import EnvUnavailableError
from emtc_core.seeding import derive_seed

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
                    f"StarCraft II was lost {MOST_LOSSES} times in copy {copy} without one battle ended. {error}"
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
