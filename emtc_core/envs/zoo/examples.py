"""PettingZoo games that are wrapped already and offered by name: `--env pettingzoo --map mpe2:simple_spread`.

What lives here: which there are, what each needs and its sizes, none of which loads a game. How they are wrapped is in
`wrapped.py`, how their states are drawn in `scenes.py`. A map that is not named here is an import path.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from types import MappingProxyType

from emtc_core.config.env import EnvConfig
from emtc_core.envs.base import EnvInfo

EXTRA = "zoo"
"""The extra that brings every package that they need."""
_COMPASS = ("stop", "left", "right", "down", "up")
_KAZ = ("forward", "backward", "turn left", "turn right", "use weapon", "stop")


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
