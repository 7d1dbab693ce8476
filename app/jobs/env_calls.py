"""Record which call of an environment is in progress, so that `app.jobs.signals` can detect a call that hangs."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from emtc_core.envs.base import EnvInfo, Observation, Scene, VectorEnv

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class EnvCall:
    """One call of an environment."""

    number: int
    """Number of the call in this process. It distinguishes two calls with the same name."""
    name: str
    """`reset`, `step` or `its start`. It completes the message "The environment did not return from …"."""


class EnvCalls:
    """Stores the call in progress of one trainer's environments. Another thread may read it."""

    def __init__(self) -> None:
        self._numbers = count()
        self.running: EnvCall | None = None
        """The call in progress; None between two calls."""

    def run(self, name: str, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a function of an environment, and store the call in `running` until it returns."""
        self.running = EnvCall(next(self._numbers), name)
        try:
            return function(*args, **kwargs)
        finally:
            self.running = None

    def watch(self, env: VectorEnv) -> VectorEnv:
        """Wrap an environment, so that its calls of `reset` and `step` are stored here."""
        return _WatchedEnv(env, self)


class EnvWrapper(VectorEnv):
    """Forwards to another environment, except `reset` and `step`, which subclasses define."""

    def __init__(self, env: VectorEnv) -> None:
        self._env = env

    @property
    def info(self) -> EnvInfo:
        return self._env.info

    @property
    def n_envs(self) -> int:
        return self._env.n_envs

    def scene(self, states: NDArray[np.float32]) -> Scene:
        return self._env.scene(states)

    def close(self) -> None:
        self._env.close()


class _WatchedEnv(EnvWrapper):
    def __init__(self, env: VectorEnv, calls: EnvCalls) -> None:
        super().__init__(env)
        self._calls = calls

    def reset(self, seed: int | None = None) -> Observation:
        return self._calls.run("reset", self._env.reset, seed)

    def step(self, actions: NDArray[np.integer]) -> Observation:
        return self._calls.run("step", self._env.step, actions)
