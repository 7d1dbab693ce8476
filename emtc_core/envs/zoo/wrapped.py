"""Games of MPE2 and PettingZoo, wrapped so that value-based learners can play them, and the wrappers for one's own.

A learner here chooses among some actions and reads vectors. `SmallPictures` makes screens small, `ChosenActions` picks
some of a continuous space, `WonAtEnd` tells which ends are won. One's own game is wrapped in a module of one's own:

    from pettingzoo.butterfly import pistonball_v6
    from emtc_core.envs.zoo.wrapped import SmallPictures

    def make():
        return SmallPictures(pistonball_v6.parallel_env(continuous=False, render_mode="rgb_array"), block=40)

and played by `--env pettingzoo --map my_game:make`. The packages of a game are imported when it is made.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from pettingzoo import ParallelEnv
from pettingzoo.utils import BaseParallelWrapper

Game = ParallelEnv[Any, Any, Any]
_GREY = np.array([0.299, 0.587, 0.114], np.float32)
"""Luma of red, green and blue (ITU-R BT.601)."""
_DRAWN = "rgb_array"
"""Without it these games do not draw between their steps, and what agents observe never changes."""
_KAZ_CYCLES = 300


def shrink(picture: NDArray[Any], block: int) -> NDArray[np.float32]:
    """Make a picture [H, W, 3] grey and average blocks of block × block pixels; a rest at the edges is left out.

    Returns:
        [H // block, W // block] in [0, 1].
    """
    height, width = picture.shape[0] // block, picture.shape[1] // block
    cut = np.ascontiguousarray(picture[: height * block, : width * block, :3])
    lines = np.add.reduce(cut.reshape(height, block, -1), axis=1, dtype=np.float32)  # along the rows as they lie
    averaged = lines.reshape(height, width, block, 3).sum(axis=2) / (255 * block**2)
    return (averaged @ _GREY).astype(np.float32)


class SmallPictures(BaseParallelWrapper[Any, Any, Any]):
    """Screens as small grey pictures: observations, and the state where the game has one."""

    def __init__(self, env: Game, *, block: int) -> None:
        super().__init__(env)
        self._block = block
        self._small = {agent: self._shrunken(env.observation_space(agent)) for agent in env.possible_agents}
        if isinstance(found := getattr(env, "state_space", None), spaces.Box):
            self.state_space = self._shrunken(found)

    def observation_space(self, agent: Any) -> spaces.Space[Any]:
        """The same object at every call, as PettingZoo asks."""
        return self._small[agent]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        """Start an episode."""
        observations, infos = self.env.reset(seed=seed, options=options)
        return self._shrink_all(observations), infos

    def step(self, actions: dict[Any, Any]) -> tuple[Any, Any, Any, Any, Any]:
        """Step as the game does."""
        observations, rewards, terminations, truncations, infos = self.env.step(actions)
        return self._shrink_all(observations), rewards, terminations, truncations, infos

    def state(self) -> NDArray[np.float32]:
        """The whole screen, small."""
        return shrink(self.env.state(), self._block)

    def _shrink_all(self, observations: dict[Any, Any]) -> dict[Any, NDArray[np.float32]]:
        return {agent: shrink(seen, self._block) for agent, seen in observations.items()}

    def _shrunken(self, space: spaces.Space[Any]) -> spaces.Box:
        if not isinstance(space, spaces.Box) or len(space.shape) != 3 or space.shape[2] < 3:
            raise ValueError(f"SmallPictures takes pictures of shape (height, width, 3), got {space}.")
        height, width = space.shape[0] // self._block, space.shape[1] // self._block
        if not (height and width):
            raise ValueError(f"A block of {self._block} is larger than a picture of {space.shape}. Take a smaller one.")
        return spaces.Box(0, 1, (height, width), np.float32)


class ChosenActions(BaseParallelWrapper[Any, Any, Any]):
    """A few actions out of a continuous space: action k stands for `choices[k]`."""

    def __init__(self, env: Game, *, choices: Sequence[Sequence[float]]) -> None:
        super().__init__(env)
        self._choices = np.array(choices, np.float32)
        self._spaces = {agent: spaces.Discrete(len(self._choices)) for agent in env.possible_agents}
        for agent in env.possible_agents:
            space = env.action_space(agent)
            if not all(space.contains(choice) for choice in self._choices):
                raise ValueError(f"Every choice must lie in {space} for {agent}. Mend the choices.")

    def action_space(self, agent: Any) -> spaces.Space[Any]:
        """The same object at every call, as PettingZoo asks."""
        return self._spaces[agent]

    def step(self, actions: dict[Any, Any]) -> tuple[Any, Any, Any, Any, Any]:
        """Step with what the numbers stand for."""
        return self.env.step({agent: self._choices[int(action)] for agent, action in actions.items()})


class WonAtEnd(BaseParallelWrapper[Any, Any, Any]):
    """For a game that ends before its time only when the team has won: its infos say `won` then."""

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        """Start an episode."""
        observations, infos = self.env.reset(seed=seed, options=options)
        return observations, _say(infos, won=False)

    def step(self, actions: dict[Any, Any]) -> tuple[Any, Any, Any, Any, Any]:
        """Step as the game does."""
        observations, rewards, terminations, truncations, infos = self.env.step(actions)
        won = bool(terminations) and all(terminations.values()) and not any(truncations.values())
        return observations, rewards, terminations, truncations, _say(infos, won=won)


class MadeAnew(BaseParallelWrapper[Any, Any, Any]):
    """For a game that carries something over from one episode to the next: each reset makes it anew.

    Equal seeds then give equal episodes, which replays, evaluations and resumed runs rely on.
    """

    def __init__(self, factory: Callable[[], Game]) -> None:
        super().__init__(factory())
        self._factory = factory

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        """Make the game anew and start an episode."""
        self.env.close()
        self.env = self._factory()
        return self.env.reset(seed=seed, options=options)


def _say(infos: dict[Any, dict[str, Any]], *, won: bool) -> dict[Any, dict[str, Any]]:
    return {agent: {**info, "won": won} for agent, info in infos.items()}


def simple_spread() -> Game:
    """Cover the landmarks (MPE2), 25 steps."""
    from mpe2 import simple_spread_v3  # pyright: ignore[reportMissingImports]  (an extra)

    return simple_spread_v3.parallel_env()


def simple_reference() -> Game:
    """Tell each other where to go (MPE2), 25 steps."""
    from mpe2 import simple_reference_v3  # pyright: ignore[reportMissingImports]  (an extra)

    return simple_reference_v3.parallel_env()


def simple_speaker_listener() -> Game:
    """Speak and listen (MPE2), 25 steps."""
    from mpe2 import simple_speaker_listener_v4  # pyright: ignore[reportMissingImports]  (an extra)

    return simple_speaker_listener_v4.parallel_env()


def cooperative_pong() -> Game:
    """Keep the ball in play (butterfly), cut at 500 steps; an observation is the screen at 14 × 24."""
    from pettingzoo.butterfly import cooperative_pong_v6

    return SmallPictures(cooperative_pong_v6.parallel_env(render_mode=_DRAWN), block=20)


def pistonball() -> Game:
    """Roll the ball to the left (butterfly), 125 steps; an observation is what is near a piston at 22 × 6."""
    from pettingzoo.butterfly import pistonball_v6

    return WonAtEnd(SmallPictures(pistonball_v6.parallel_env(continuous=False, render_mode=_DRAWN), block=20))


def knights_archers_zombies() -> Game:
    """Hold off zombies (butterfly), at most 300 steps; agents leave when they fall.

    `MadeAnew`, because the delay before its first zombie is carried over from the episode before.
    """
    from pettingzoo.butterfly import knights_archers_zombies_v11

    return MadeAnew(lambda: knights_archers_zombies_v11.parallel_env(max_cycles=_KAZ_CYCLES))


def pursuit() -> Game:
    """Surround the evaders (SISL), at most 500 steps."""
    from pettingzoo.sisl import pursuit_v5

    return WonAtEnd(pursuit_v5.parallel_env())


def multiwalker() -> Game:
    """Carry the package (SISL), at most 500 steps; each of four joints is pushed back, not at all or forth.

    A fall ends the episode; who fell stays, for the state cannot be read without.
    """
    from pettingzoo.sisl import multiwalker_v9

    pushes = list(itertools.product((-1.0, 0.0, 1.0), repeat=4))
    return ChosenActions(multiwalker_v9.parallel_env(remove_on_fall=False), choices=pushes)
