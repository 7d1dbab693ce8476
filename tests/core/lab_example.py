"""A module as `EMTC_PLUGINS` lists it: an environment, of NumPy alone, and a gate, both with settings."""

from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from emtc_core.config.base import ConfigSection
from emtc_core.envs.base import EnvInfo, Observation
from emtc_core.envs.registry import NO_DRAWING
from emtc_core.envs.scene import Scene
from emtc_core.gate_laws import GateLaw
from emtc_core.plugins import register


class SteepSettings(ConfigSection):
    """Settings of the gate."""

    at: Annotated[float, Field(gt=0, le=10)] = 1.0
    """The gate closes where delta is larger than this multiple of tau."""


class GuessSettings(ConfigSection):
    """Settings of the environment."""

    doors: Annotated[int, Field(ge=2, le=8)] = 3
    """Doors to choose from [doors]."""
    generous: bool = False
    """Double the reward."""


def make_steep(settings: SteepSettings) -> GateLaw:
    """Make a gate that is open or closed."""

    def steep(delta: Any, tau: Any, context: Any) -> Any:
        return (delta <= settings.at * tau).astype(float)

    return GateLaw(steep)


class Guess:
    """B copies of a game in which two agents must choose one door of several, for three steps."""

    maps = ("plain", "dark")

    def __init__(self, map: str, n_envs: int, settings: GuessSettings) -> None:
        self.n_envs, self._prize = n_envs, 2.0 if settings.generous else 1.0
        self.info = EnvInfo("guess", map, 2, settings.doors, 2, 2, 3, (0.0, self._prize))

    def reset(self, seed: int | None = None) -> Observation:
        """Begin."""
        self._t, self._won = 0, np.zeros(self.n_envs, bool)
        return self._show(np.zeros(self.n_envs, np.float32))

    def step(self, actions: NDArray[np.integer]) -> Observation:
        """Open doors; the last one wins."""
        outside = (actions < 0) | (actions >= self.info.n_actions)
        over = self._won | (self._t >= 3)
        if (outside.any(axis=1) & ~over).any():
            raise ValueError("There is no such door.")
        right = (actions == self.info.n_actions - 1).all(axis=1) & ~over
        self._t, self._won = min(3, self._t + 1), self._won | right
        return self._show(np.where(right, self._prize, 0).astype(np.float32))

    def scene(self, states: NDArray[np.float32]) -> Scene:
        """Nobody draws it."""
        raise NotImplementedError(NO_DRAWING)

    def close(self) -> None:
        """Nothing is open."""

    def _show(self, reward: NDArray[np.float32]) -> Observation:
        copies = self.n_envs
        state = np.tile(np.array([self._t / 3, 1.0], np.float32), (copies, 1))
        state[self._won] = -1.0
        late = np.full(copies, self._t >= 3) & ~self._won
        return Observation(
            obs=np.repeat(state[:, None], 2, axis=1),
            state=state,
            avail=np.ones((copies, 2, self.info.n_actions), bool),
            reward=reward,
            terminated=self._won.copy(),
            truncated=late,
            won=self._won.copy(),
            infos={"opened": np.full(copies, float(self._t), np.float32)},
        )


register("gate", "steep", make_steep, settings=SteepSettings)
register("environment", "guess", Guess, settings=GuessSettings)
