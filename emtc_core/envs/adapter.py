"""What the registry asks of an environment's module. One module per environment implements it.

What lives here: the questions, the sentences that every adapter answers unknown maps with, and the scene of
states that nobody can draw. What does not: any game, and the list of environments (`registry.py`).
"""

import math
from difflib import get_close_matches
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from emtc_core.config.train import EnvConfig
from emtc_core.envs.base import EnvInfo, Scene, VectorEnv
from emtc_core.errors import EnvUnavailableError


class Adapter(Protocol):
    """A module with these names at its top level; importing it must load no engine, torch or numba."""

    HOW_TO_GET: str
    """The steps that make the environment usable on a machine without it; one line."""

    def list_maps(self) -> list[str]:
        """List the maps that `--map` takes, in reading order."""
        ...

    def find_obstacle(self) -> str:
        """Why the environment cannot run here, in one sentence; "" when it can."""
        ...

    def find_info(self, config: EnvConfig) -> EnvInfo | None:
        """Sizes without starting an engine; None where only a started one knows."""
        ...

    def make_env(self, config: EnvConfig, *, n_envs: int) -> VectorEnv:
        """Start `n_envs` copies of one map."""
        ...

    def make_scene(self, map: str, states: NDArray[np.float32]) -> Scene:
        """Draw the stored states [T, S] of one episode; needs nothing installed."""
        ...


def refuse_unknown_map(env: str, map: str, maps: list[str]) -> None:
    """Refuse a map that is not in the list, naming the closest one.

    Raises:
        EnvUnavailableError: If `map` is not in `maps`.
    """
    if map in maps:
        return
    close = get_close_matches(map, maps, n=1, cutoff=0.5)
    hint = f" Did you mean {close[0]}?" if close else ""
    raise EnvUnavailableError(f"{env} has no map {map!r}.{hint} List them with: emtc envs")


def refuse_obstacle(env: str, obstacle: str, how_to_get: str) -> None:
    """Refuse to start an environment that lacks something.

    Raises:
        EnvUnavailableError: If `obstacle` is not empty; its text also says how to get what is missing.
    """
    if obstacle:
        raise EnvUnavailableError(f"{env} cannot run here: {obstacle} To get it: {how_to_get}")


def empty_scene(
    title: str,
    states: NDArray[np.float32],
    note: str,
    names: tuple[str, ...] = (),
    *,
    picture: tuple[int, ...] = (),
) -> Scene:
    """Make a field without units whose note says why; it carries the states [T, S], and their names if there are S.

    A `picture` of more than S numbers is none.
    """
    nothing = np.zeros((len(states), 0), np.float32)
    return Scene(
        position=np.zeros((len(states), 0, 2), np.float32),
        health=nothing,
        shield=nothing,
        alive=nothing.astype(bool),
        team=np.zeros(0, np.int8),
        radius=np.zeros(0, np.float32),
        kind=(),
        bounds=(0.0, 0.0, 1.0, 1.0),
        title=title,
        note=note,
        values=states,
        value_names=names if states.ndim == 2 and len(names) == states.shape[1] else (),
        picture=picture if is_picture(picture, states) else (),
    )


def is_picture(size: tuple[object, ...], states: NDArray[np.float32]) -> bool:
    """Whether (height, width) or (height, width, 3) is a picture that the states [T, S] begin with."""
    if len(size) not in (2, 3) or size[2:] not in ((), (3,)) or states.ndim != 2:
        return False
    sides = [side for side in size if isinstance(side, int) and side > 0]  # a stranger's module may say anything
    return len(sides) == len(size) and math.prod(sides) <= states.shape[1]
