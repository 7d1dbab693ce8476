"""PettingZoo games that are wrapped already and offered by name: `--env pettingzoo --map mpe2:simple_spread`.

What lives here: which there are, what each needs, its sizes, and how a replay draws its stored states; none of it
loads a game. How they are wrapped is in `wrapped.py`. A map that is not named here is an import path.

Places are read from the state where it has them; a state that is a picture is shown as that picture; any other as its
entries over time.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from emtc_core.arrays import check_shape
from emtc_core.config.train import EnvConfig
from emtc_core.envs.base import EnvInfo, Scene, empty_scene

EXTRA = "zoo"
"""The extra that brings every package that they need."""
_COMPASS = ("stop", "left", "right", "down", "up")
_KAZ = ("forward", "backward", "turn left", "turn right", "use weapon", "stop")

Floats = NDArray[np.float32]
_MPE_UNIT = 6.0
"""Field units to one of MPE's, whose agents are 0.15 in radius on a field of about 2 by 2."""
_KAZ_FIELD = (32.0, 18.0)
_KAZ_ROWS = {"archer": 2, "knight": 2, "mace": 2, "arrow": 10, "zombie": 10}
_KAZ_TEAM = {"archer": 0, "knight": 0, "mace": 2, "arrow": 2, "zombie": 1}
_OUTSIDE = -5.0
_KAZ_RADIUS = {"archer": 0.6, "knight": 0.6, "mace": 0.3, "arrow": 0.25, "zombie": 0.6}


@dataclass(frozen=True)
class Example:
    """One wrapped game: what it takes and shows; `factory` is its name in `wrapped.py`."""

    factory: str
    about: str
    needs: tuple[str, ...]
    """Modules that must be importable."""
    sizes: tuple[int, int, int, int, int]
    """Agents, actions, observation, state, and the steps of its longest episode."""
    action_names: tuple[str, ...] = ()
    picture: tuple[int, ...] = ()
    """Height, width and, in colour, 3, where the state is a picture."""
    colors: str = ""
    """What the colours of the picture mean."""


EXAMPLES: Mapping[str, Example] = MappingProxyType(
    {
        "mpe2:simple_spread": Example(
            "simple_spread",
            "three agents cover three landmarks without colliding; nothing can win, a return decides",
            ("mpe2",), (3, 5, 18, 54, 25), _COMPASS,
        ),
        "mpe2:simple_reference": Example(
            "simple_reference",
            "two agents tell each other by words where to go; nothing can win, a return decides",
            ("mpe2",), (2, 50, 21, 42, 25),
        ),
        "mpe2:simple_speaker_listener": Example(
            "simple_speaker_listener",
            "one agent knows the goal and speaks, the other moves; nothing can win, a return decides",
            ("mpe2",), (2, 5, 11, 14, 25),
        ),
        "butterfly:cooperative_pong": Example(
            "cooperative_pong",
            "two paddles keep a ball in play; screens in grey, 20 × 20 pixels to one; a return decides",
            ("pygame",), (2, 3, 336, 336, 500), ("stop", "up", "down"), (14, 24),
        ),
        "butterfly:pistonball": Example(
            "pistonball",
            "twenty pistons roll a ball to the left, which wins; three actions each; grey, 20 × 20 pixels to one",
            ("pygame", "pymunk"), (20, 3, 132, 1232, 125), ("down", "stop", "up"), (28, 44),
        ),
        "butterfly:knights_archers_zombies": Example(
            "knights_archers_zombies",
            "two archers and two knights hold off zombies until they fall; nothing can win, a return decides",
            ("pygame",), (4, 6, 135, 104, 300), _KAZ,
        ),
        "sisl:pursuit": Example(
            "pursuit",
            "eight pursuers surround thirty evaders; won when all are caught",
            ("pygame", "scipy"), (8, 5, 147, 768, 500), ("left", "right", "up", "down", "stop"), (16, 16, 3),
            "red: obstacle, green: pursuers, blue: evaders",
        ),
        "sisl:multiwalker": Example(
            "multiwalker",
            "three walkers carry a package; torques of −1, 0 or 1 at each of four joints; a return decides",
            ("pygame", "Box2D"), (3, 81, 31, 75, 500),
        ),
    }
)  # fmt: skip


def list_installed() -> list[str]:
    """List those whose packages this machine has."""
    return [map for map in EXAMPLES if not missing(map)]


def missing(map: str) -> tuple[str, ...]:
    """Packages that a wrapped game lacks here."""
    return tuple(module for module in ("pettingzoo", *EXAMPLES[map].needs) if find_spec(module) is None)


def make_info(config: EnvConfig) -> EnvInfo:
    """Sizes of a wrapped game."""
    example = EXAMPLES[config.map]
    n_agents, n_actions, obs_dim, state_dim, longest = example.sizes
    return EnvInfo(
        env="pettingzoo",
        map=config.map,
        n_agents=n_agents,
        n_actions=n_actions,
        obs_dim=obs_dim,
        state_dim=state_dim,
        episode_limit=min(longest, config.pettingzoo.episode_limit),
        reward_range=(-math.inf, math.inf),
        action_names=example.action_names,
    )


def make_scene(map: str, states: Floats) -> Scene:
    """Draw the stored states [T, S] of one episode of a wrapped game."""
    example = EXAMPLES[map]
    check_shape("states", states, (None, example.sizes[3]))
    if draw := _DRAWN.get(map):
        return draw(map, states)
    if example.picture:
        height, width = example.picture[:2]
        colors = f" ({example.colors})" if example.colors else ""
        note = f"What is drawn is the state itself, a picture of {height} × {width}{colors}."
        return empty_scene(map, states, note, picture=example.picture)
    return empty_scene(map, states, "The state of this game says no places, so its entries are drawn.")


def _draw_spread(map: str, states: Floats) -> Scene:
    """Draw MPE's agents and landmarks: an observation is velocity, place, then the landmarks seen from there."""
    obs = states.reshape(len(states), 3, 18)
    agents, landmarks = obs[..., 2:4], obs[:, :1, 2:4] + obs[:, 0, 4:10].reshape(-1, 3, 2)
    place = np.concatenate([agents, landmarks], axis=1) * _MPE_UNIT
    edge = float(max(np.abs(place).max(initial=0.0), 1.5 * _MPE_UNIT)) + 1.0
    return _stage(
        map,
        place,
        alive=np.ones(place.shape[:2], bool),
        team=[0, 0, 0, 2, 2, 2],
        radius=[0.15 * _MPE_UNIT] * 3 + [0.08 * _MPE_UNIT] * 3,
        kind=("agent",) * 3 + ("landmark",) * 3,
        bounds=(-edge, -edge, edge, edge),
    )


def _draw_kaz(map: str, states: Floats) -> Scene:
    """Draw archers, knights, their weapons and zombies: a row each of place and heading, zeros for who is not there."""
    rows = states.reshape(len(states), -1, 4)
    kind = tuple(name for name, count in _KAZ_ROWS.items() for _ in range(count))
    alive = np.abs(rows).max(axis=2) > 0
    width, height = _KAZ_FIELD
    place = np.stack([rows[..., 0] * width, (1 - rows[..., 1]) * height], axis=2)
    return _stage(
        map,
        _hide_absent(place, alive, n_agents=4),
        alive=alive,
        team=[_KAZ_TEAM[name] for name in kind],
        radius=[_KAZ_RADIUS[name] for name in kind],
        kind=kind,
        bounds=(0.0, 0.0, width, height),
    )


def _hide_absent(place: Floats, alive: NDArray[np.bool_], *, n_agents: int) -> Floats:
    """Let fallen agents lie where they fell; whatever else is not there waits outside the field until it appears."""
    lain = np.maximum.accumulate(np.where(alive, np.arange(len(alive))[:, None], 0), axis=0)
    comes = np.append(alive[1:], alive[-1:], axis=0)
    soon = np.append(place[1:], place[-1:], axis=0)
    shown = np.where(alive[..., None], place, np.where(comes[..., None], soon, _OUTSIDE))
    shown[:, :n_agents] = np.take_along_axis(place, lain[..., None], axis=0)[:, :n_agents]
    return shown


def _stage(
    title: str,
    place: Floats,
    *,
    alive: NDArray[np.bool_],
    team: list[int],
    radius: list[float],
    kind: tuple[str, ...],
    bounds: tuple[float, float, float, float],
) -> Scene:
    return Scene(
        position=place.astype(np.float32),
        health=np.ones(alive.shape, np.float32),
        shield=np.zeros(alive.shape, np.float32),
        alive=alive,
        team=np.array(team, np.int8),
        radius=np.array(radius, np.float32),
        kind=kind,
        bounds=bounds,
        title=title,
    )


_DRAWN: dict[str, Callable[[str, Floats], Scene]] = {
    "mpe2:simple_spread": _draw_spread,
    "butterfly:knights_archers_zombies": _draw_kaz,
}
