"""Prepare a stored episode for drawing: its scene, its values and its actions.

A scene contains the positions, health and teams of the units in each frame, computed from the stored states. The values
are curves over time, such as the reward and the gate coefficient β. `layout` computes positions and marks of the
drawing. This module needs neither Streamlit nor a database.
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
from app.figures.theme import NEUTRAL_COLOR, OKABE_ITO, OPPONENT_COLOR, SPEED_COLOR
from emtc_core.envs.registry import get_action_names
from emtc_core.envs.scene import Scene
from emtc_core.errors import EmtcError
from storage.queries.episodes import Trajectory
from storage.runs.rows import RunRow

MISSING = 255
"""Level of an entry of the state that is constant over the episode or not finite."""
_MAX_LEVEL = 254
_MOVE_WORDS = frozenset({"north", "south", "east", "west", "left", "right", "top", "bottom", "up", "down"})
_STOP_NAMES = frozenset({"stop", "idle", "hold"})
_COLOR_BY_GROUP = {"no-op": None, "stop": NEUTRAL_COLOR, "move": SPEED_COLOR, "attack": OPPONENT_COLOR}


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
    """One of the one or two episodes that a player or a file shows, called a side."""

    scene: Scene
    chart: Chart
    """The values of the episode over time."""
    title: str = ""
    actions: NDArray[np.int64] | None = None
    """[T - 1, N] numbers of actions, for T frames and N agents."""
    action_names: tuple[str, ...] = ()
    hides_health: bool = False
    """Whether no panel with the health of the teams is added below the values of `chart`."""

    @property
    def frames(self) -> int:
        """Number of frames T. A frame shows one state."""
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
    """Whether it is a training episode. Only training episodes have values of the gate."""

    @property
    def title(self) -> str:
        """Number and outcome of the episode."""
        return self.side.title

    @property
    def file_stem(self) -> str:
        """Name of the episode's files, without suffix."""
        return f"{self.run.id}-{self.trajectory.env_step}-{self.trajectory.episode}"

    @property
    def pinned_values(self) -> Mapping[str, Any]:
        """Values that a notebook entry stores, from which it draws the figure of the episode again."""
        values = {"episode": self.trajectory.episode}
        if not self.is_training:
            values["env_step"] = self.trajectory.env_step
        return values


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
    if len(names) == count:
        marks = [name.removeprefix("attack ") if name.startswith("attack ") else "" for name in names]  # target number
    else:
        names = tuple(f"action {k}" for k in range(count))
        marks = [str(k) for k in range(count)]
    groups = [_group_action(name) for name in names]
    # Groups without a fixed color get the colors that no fixed group of this episode has.
    used_fixed_colors = {_COLOR_BY_GROUP.get(group) for group in groups}
    free_colors = [color for color in OKABE_ITO if color not in used_fixed_colors]
    free_groups = list(dict.fromkeys(group for group in groups if group not in _COLOR_BY_GROUP))
    if len(free_groups) > len(free_colors):
        free_groups = [*free_groups[: len(free_colors) - 1], "other"]
    color_by_group = _COLOR_BY_GROUP | dict(zip(free_groups, free_colors, strict=False))
    groups = [group if group in color_by_group else "other" for group in groups]
    return [
        ActionStyle(name, group, color_by_group[group], mark)
        for name, group, mark in zip(names, groups, marks, strict=True)
    ]


def count_actions(side: EpisodeView) -> int:
    """Return the number of different actions of an episode: of those with a name, or up to the largest number chosen.

    It is 0 if no actions are stored.
    """
    if side.actions is None or not side.actions.size:
        return 0
    return max(len(side.action_names), int(side.actions.max()) + 1)


def list_action_groups(sides: Sequence[EpisodeView]) -> list[tuple[str, str]]:
    """List the groups of the actions that the agents chose, each with its color. No-op has no color and is omitted."""
    colors: dict[str, str] = {}
    for side in sides:
        if side.actions is None:
            continue
        chosen_actions = set(side.actions.ravel().tolist())
        for action, style in enumerate(style_actions(side.action_names, count_actions(side))):
            if style.color and action in chosen_actions:
                colors[style.group] = style.color
    return list(colors.items())


def join_values(sides: Sequence[EpisodeView]) -> Chart:
    """Draw the values of one or two episodes over one time axis, with the health of the teams where it changes."""
    charts = [side.chart for side in sides]
    scenes_for_health = [None if side.hides_health else side.scene for side in sides]
    return join_charts(charts, scenes_for_health)


def quantize_values(values: NDArray[np.floating]) -> NDArray[np.uint8]:
    """Scale each entry of the state to its range over the episode.

    Args:
        values: States, [T, S].

    Returns:
        Levels 0 to 254, [T, S]; `MISSING` where the entry is constant or not finite.
    """
    values = np.asarray(values, np.float64)  # the difference of two large float32 values can overflow
    is_finite = np.isfinite(values)
    low = np.where(is_finite, values, np.inf).min(axis=0, initial=np.inf)  # [S]
    high = np.where(is_finite, values, -np.inf).max(axis=0, initial=-np.inf)
    is_constant = ~(high > low)  # also if no value is finite
    low = np.where(is_constant, 0.0, low)
    span = np.where(is_constant, 1.0, high - low)
    fraction = (np.where(is_finite, values, 0.0) - low) / span
    levels = np.rint(np.clip(fraction, 0, 1) * _MAX_LEVEL)
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
    if words and words[-1] == "pass":
        return "pass"
    return name
