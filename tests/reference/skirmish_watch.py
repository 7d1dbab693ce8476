"""Plays a skirmish at random and looks at the battle after every single game loop."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from emtc_core.config.train import SkirmishConfig
from emtc_core.envs.base import Observation
from emtc_core.envs.skirmish.env import Battle, SkirmishEnv, make_skirmish

Look = Callable[[Battle, NDArray[np.float64], NDArray[np.int64]], None]


def make(map: str, n_envs: int = 1, **config) -> SkirmishEnv:
    return make_skirmish(map, n_envs=n_envs, config=SkirmishConfig(**config))


def draw(avail: NDArray[np.bool_], rng: np.random.Generator, *, fight: float = 0.0) -> NDArray[np.int64]:
    """Draw available actions; with chance `fight` an agent that can attack does."""
    weight = rng.random(avail.shape) * avail
    eager = rng.random(avail.shape[:2]) < fight
    weight[..., 6:] += np.where(eager[..., None] & avail[..., 6:], 1.0, 0.0)
    return weight.argmax(axis=-1)


def is_over(seen: Observation) -> NDArray[np.bool_]:
    return seen.terminated | seen.truncated


def play(env: SkirmishEnv, seed: int, *, fight: float = 0.0, look: Look | None = None) -> list[Observation]:
    """Play one round; `look` sees the battle after each loop beside the arrays as they were before it."""
    battle = env._battle
    if look is not None:

        def advance(loops: int) -> None:
            for _ in range(loops):
                floats, ints = battle.floats.copy(), battle.ints.copy()
                Battle.advance(battle, 1)
                look(battle, floats, ints)

        battle.advance = advance  # type: ignore[method-assign]
    rng = np.random.default_rng(seed)
    seen = [env.reset(seed)]
    while not is_over(seen[-1]).all():
        seen.append(env.step(draw(seen[-1].avail, rng, fight=fight)))
    return seen
