"""One episode as the player draws it: its scene, its values, its actions. Needs no Streamlit and no database.

A scene is never an error: where nobody can draw the states, the scene has no units, says why and carries the states
themselves. After this comes `payload` (for the browser), `drawing` (for files) and `offline` (one HTML file).
"""

import logging
import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from app.figures.kinds.chart import Chart, Line, Panel
from app.figures.theme import AGENTS, NEUTRAL, OKABE_ITO, OPPONENTS, SPEED
from emtc_core.envs.adapter import empty_scene, is_picture
from emtc_core.envs.base import Scene
from emtc_core.envs.registry import make_scene, name_actions
from emtc_core.errors import EmtcError

_log = logging.getLogger(__name__)
MISSING = 255
"""The level of an entry that never changes or is no number."""
NAMES = ("A", "B")
"""What the two episodes are called where they stand side by side."""
DASH = (6, 4)
"""How the second one's lines are drawn; both have the colour of their quantity."""
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


def draw_scene(env: str, map: str, states: NDArray[np.float32], actions: NDArray[np.int64] | None = None) -> Scene:
    """Turn stored states into frames; a scene that cannot be drawn says why and carries the states."""
    try:
        scene = make_scene(env, map, states, actions)
        fault = find_fault(scene, len(states))
    except EmtcError as exc:
        return empty_scene(map, states, str(exc))
    except Exception as exc:  # a stranger's module may draw it, and the episode's values are still worth a look
        _log.warning("the scene of %s %s could not be drawn", env, map, exc_info=exc)
        return empty_scene(map, states, f"Its environment failed to draw it ({type(exc).__name__}); see the app's log.")
    if fault:
        return empty_scene(map, states, f"Its environment drew a scene that cannot be shown: {fault}.")
    return scene if scene.position.size or scene.values is not None else replace(scene, values=states)


def find_fault(scene: Scene, frames: int) -> str:
    """Say what a scene breaks of its contract, or nothing."""
    units = len(scene.kind)
    shapes = {
        "position": (frames, units, 2),
        "health": (frames, units),
        "shield": (frames, units),
        "alive": (frames, units),
        "team": (units,),
        "radius": (units,),
    }
    for name, shape in shapes.items():
        found = np.shape(getattr(scene, name))
        if found != shape:
            return f"{name} has shape {found} instead of {shape}"
    if scene.target is not None and scene.target.shape != (frames, units):
        return f"target has shape {scene.target.shape} instead of {(frames, units)}"
    if scene.picture and (scene.values is None or not is_picture(scene.picture, scene.values)):
        return f"its values hold no picture of {scene.picture}"
    if not all(np.isfinite(each).all() for each in (scene.position, scene.health, scene.shield, scene.radius)):
        return "a position, health or radius is no number"
    if not np.isin(scene.team, (0, 1, 2)).all():
        return "a team is none of 0, 1 and 2"
    low, high = np.array(scene.bounds[:2], float), np.array(scene.bounds[2:], float)
    return "" if np.isfinite([low, high]).all() and (low < high).all() else "its field has no area"


def show_actions(names: tuple[str, ...], count: int) -> list[Action]:
    """Say how each of `count` actions is shown; unnamed ones are numbered and coloured in turn."""
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
    hurt = any(not side.brief and (side.scene.health < 1).any() for side in sides)
    charts = [_with_health(side) if hurt else side.chart for side in sides]
    if len(charts) == 1:
        return charts[0]
    titles = list(dict.fromkeys(panel.title for chart in charts for panel in chart.panels))
    panels = tuple(_join([_find(chart, title) for chart in charts]) for title in titles)
    first = charts[0]
    title = " beside ".join(chart.title for chart in charts)
    caption = f"{NAMES[0]} is solid, {NAMES[1]} dashed. {first.caption}"
    described = f"{title}. Panels: {', '.join(titles)}."
    return Chart("trajectories", title, first.x_label, panels, caption, described)


def _find(chart: Chart, title: str) -> Panel | None:
    return next((panel for panel in chart.panels if panel.title == title), None)


def _join(panels: list[Panel | None]) -> Panel:
    """Draw the same quantity of several episodes in one panel."""
    known = [panel for panel in panels if panel is not None]
    lines = tuple(
        replace(
            line,
            name=NAMES[number] if len(panel.lines) == 1 else f"{line.name} {NAMES[number]}",
            dash=DASH if number else None,
            group=NAMES[number],
        )
        for number, panel in enumerate(panels)
        if panel is not None
        for line in panel.lines
    )
    return replace(known[0], lines=lines)


def _with_health(side: Side) -> Chart:
    """Add the share of health that each team has left."""
    scene = side.scene
    if not scene.health.size:
        return side.chart
    t = np.arange(side.frames - 1, dtype=np.float64)
    lines = tuple(
        Line(name, color, t, scene.health[:-1, scene.team == team].mean(axis=1, dtype=np.float64))
        for team, (name, color) in enumerate((("agents", AGENTS), ("opponents", OPPONENTS)))
        if (scene.team == team).any()
    )
    panel = Panel("health", "fraction", lines, range=(-0.03, 1.03))
    return replace(side.chart, panels=(*side.chart.panels, panel))


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
