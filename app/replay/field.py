"""Units on their field, between the steps too, for the files of a replay; `assets/field.js` does it in the browser.

Where a unit is and how much of it is left is known for any moment of an episode; a test compares the two. A handful of
collections moved as arrays: a battle of forty units would be some hundred single shapes in every frame.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PathCollection, PolyCollection
from matplotlib.colors import LinearSegmentedColormap, to_rgba, to_rgba_array
from matplotlib.font_manager import FontProperties
from matplotlib.path import Path
from matplotlib.textpath import TextPath
from matplotlib.transforms import Affine2D
from numpy.typing import NDArray

from app.figures.theme import SPEED
from app.replay.payload import TEAMS, label_units
from emtc_core.envs.base import Scene

Floats = NDArray[np.float64]

Color = tuple[float, float, float, float]
_CORNERS = 28
_LABEL_POINTS = 6.5
_BAR_PX, _BAR_TALL_PX, _LIFT_PX = 18.0, 3.0, 5.0
_SMALLEST_PX, _SMALLEST_BALL_PX = 8.0, 4.0


@dataclass(frozen=True)
class Moment:
    """What U units look like at one moment."""

    place: Floats  # [U, 2]
    health: Floats  # [U]
    shield: Floats  # [U]
    presence: Floats  # [U] 1 alive, 0 dead, between the two while it dies
    target: NDArray[np.int64]  # [U] -1 where it aims at nothing


def moment_at(scene: Scene, frame: float) -> Moment:
    """Interpolate the scene; what a unit becomes dead between two frames fades where it stood."""
    last = len(scene.health) - 1
    frame = min(max(float(frame), 0.0), float(last))
    t = int(frame)
    after = min(t + 1, last)
    part = frame - t
    moves = np.where(scene.alive[after], part, 0.0)[:, None]
    place = scene.position[t] * (1 - moves) + scene.position[after] * moves

    def between(values: NDArray[np.generic]) -> Floats:
        return np.asarray(values[t], np.float64) * (1 - part) + np.asarray(values[after], np.float64) * part

    aims = np.full(scene.health.shape[1], -1) if scene.target is None else scene.target[t].astype(np.int64)
    return Moment(
        place=np.asarray(place, np.float64),
        health=between(scene.health),
        shield=between(scene.shield),
        presence=between(scene.alive),
        target=np.where(scene.alive[t], aims, -1),
    )


def list_moments(frames: int, most: int, *, most_per_step: int) -> tuple[Floats, float]:
    """Choose at most `most` moments, first and last frame among them, and how many of them make one step.

    A short episode has moments between its steps, a long one leaves steps out.
    """
    steps = frames - 1
    if steps < 1:
        return np.zeros(1), 1.0
    per_step = float(min(most_per_step, (most - 1) // steps)) if steps < most else (most - 1) / steps
    moments = np.linspace(0, steps, round(steps * per_step) + 1)
    return moments, per_step


class Field:
    """The units of a scene inside `bounds`, on axes of so many pixels; `moving` is all that a moment changes."""

    def __init__(
        self, ax: Axes, scene: Scene, bounds: Sequence[float], size_px: tuple[float, float], *, bars: bool
    ) -> None:
        self._scene, self._bars = scene, bars
        x0, y0, x1, y1 = bounds
        ax.set_facecolor((0.5, 0.5, 0.5, 0.08))
        for spine in ax.spines.values():
            spine.set_visible(False)
        _draw_ground(ax, scene)
        ax.set(xlim=(x0, x1), ylim=(y0, y1), aspect="equal", xticks=[], yticks=[])
        self._pixel = 1 / min(size_px[0] / (x1 - x0), size_px[1] / (y1 - y0))  # in field units
        smallest = np.where(scene.team == 2, _SMALLEST_BALL_PX, _SMALLEST_PX) * self._pixel
        self._radius = np.maximum(scene.radius, smallest).astype(np.float64)
        self._colors = to_rgba_array([TEAMS[team][1] for team in scene.team.tolist()])
        self._shapes = np.array([_shape(team) for team in scene.team.tolist()])  # [U, corners, 2]
        self._ink = np.array(to_rgba(ax.xaxis.label.get_color()))
        self._aims = LineCollection([], linestyles=(0, (4, 3)), linewidths=1.1)
        self._heads = PolyCollection([], linewidths=0)
        self._crosses = LineCollection([], linewidths=1.6)
        self._bodies = PolyCollection([], linewidths=0.8)
        self._names = PathCollection(_letters(label_units(scene)), offset_transform=ax.transData, linewidths=0)
        self._parts = PolyCollection([], linewidths=0)
        drawn = (self._aims, self._heads, self._crosses, self._bodies, self._parts, self._names)  # numbers above bars
        for collection in drawn:
            ax.add_collection(collection, autolim=False)
        self._names.set_transform(ax.figure.dpi_scale_trans.frozen().scale(1 / 72))
        self.moving: list[Artist] = list(drawn)

    def move(self, frame: float) -> None:
        """Show a moment; what dies fades where it stood, and a cross stays."""
        moment = moment_at(self._scene, frame)
        self._aim(moment)
        r, place, here = self._radius[:, None, None], moment.place[:, None], moment.presence
        self._bodies.set_verts(list(place + r * self._shapes))
        self._bodies.set_facecolor(_faded(self._colors, here))
        self._bodies.set_edgecolor(_faded(np.ones((len(here), 4)), here))
        arms = 0.6 * np.array([[[-1, -1], [1, 1]], [[1, -1], [-1, 1]]])  # [2, 2, 2]
        self._crosses.set_segments(list((place[:, None] + r[:, None] * arms).reshape(-1, 2, 2)))
        self._crosses.set_color(_faded(self._colors.repeat(2, axis=0), (0.45 * (1 - here)).repeat(2)))
        self._names.set_offsets(moment.place)
        self._names.set_facecolor(_faded(np.ones((len(here), 4)), here))
        if self._bars:
            self._measure(moment)

    def _measure(self, moment: Moment) -> None:
        """Draw what is lost and left of each unit's health, and its shield above."""
        wide = np.maximum(_BAR_PX * self._pixel, 1.9 * self._radius)
        left = moment.place[:, 0] - wide / 2
        bottom = moment.place[:, 1] + self._radius + _BAR_TALL_PX * self._pixel
        shown = moment.presence * (self._scene.team != 2)
        grey, shield = np.array((0.5, 0.5, 0.5, 0.4)), np.array(to_rgba(SPEED))
        rows = ((np.ones_like(wide), 0.0, grey), (moment.health, 0.0, self._ink), (moment.shield, _LIFT_PX, shield))
        boxes = [
            _boxes(left, bottom + lift * self._pixel, wide * np.clip(share, 0, 1), _BAR_TALL_PX * self._pixel)
            for share, lift, _ in rows
        ]
        self._parts.set_verts(list(np.concatenate(boxes)))
        colors = np.concatenate([np.tile(color, (len(wide), 1)) for *_, color in rows])
        self._parts.set_facecolor(_faded(colors, np.tile(shown, len(rows))))

    def _aim(self, moment: Moment) -> None:
        """Draw a line with a head from each unit to the one that it aims at."""
        units = np.flatnonzero((moment.target >= 0) & (moment.target < len(moment.target)))
        aimed = moment.target[units]
        way = moment.place[aimed] - moment.place[units]
        far = np.hypot(*way.T)
        clear = self._radius[aimed] + 3 * self._pixel
        seen = far > clear
        units, way, far, clear = units[seen], way[seen], far[seen], clear[seen]
        ahead = way / far[:, None]
        tip = moment.place[units] + ahead * (far - clear)[:, None]
        self._aims.set_segments(list(np.stack([moment.place[units], tip], axis=1)))
        self._heads.set_verts(list(_heads(tip, ahead, self._pixel)))
        colors = _faded(self._colors[units], 0.7 * moment.presence[units])
        self._aims.set_color(colors)
        self._heads.set_facecolor(colors)


def _draw_ground(ax: Axes, scene: Scene) -> None:
    if scene.walkable is not None:
        blocked = np.where(scene.walkable.T, np.nan, 1.0)
        columns, rows = scene.walkable.shape
        grey = LinearSegmentedColormap.from_list("blocked", [(0.5, 0.5, 0.5, 0.25)] * 2)
        ax.imshow(blocked, extent=(0, columns, 0, rows), origin="lower", cmap=grey, interpolation="nearest")
    if scene.markings is not None:
        lines = LineCollection(list(scene.markings.reshape(-1, 2, 2)), colors="#8a8f98", linewidths=1)
        ax.add_collection(lines, autolim=False)


def _shape(team: int) -> Floats:
    """Outline a unit of radius 1: opponents are squares, everything else is round; all have as many corners."""
    turn = np.linspace(0, 2 * np.pi, _CORNERS, endpoint=False)
    if team != 1:
        return np.stack([np.cos(turn), np.sin(turn)], axis=1)
    corners = np.array([[-0.9, -0.9], [0.9, -0.9], [0.9, 0.9], [-0.9, 0.9]])
    return corners.repeat(_CORNERS // 4, axis=0)


def _letters(labels: Sequence[str]) -> list[Path]:
    """Write each label as a shape around its own middle, in points."""
    font = FontProperties(weight="bold")
    written = [TextPath((0, 0), label, size=_LABEL_POINTS, prop=font) for label in labels]
    return [_centred(path) if len(path.vertices) else path for path in written]


def _centred(path: Path) -> Path:
    box = path.get_extents()
    return path.transformed(Affine2D().translate(-(box.x0 + box.x1) / 2, -(box.y0 + box.y1) / 2))


def _faded(colors: Floats, part: Floats) -> list[Color]:
    """Multiply the opacity of colours [N, 4] by a share [N]."""
    opacity = colors[:, 3] * np.clip(part, 0, 1)
    return [(r, g, b, a) for (r, g, b), a in zip(colors[:, :3].tolist(), opacity.tolist(), strict=True)]


def _boxes(left: Floats, bottom: Floats, wide: Floats, tall: float) -> Floats:
    """Make a rectangle [N, 4, 2] at each lower left corner."""
    right, top = left + wide, bottom + tall
    corners = [np.stack(pair, axis=1) for pair in ((left, bottom), (right, bottom), (right, top), (left, top))]
    return np.stack(corners, axis=1)


def _heads(tip: Floats, ahead: Floats, pixel: float) -> Floats:
    """Make a triangle [N, 3, 2] at each tip."""
    across = np.stack([-ahead[:, 1], ahead[:, 0]], axis=1)
    back = tip - 6 * pixel * ahead
    return np.stack([tip + 3 * pixel * ahead, back + 4 * pixel * across, back - 4 * pixel * across], axis=1)
