"""Prepare a stored episode for drawing: its scene, its values and its actions.

`layout` computes what is drawn of it. This module needs neither Streamlit nor a database.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.analysis.episodes import draw_scene, name_episode
from app.figures.kinds.chart import Chart
from app.figures.named.trajectories import draw_episode
from app.figures.named.trajectories import join_values as join_charts
from app.figures.theme import NEUTRAL, OKABE_ITO, OPPONENTS, SPEED_COLOR
from emtc_core.envs.registry import get_action_names
from emtc_core.envs.scene import Scene
from emtc_core.errors import EmtcError
from storage.queries.episodes import Trajectory
from storage.runs.rows import RunRow

MISSING = 255
"""Level of an entry that is constant or not finite."""
_MOVE_WORDS = frozenset({"north", "south", "east", "west", "left", "right", "top", "bottom", "up", "down"})
_STOP_NAMES = frozenset({"stop", "idle", "hold"})
_GROUP_COLORS = {"no-op": None, "stop": NEUTRAL, "move": SPEED_COLOR, "attack": OPPONENTS}


@dataclass(frozen=True)
class ActionStyle:
    """How one action is drawn."""

    name: str
    group: str
    """no-op, stop, move, attack, pass, release, or the name itself; "other" if there are more groups than colors."""
    color: str | None
    """Color of the group; None if nothing is drawn."""
    mark: str = ""
    """Text in the cell of the action."""


@dataclass(frozen=True)
class EpisodeView:
    """One of the one or two episodes of a replay, with its values."""

    scene: Scene
    chart: Chart
    title: str = ""
    actions: NDArray[np.int64] | None = None
    """[T - 1, N] for T frames and N agents."""
    action_names: tuple[str, ...] = ()
    hides_health: bool = False
    """Whether the health of the teams is not drawn below the values of `chart`."""

    @property
    def frames(self) -> int:
        """Number of states T."""
        return len(self.scene.health)

    @property
    def has_units(self) -> bool:
        """Whether the scene has units, which are drawn on a field. Without them, its note explains why."""
        return bool(self.scene.position.size)


@dataclass(frozen=True)
class Replay:
    """One episode of one run, prepared for drawing."""

    run: RunRow
    trajectory: Trajectory
    side: EpisodeView
    is_training: bool
    """Whether it is a training episode. Only these have values of the gate."""

    @property
    def title(self) -> str:
        """Number and outcome of the episode."""
        return self.side.title

    @property
    def file_stem(self) -> str:
        """Names of its files, without suffix."""
        return f"{self.run.id}-{self.trajectory.env_step}-{self.trajectory.episode}"

    @property
    def facts(self) -> Mapping[str, Any]:
        """Parameters with which the notebook draws its values again."""
        episode = {"episode": self.trajectory.episode}
        return episode if self.is_training else episode | {"env_step": self.trajectory.env_step}


def make_side(
    env: str,
    map: str,
    *,
    states: NDArray[np.float32],
    actions: NDArray[np.int64] | None,
    chart: Chart,
    title: str = "",
) -> EpisodeView:
    """Prepare an episode for drawing. Names of actions are omitted if the environment does not provide them.

    Args:
        env: Name of the environment.
        map: Its map.
        states: States, [T, S].
        actions: Actions, [T - 1, N].
        chart: The values that are drawn below the field.
        title: Title of the episode.
    """
    try:
        names = get_action_names(env, map)
    except EmtcError:
        names = ()
    return EpisodeView(draw_scene(env, map, states, actions), chart, title, actions, names)


def make_replay(run: RunRow, trajectory: Trajectory, *, training: bool) -> Replay:
    """Prepare an episode of a run for drawing."""
    title = name_episode(run.config, trajectory, training=training)
    chart = draw_episode(trajectory, title=title)
    side = make_side(run.env, run.map, states=trajectory.state, actions=trajectory.action, chart=chart, title=title)
    return Replay(run, trajectory, side, training)


def add_run_names(replays: Sequence[Replay]) -> list[Replay]:
    """Add the run's name and id to each title if the replays are of different runs."""
    if len({replay.run.id for replay in replays}) < 2:
        return list(replays)
    return [
        replace(replay, side=replace(replay.side, title=f"{replay.run.name} ({replay.run.id}): {replay.title}"))
        for replay in replays
    ]


def style_actions(names: tuple[str, ...], count: int) -> list[ActionStyle]:
    """Choose color and mark of each action: one color per group. If the names are not known, the actions are numbered.

    Args:
        names: Names of the actions; ignored if their number is not `count`.
        count: Number of actions.
    """
    if len(names) != count:
        names = tuple(f"action {k}" for k in range(count))
        marks = [str(k) for k in range(count)]
    else:
        marks = [name.removeprefix("attack ") if name.startswith("attack ") else "" for name in names]
    groups = [_group_action(name) for name in names]
    fixed_colors = {_GROUP_COLORS.get(group) for group in groups}
    free_colors = [color for color in OKABE_ITO if color not in fixed_colors]
    other_groups = list(dict.fromkeys(group for group in groups if group not in _GROUP_COLORS))
    if len(other_groups) > len(free_colors):
        other_groups = [*other_groups[: len(free_colors) - 1], "other"]
    group_colors = _GROUP_COLORS | dict(zip(other_groups, free_colors, strict=False))
    groups = [group if group in group_colors else "other" for group in groups]
    return [
        ActionStyle(name, group, group_colors[group], mark)
        for name, group, mark in zip(names, groups, marks, strict=True)
    ]


def count_actions(side: EpisodeView) -> int:
    """Return the number of actions in the legend of an episode; 0 without actions."""
    if side.actions is None or not side.actions.size:
        return 0
    return max(len(side.action_names), int(side.actions.max()) + 1)


def list_action_groups(sides: Sequence[EpisodeView]) -> list[tuple[str, str]]:
    """List the groups of the actions that the agents chose, each with its color. No-op has no color and is omitted."""
    colors: dict[str, str] = {}
    for side in sides:
        if side.actions is None:
            continue
        chosen = set(side.actions.ravel().tolist())
        for number, style in enumerate(style_actions(side.action_names, count_actions(side))):
            if style.color and number in chosen:
                colors[style.group] = style.color
    return list(colors.items())


def join_values(sides: Sequence[EpisodeView]) -> Chart:
    """Draw the values of one or two episodes over one time axis, with the health of the teams where it changes."""
    return join_charts([side.chart for side in sides], [None if side.hides_health else side.scene for side in sides])


def quantize_values(values: NDArray[np.floating]) -> NDArray[np.uint8]:
    """Scale each entry of the state to its range over the episode.

    Args:
        values: States, [T, S].

    Returns:
        Levels 0 to 254, [T, S]; `MISSING` where the entry is constant or not finite.
    """
    values = np.asarray(values, np.float64)  # the difference of two large float32 values can overflow
    is_finite = np.isfinite(values)
    low = np.where(is_finite, values, np.inf).min(axis=0, initial=np.inf)
    high = np.where(is_finite, values, -np.inf).max(axis=0, initial=-np.inf)
    is_constant = ~(high > low)
    low = np.where(is_constant, 0.0, low)
    span = np.where(is_constant, 1.0, high - low)
    fraction = (np.where(is_finite, values, 0.0) - low) / span
    levels = np.rint(np.clip(fraction, 0, 1) * 254)
    return np.where(is_finite & ~is_constant, levels, MISSING).astype(np.uint8)


def _group_action(name: str) -> str:
    """Return the group of an action: no-op, stop, move, attack, pass or release; any other action is its own group."""
    words = name.split()
    if name == "no-op":
        return "no-op"
    if name in _STOP_NAMES:
        return "stop"
    if words and set(words) <= _MOVE_WORDS:
        return "move"
    if words and words[0] in ("attack", "release"):
        return words[0]
    return "pass" if words and words[-1] == "pass" else name
