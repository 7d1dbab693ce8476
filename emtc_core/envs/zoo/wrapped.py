"""Wrappers for PettingZoo environments, and games of MPE2 and PettingZoo that use them.

The learners here need discrete actions and vectors as observations. `SmallPictures` shrinks screens, `DiscreteActions`
selects a finite set of continuous actions, and `WonAtEnd` reports success. To wrap another game, write a module:

    from pettingzoo.butterfly import pistonball_v6
    from emtc_core.envs.zoo.wrapped import SmallPictures

    def make():
        return SmallPictures(pistonball_v6.parallel_env(continuous=False, render_mode="rgb_array"), block=40)

Then select it with `--env pettingzoo --map my_game:make`. The packages of a game are imported when it is made.
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
_LUMA = np.array([0.299, 0.587, 0.114], np.float32)
"""Weights of red, green and blue in a gray value (ITU-R BT.601)."""
_RENDER_MODE = "rgb_array"
"""Without this mode, these games do not redraw the screen after a step, and the observations never change."""
_KAZ_CYCLES = 300
"""Maximum steps of an episode of knights archers zombies."""


def shrink(picture: NDArray[Any], block: int) -> NDArray[np.float32]:
    """Convert a picture to gray and average blocks of block × block pixels.

    Source: the luma weights of ITU-R BT.601.

    Args:
        picture: [H, W, 3], colors in 0..255, dimensionless.
        block: Side length of a block [pixels]. Incomplete blocks at the right and bottom edges are dropped.

    Returns:
        [H // block, W // block], gray values in [0, 1], dimensionless.
    """
    height, width = picture.shape[0] // block, picture.shape[1] // block
    cropped = np.ascontiguousarray(picture[: height * block, : width * block, :3])
    row_sums = np.add.reduce(cropped.reshape(height, block, -1), axis=1, dtype=np.float32)  # contiguous in memory
    averages = row_sums.reshape(height, width, block, 3).sum(axis=2) / (255 * block**2)
    return (averages @ _LUMA).astype(np.float32)


class SmallPictures(BaseParallelWrapper[Any, Any, Any]):
    """Convert screens to small gray pictures: the observations, and the state if the game has one.

    Args:
        env: The game; its observations must be pictures [H, W, 3].
        block: Side length of the averaged blocks [screen pixels].

    Raises:
        ValueError: If the observations are not pictures, or are smaller than a block.
    """

    def __init__(self, env: Game, *, block: int) -> None:
        super().__init__(env)
        self._block = block
        self._observation_spaces = {
            agent: self._shrink_space(env.observation_space(agent)) for agent in env.possible_agents
        }
        state_space = getattr(env, "state_space", None)
        if isinstance(state_space, spaces.Box):
            self.state_space = self._shrink_space(state_space)

    def observation_space(self, agent: Any) -> spaces.Space[Any]:
        """Return an agent's space. PettingZoo requires the same object at every call."""
        return self._observation_spaces[agent]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        """Start an episode."""
        observations, infos = self.env.reset(seed=seed, options=options)
        return self._shrink_all(observations), infos

    def step(self, actions: dict[Any, Any]) -> tuple[Any, Any, Any, Any, Any]:
        """Step the game and shrink the observations."""
        observations, rewards, terminations, truncations, infos = self.env.step(actions)
        return self._shrink_all(observations), rewards, terminations, truncations, infos

    def state(self) -> NDArray[np.float32]:
        """Return the shrunken screen, [H // block, W // block], gray values in [0, 1], dimensionless.

        Source: the game's `state()`.
        """
        return shrink(self.env.state(), self._block)

    def _shrink_all(self, observations: dict[Any, Any]) -> dict[Any, NDArray[np.float32]]:
        return {agent: shrink(picture, self._block) for agent, picture in observations.items()}

    def _shrink_space(self, space: spaces.Space[Any]) -> spaces.Box:
        if not isinstance(space, spaces.Box) or len(space.shape) != 3 or space.shape[2] < 3:
            raise ValueError(f"SmallPictures takes pictures of shape (height, width, 3), got {space}.")
        height, width = space.shape[0] // self._block, space.shape[1] // self._block
        if not (height and width):
            raise ValueError(f"A block of {self._block} is larger than a picture of {space.shape}. Use a smaller one.")
        return spaces.Box(0, 1, (height, width), np.float32)


class DiscreteActions(BaseParallelWrapper[Any, Any, Any]):
    """Replace a continuous action space by a finite set of its actions.

    Args:
        env: The game.
        choices: The actions; the discrete action k is `choices[k]`.

    Raises:
        ValueError: If a choice is not in the action space of an agent.
    """

    def __init__(self, env: Game, *, choices: Sequence[Sequence[float]]) -> None:
        super().__init__(env)
        self._choices = np.array(choices, np.float32)
        self._spaces = {agent: spaces.Discrete(len(self._choices)) for agent in env.possible_agents}
        for agent in env.possible_agents:
            space = env.action_space(agent)
            if not all(space.contains(choice) for choice in self._choices):
                raise ValueError(f"Every choice must be in {space} for {agent}. Change the choices.")

    def action_space(self, agent: Any) -> spaces.Space[Any]:
        """Return an agent's space. PettingZoo requires the same object at every call."""
        return self._spaces[agent]

    def step(self, actions: dict[Any, Any]) -> tuple[Any, Any, Any, Any, Any]:
        """Step the game with the selected actions."""
        return self.env.step({agent: self._choices[int(action)] for agent, action in actions.items()})


class WonAtEnd(BaseParallelWrapper[Any, Any, Any]):
    """Add `won` to the infos of a game that terminates only if the team has won."""

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        """Start an episode."""
        observations, infos = self.env.reset(seed=seed, options=options)
        return observations, _add_won(infos, won=False)

    def step(self, actions: dict[Any, Any]) -> tuple[Any, Any, Any, Any, Any]:
        """Step the game; `won` is true if all agents have terminated and none was truncated."""
        observations, rewards, terminations, truncations, infos = self.env.step(actions)
        won = bool(terminations) and all(terminations.values()) and not any(truncations.values())
        return observations, rewards, terminations, truncations, _add_won(infos, won=won)


class RecreateAtReset(BaseParallelWrapper[Any, Any, Any]):
    """Make the game again at each reset. Use it for a game whose reset does not clear everything.

    Then equal seeds give equal episodes. Replays, evaluations and resumed runs require that.
    """

    def __init__(self, factory: Callable[[], Game]) -> None:
        super().__init__(factory())
        self._factory = factory

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        """Close the game, make it again and start an episode."""
        self.env.close()
        self.env = self._factory()
        return self.env.reset(seed=seed, options=options)


def simple_spread() -> Game:
    """Make simple_spread (MPE2): agents cover landmarks, 25 steps."""
    from mpe2 import simple_spread_v3  # pyright: ignore[reportMissingImports]  (an extra)

    return simple_spread_v3.parallel_env()


def simple_reference() -> Game:
    """Make simple_reference (MPE2): agents send each other the target, 25 steps."""
    from mpe2 import simple_reference_v3  # pyright: ignore[reportMissingImports]  (an extra)

    return simple_reference_v3.parallel_env()


def simple_speaker_listener() -> Game:
    """Make simple_speaker_listener (MPE2): one agent sends the target, the other moves, 25 steps."""
    from mpe2 import simple_speaker_listener_v4  # pyright: ignore[reportMissingImports]  (an extra)

    return simple_speaker_listener_v4.parallel_env()


def cooperative_pong() -> Game:
    """Make cooperative_pong (butterfly), truncated at 500 steps. An observation is the screen as 14 × 24 pixels."""
    from pettingzoo.butterfly import cooperative_pong_v6

    return SmallPictures(cooperative_pong_v6.parallel_env(render_mode=_RENDER_MODE), block=20)


def pistonball() -> Game:
    """Make pistonball (butterfly), 125 steps. An observation is the part of the screen near a piston, 22 × 6 pixels."""
    from pettingzoo.butterfly import pistonball_v6

    return WonAtEnd(SmallPictures(pistonball_v6.parallel_env(continuous=False, render_mode=_RENDER_MODE), block=20))


def knights_archers_zombies() -> Game:
    """Make knights_archers_zombies (butterfly), at most 300 steps. Agents leave when they die.

    It needs `RecreateAtReset`, because its reset keeps the delay before the first zombie from the previous episode.
    """
    from pettingzoo.butterfly import knights_archers_zombies_v11

    return RecreateAtReset(lambda: knights_archers_zombies_v11.parallel_env(max_cycles=_KAZ_CYCLES))


def pursuit() -> Game:
    """Make pursuit (SISL): pursuers surround evaders, at most 500 steps."""
    from pettingzoo.sisl import pursuit_v5

    return WonAtEnd(pursuit_v5.parallel_env())


def multiwalker() -> Game:
    """Make multiwalker (SISL), at most 500 steps. An action is a torque of -1, 0 or 1 for each of four joints.

    A fall ends the episode. A fallen walker is not removed, because then the state could not be read.
    """
    from pettingzoo.sisl import multiwalker_v9

    torques = list(itertools.product((-1.0, 0.0, 1.0), repeat=4))
    return DiscreteActions(multiwalker_v9.parallel_env(remove_on_fall=False), choices=torques)


def _add_won(infos: dict[Any, dict[str, Any]], *, won: bool) -> dict[Any, dict[str, Any]]:
    return {agent: {**info, "won": won} for agent, info in infos.items()}


ChosenActions = DiscreteActions
"""Name in release 1.0."""
MadeAnew = RecreateAtReset
"""Name in release 1.0."""
