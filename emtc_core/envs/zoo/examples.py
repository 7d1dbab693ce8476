"""PettingZoo games with ready-made wrappers, selected by name: `--env pettingzoo --map mpe2:simple_spread`.

Contents: the games, the packages that each needs, its sizes, and its scenes. Nothing here loads a game; the wrappers
are in `wrapped.py`. The setting `map` is a name from `EXAMPLES` or an import path.

A scene shows units if the state contains positions, a picture if the state is one, and else the state values over time.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from emtc_core.arrays import check_shape
from emtc_core.config.train import EnvConfig
from emtc_core.envs.base import EnvInfo
from emtc_core.envs.scene import Scene, empty_scene

EXTRA = "zoo"
"""The pip extra with all packages that the games need."""

Floats = NDArray[np.float32]
_MPE_ACTIONS = ("stop", "left", "right", "down", "up")
_MPE_SCALE = 6.0
"""Scene units per MPE unit. MPE's agents have a radius of 0.15 on a field of about 2 by 2 MPE units."""
# Knights archers zombies (KAZ): action names, field size, and per kind the number of rows in the state, team, radius.
# Teams as in `Scene.team`: 0 agents, 1 opponents, 2 neutral.
_KAZ_ACTIONS = ("forward", "backward", "turn left", "turn right", "use weapon", "stop")
_KAZ_FIELD = (32.0, 18.0)
_KAZ_ROWS = {"archer": 2, "knight": 2, "mace": 2, "arrow": 10, "zombie": 10}
_KAZ_TEAM = {"archer": 0, "knight": 0, "mace": 2, "arrow": 2, "zombie": 1}
_KAZ_RADIUS = {"archer": 0.6, "knight": 0.6, "mace": 0.3, "arrow": 0.25, "zombie": 0.6}
_HIDDEN = -5.0
"""Coordinate outside the field for units that do not exist in a frame."""


@dataclass(frozen=True)
class Example:
    """One wrapped game, which the user selects by its name."""

    factory: str
    """Name of the function in `wrapped.py` that makes the game."""
    description: str
    needs: tuple[str, ...]
    """Modules that must be installed."""
    sizes: tuple[int, int, int, int, int]
    """Number of agents, number of actions, observation size, state size, longest episode [steps]."""
    action_names: tuple[str, ...] = ()
    picture: tuple[int, ...] = ()
    """Height, width[, 3 for color] if the state is a picture."""
    colors: str = ""
    """Meaning of the picture's colors."""


EXAMPLES: Mapping[str, Example] = MappingProxyType(
    {
        "mpe2:simple_spread": Example(
            "simple_spread",
            "three agents cover three landmarks without colliding; the game reports no win, so set a return threshold",
            ("mpe2",), (3, 5, 18, 54, 25), _MPE_ACTIONS,
        ),
        "mpe2:simple_reference": Example(
            "simple_reference",
            "two agents send each other messages about their targets; "
            "the game reports no win, so set a return threshold",
            ("mpe2",), (2, 50, 21, 42, 25),
        ),
        "mpe2:simple_speaker_listener": Example(
            "simple_speaker_listener",
            "one agent observes the target and sends messages, the other moves; "
            "the game reports no win, so set a return threshold",
            ("mpe2",), (2, 5, 11, 14, 25),
        ),
        "butterfly:cooperative_pong": Example(
            "cooperative_pong",
            "two paddles keep a ball in play; gray picture, each value is the mean of 20 × 20 pixels; "
            "the game reports no win, so set a return threshold",
            ("pygame",), (2, 3, 336, 336, 500), ("stop", "up", "down"), (14, 24),
        ),
        "butterfly:pistonball": Example(
            "pistonball",
            "twenty pistons, three actions each, roll a ball to the left to win; "
            "gray picture, each value is the mean of 20 × 20 pixels",
            ("pygame", "pymunk"), (20, 3, 132, 1232, 125), ("down", "stop", "up"), (28, 44),
        ),
        "butterfly:knights_archers_zombies": Example(
            "knights_archers_zombies",
            "two archers and two knights fight zombies until they die; "
            "the game reports no win, so set a return threshold",
            ("pygame",), (4, 6, 135, 104, 300), _KAZ_ACTIONS,
        ),
        "sisl:pursuit": Example(
            "pursuit",
            "eight pursuers surround thirty evaders; won when all are caught",
            ("pygame", "scipy"), (8, 5, 147, 768, 500), ("left", "right", "up", "down", "stop"), (16, 16, 3),
            "red: obstacle, green: pursuers, blue: evaders",
        ),
        "sisl:multiwalker": Example(
            "multiwalker",
            "three walkers carry a package; torques of −1, 0 or 1 at each of four joints; "
            "the game reports no win, so set a return threshold",
            ("pygame", "Box2D"), (3, 81, 31, 75, 500),
        ),
    }
)  # fmt: skip


def list_installed() -> list[str]:
    """List the games whose packages are installed."""
    return [map for map in EXAMPLES if not list_missing_packages(map)]


def list_missing_packages(map: str) -> tuple[str, ...]:
    """List the packages that a game needs and that are not installed."""
    return tuple(module for module in ("pettingzoo", *EXAMPLES[map].needs) if find_spec(module) is None)


def make_info(config: EnvConfig) -> EnvInfo:
    """Make the sizes and bounds of a game."""
    example = EXAMPLES[config.map]
    n_agents, n_actions, obs_dim, state_dim, episode_limit = example.sizes
    return EnvInfo(
        env="pettingzoo",
        map=config.map,
        n_agents=n_agents,
        n_actions=n_actions,
        obs_dim=obs_dim,
        state_dim=state_dim,
        episode_limit=min(episode_limit, config.pettingzoo.episode_limit),
        reward_range=(-math.inf, math.inf),
        action_names=example.action_names,
    )


def make_scene(map: str, states: Floats) -> Scene:
    """Make the frames of one episode of a game.

    Args:
        map: Name of the game.
        states: [T, S] [state features]. Source: the game's `state()`.

    Raises:
        ShapeError: If the states are of another game.
    """
    example = EXAMPLES[map]
    check_shape("states", states, (None, example.sizes[3]))
    if map == "mpe2:simple_spread":
        return _make_spread_scene(map, states)
    if map == "butterfly:knights_archers_zombies":
        return _make_kaz_scene(map, states)
    if example.picture:
        height, width = example.picture[:2]
        colors = f" ({example.colors})" if example.colors else ""
        note = f"The picture is the state itself, {height} × {width} pixels{colors}."
        return empty_scene(map, states, note, picture=example.picture)
    return empty_scene(map, states, "The state of this game contains no positions, so its values are shown.")


def _make_spread_scene(map: str, states: Floats) -> Scene:
    """Make the scene of MPE's agents and landmarks.

    The state is the observations of three agents: velocity, position, then the landmarks relative to that position.
    """
    obs = states.reshape(len(states), 3, 18)
    agents, landmarks = obs[..., 2:4], obs[:, :1, 2:4] + obs[:, 0, 4:10].reshape(-1, 3, 2)
    position = np.concatenate([agents, landmarks], axis=1) * _MPE_SCALE
    edge = float(max(np.abs(position).max(initial=0.0), 1.5 * _MPE_SCALE)) + 1.0
    return _make_unit_scene(
        map,
        position,
        alive=np.ones(position.shape[:2], bool),
        team=[0, 0, 0, 2, 2, 2],
        radius=[0.15 * _MPE_SCALE] * 3 + [0.08 * _MPE_SCALE] * 3,
        kind=("agent",) * 3 + ("landmark",) * 3,
        bounds=(-edge, -edge, edge, edge),
    )


def _make_kaz_scene(map: str, states: Floats) -> Scene:
    """Make the scene of archers, knights, their weapons and zombies.

    The state has one row per unit: position (2) and heading (2), zeros for a unit that does not exist.
    """
    rows = states.reshape(len(states), -1, 4)
    kind = tuple(name for name, count in _KAZ_ROWS.items() for _ in range(count))
    alive = np.abs(rows).max(axis=2) > 0
    width, height = _KAZ_FIELD
    position = np.stack([rows[..., 0] * width, (1 - rows[..., 1]) * height], axis=2)
    return _make_unit_scene(
        map,
        _fill_missing_positions(position, alive, n_agents=4),
        alive=alive,
        team=[_KAZ_TEAM[name] for name in kind],
        radius=[_KAZ_RADIUS[name] for name in kind],
        kind=kind,
        bounds=(0.0, 0.0, width, height),
    )


def _fill_missing_positions(position: Floats, alive: NDArray[np.bool_], *, n_agents: int) -> Floats:
    """Give units that do not exist in a frame a position.

    The first `n_agents` units are agents; a dead agent keeps its last position. Any other unit is outside the field.
    In the last frame before it appears, it is already at its first position, so that an animation does not show a move
    across the field.

    Args:
        position: [T, U, 2], field units.
        alive: Whether a unit exists in a frame, [T, U].
        n_agents: Number of agents.
    """
    last_alive = np.maximum.accumulate(np.where(alive, np.arange(len(alive))[:, None], 0), axis=0)
    alive_next = np.append(alive[1:], alive[-1:], axis=0)
    next_position = np.append(position[1:], position[-1:], axis=0)
    filled = np.where(alive[..., None], position, np.where(alive_next[..., None], next_position, _HIDDEN))
    filled[:, :n_agents] = np.take_along_axis(position, last_alive[..., None], axis=0)[:, :n_agents]
    return filled


def _make_unit_scene(
    title: str,
    position: Floats,
    *,
    alive: NDArray[np.bool_],
    team: list[int],
    radius: list[float],
    kind: tuple[str, ...],
    bounds: tuple[float, float, float, float],
) -> Scene:
    return Scene(
        position=position.astype(np.float32),
        health=np.ones(alive.shape, np.float32),
        shield=np.zeros(alive.shape, np.float32),
        alive=alive,
        team=np.array(team, np.int8),
        radius=np.array(radius, np.float32),
        kind=kind,
        bounds=bounds,
        title=title,
    )
