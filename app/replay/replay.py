"""A stored episode → what the player, the files and the command line show of it: its scene, its values, its actions.

After this comes `payload` (for the browser) and `files`. `Side` needs no Streamlit and no database.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.analysis.episodes import draw_scene, name_episode
from app.figures.kinds.chart import Chart
from app.figures.named.trajectories import draw_episode
from app.figures.named.trajectories import join_values as join_charts
from app.figures.theme import NEUTRAL, OKABE_ITO, OPPONENTS, SPEED
from emtc_core.envs.base import Scene
from emtc_core.envs.registry import name_actions
from emtc_core.errors import EmtcError
from storage.queries.episodes import Trajectory
from storage.runs.rows import RunRow

MISSING = 255
"""The level of an entry that never changes or is no number."""
_STEPS = frozenset({"north", "south", "east", "west", "left", "right", "top", "bottom", "up", "down"})
_WAITS = frozenset({"stop", "idle", "hold"})


@dataclass(frozen=True)
class Action:
    """How one action is shown: a name, the group that its colour stands for, and a mark for its cell."""

    name: str
    group: str
    color: str | None
    mark: str = ""


@dataclass(frozen=True)
class Side:
    """One episode beside its values; `actions` is [T - 1, N] for T frames."""

    scene: Scene
    chart: Chart
    title: str = ""
    actions: NDArray[np.int64] | None = None
    action_names: tuple[str, ...] = ()
    brief: bool = False
    """Whether the values of `chart` are all that is drawn below, without the teams' health."""

    @property
    def frames(self) -> int:
        """Number of states T."""
        return len(self.scene.health)

    @property
    def has_units(self) -> bool:
        """Whether there is anything to draw on a field."""
        return bool(self.scene.position.size)

    @property
    def hides_field(self) -> bool:
        """Whether neither a field nor a picture can be drawn, which its note explains above the player."""
        return not self.has_units and not self.scene.picture


def make_side(
    env: str,
    map: str,
    *,
    states: NDArray[np.float32],
    actions: NDArray[np.int64] | None,
    chart: Chart,
    title: str = "",
) -> Side:
    """Get an episode ready to be drawn; whatever the environment lacks is left out."""
    try:
        names = name_actions(env, map)
    except EmtcError:
        names = ()
    return Side(draw_scene(env, map, states, actions), chart, title, actions, names)


def show_actions(names: tuple[str, ...], count: int) -> list[Action]:
    """How each of `count` actions is shown; unnamed ones are numbered and coloured in turn."""
    if len(names) != count:
        return [Action(f"action {k}", f"action {k}", OKABE_ITO[k % len(OKABE_ITO)], str(k)) for k in range(count)]
    rest = [name for name in names if _group(name) == name]
    return [_show(name, rest) for name in names]


def _group(name: str) -> str:
    words = name.split()
    if name == "no-op":
        return "no-op"
    if name in _WAITS:
        return "stop"
    if words and set(words) <= _STEPS:
        return "move"
    return "attack" if words and words[0] == "attack" else name


def _show(name: str, rest: list[str]) -> Action:
    group = _group(name)
    color = {"no-op": None, "stop": NEUTRAL, "move": SPEED, "attack": OPPONENTS}.get(group, "")
    if color == "":
        color = OKABE_ITO[rest.index(name) % len(OKABE_ITO)]
    return Action(name, group, color, name.removeprefix("attack ") if group == "attack" else "")


def count_actions(side: Side) -> int:
    """How many actions the legend of an episode needs."""
    if side.actions is None or not side.actions.size:
        return 0
    return max(len(side.action_names), int(side.actions.max()) + 1)


def join_values(sides: list[Side]) -> Chart:
    """Draw the values of one or two episodes over one time axis, with the health of the teams where it changes."""
    return join_charts([side.chart for side in sides], [None if side.brief else side.scene for side in sides])


def level_values(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Scale each entry [T, S] of the state to its own range over the episode: 0 to 254, or `MISSING`."""
    wide = np.asarray(values, np.float64)
    known = np.isfinite(wide)
    low = np.where(known, wide, np.inf).min(axis=0, initial=np.inf)
    high = np.where(known, wide, -np.inf).max(axis=0, initial=-np.inf)
    changes = high > low
    span = np.where(changes, high - low, 1.0)
    part = (np.where(known, wide, 0.0) - np.where(changes, low, 0.0)) / span
    return np.where(known & changes, np.rint(np.clip(part, 0, 1) * 254), MISSING).astype(np.uint8)


def level_picture(values: NDArray[np.float32], size: tuple[int, ...]) -> NDArray[np.uint8]:
    """Scale the picture that the states [T, S] begin with to its range over the episode, each colour to its own.

    Returns:
        [T, H, W] or [T, H, W, 3], black at the least value or 0, whichever is less.
    """
    shown = np.nan_to_num(np.asarray(values[:, : math.prod(size)], np.float64), posinf=0.0, neginf=0.0)
    shown = shown.reshape(len(values), *size)
    axes = (0, 1, 2)
    low, high = shown.min(axis=axes, initial=0.0), shown.max(axis=axes, initial=0.0)
    part = (shown - low) / np.where(high > low, high - low, 1.0)
    return np.rint(part * 255).astype(np.uint8)


@dataclass(frozen=True)
class Replay:
    """One episode of one run, ready to be drawn."""

    run: RunRow
    trajectory: Trajectory
    side: Side
    is_training: bool
    """Whether it was played while training; the gate judged such episodes alone."""

    @property
    def title(self) -> str:
        """Which episode it is and how it ended."""
        return self.side.title

    @property
    def stem(self) -> str:
        """The stem of its files' names."""
        return f"{self.run.id}-{self.trajectory.env_step}-{self.trajectory.episode}"

    @property
    def facts(self) -> Mapping[str, Any]:
        """What the notebook needs to draw its values again."""
        here = {"episode": self.trajectory.episode}
        return here if self.is_training else here | {"env_step": self.trajectory.env_step}


def make_replay(run: RunRow, trajectory: Trajectory, *, training: bool) -> Replay:
    """Get an episode ready to be drawn."""
    title = name_episode(run.config, trajectory, training=training)
    chart = draw_episode(trajectory, title=title)
    side = make_side(run.env, run.map, states=trajectory.state, actions=trajectory.action, chart=chart, title=title)
    return Replay(run, trajectory, side, training)


def tell_apart(replays: Sequence[Replay]) -> list[Replay]:
    """Put the run's name before each title where the episodes are of several runs."""
    if len({replay.run.id for replay in replays}) < 2:
        return list(replays)
    return [
        replace(replay, side=replace(replay.side, title=f"{replay.run.name} ({replay.run.id}): {replay.title}"))
        for replay in replays
    ]
