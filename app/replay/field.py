"""Draw the units of a scene on their field at any moment, for the GIF and SVG files of a replay.

`assets/field.js` draws the same in the browser, and a test compares both. Units are drawn as a few Matplotlib
collections whose arrays change, because single shapes (some hundred for forty units) would be slow to draw.
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

from app.figures.theme import SPEED_COLOR
from app.replay.payload import TEAMS, label_units
from emtc_core.envs.scene import Scene

Floats = NDArray[np.float64]
Color = tuple[float, float, float, float]

_CORNERS = 28
_LABEL_POINTS = 6.5
_BAR_WIDTH_PX, _BAR_HEIGHT_PX, _SHIELD_OFFSET_PX = 18.0, 3.0, 5.0
_MIN_RADIUS_PX, _MIN_BALL_RADIUS_PX = 8.0, 4.0


@dataclass(frozen=True)
class Moment:
    """The state of U units at one moment."""

    position: Floats  # [U, 2]
    health: Floats  # [U]
    shield: Floats  # [U]
    presence: Floats  # [U] 1 alive, 0 dead, in between while it dies
    target: NDArray[np.int64]  # [U] index of the target; -1 without a target


def interpolate_scene(scene: Scene, frame: float) -> Moment:
    """Interpolate a scene between two frames. A unit that dies between them stays at its position and fades out.

    Args:
        scene: The scene.
        frame: Frame, 0 to T - 1, may be a fraction.
    """
    last = len(scene.health) - 1
    frame = min(max(float(frame), 0.0), float(last))
    t = int(frame)
    t_next = min(t + 1, last)
    fraction = frame - t

    def interpolate(values: NDArray[np.generic]) -> Floats:
        return np.asarray(values[t], np.float64) * (1 - fraction) + np.asarray(values[t_next], np.float64) * fraction

    weight = np.where(scene.alive[t_next], fraction, 0.0)[:, None]
    position = scene.position[t] * (1 - weight) + scene.position[t_next] * weight
    target = np.full(scene.health.shape[1], -1) if scene.target is None else scene.target[t].astype(np.int64)
    return Moment(
        position=np.asarray(position, np.float64),
        health=interpolate(scene.health),
        shield=interpolate(scene.shield),
        presence=interpolate(scene.alive),
        target=np.where(scene.alive[t], target, -1),
    )


def sample_moments(frames: int, max_moments: int, *, max_per_step: int) -> tuple[Floats, float]:
    """Choose evenly spaced moments of an episode, including the first and the last frame.

    Args:
        frames: Number of frames of the episode.
        max_moments: Maximum number of moments. A long episode is sampled at less than one moment per step.
        max_per_step: Maximum number of moments per step, for a short episode.

    Returns:
        The moments [frames], and their number per step.
    """
    steps = frames - 1
    if steps < 1:
        return np.zeros(1), 1.0
    if steps < max_moments:
        per_step = float(min(max_per_step, (max_moments - 1) // steps))
    else:
        per_step = (max_moments - 1) / steps
    moments = np.linspace(0, steps, round(steps * per_step) + 1)
    return moments, per_step


class FieldArtist:
    """The field and the units of a scene on Matplotlib axes. `moving` lists the artists that change over time."""

    def __init__(
        self, ax: Axes, scene: Scene, bounds: Sequence[float], size_px: tuple[float, float], *, bars: bool
    ) -> None:
        """Draw the field.

        Args:
            ax: The axes.
            scene: The scene.
            bounds: Visible part of the field, x0, y0, x1, y1 [field units].
            size_px: Width and height of the axes [px].
            bars: Whether to draw bars of health and shield.
        """
        self._scene, self._bars = scene, bars
        x0, y0, x1, y1 = bounds
        ax.set_facecolor((0.5, 0.5, 0.5, 0.08))
        for spine in ax.spines.values():
            spine.set_visible(False)
        _draw_ground(ax, scene)
        ax.set(xlim=(x0, x1), ylim=(y0, y1), aspect="equal", xticks=[], yticks=[])
        self._pixel = 1 / min(size_px[0] / (x1 - x0), size_px[1] / (y1 - y0))  # [field units]
        min_radius = np.where(scene.team == 2, _MIN_BALL_RADIUS_PX, _MIN_RADIUS_PX) * self._pixel  # 2: ball
        self._radius = np.maximum(scene.radius, min_radius).astype(np.float64)
        self._colors = to_rgba_array([TEAMS[team][1] for team in scene.team.tolist()])
        self._outlines = np.array([_make_outline(team) for team in scene.team.tolist()])  # [U, corners, 2]
        self._text_color = np.array(to_rgba(ax.xaxis.label.get_color()))
        self._aim_lines = LineCollection([], linestyles=(0, (4, 3)), linewidths=1.1)
        self._arrow_heads = PolyCollection([], linewidths=0)
        self._crosses = LineCollection([], linewidths=1.6)
        self._bodies = PolyCollection([], linewidths=0.8)
        self._labels = PathCollection(_make_labels(label_units(scene)), offset_transform=ax.transData, linewidths=0)
        self._bar_boxes = PolyCollection([], linewidths=0)
        artists = (  # in drawing order: labels above bars
            *(self._aim_lines, self._arrow_heads, self._crosses, self._bodies, self._bar_boxes, self._labels),
        )
        for collection in artists:
            ax.add_collection(collection, autolim=False)
        self._labels.set_transform(ax.figure.dpi_scale_trans.frozen().scale(1 / 72))
        self.moving: list[Artist] = list(artists)

    def move(self, frame: float) -> None:
        """Draw the units at a moment. A dying unit fades out, and a cross remains at its position."""
        moment = interpolate_scene(self._scene, frame)
        self._draw_aims(moment)
        radius, position, presence = self._radius[:, None, None], moment.position[:, None], moment.presence
        white = np.ones((len(presence), 4))
        self._bodies.set_verts(list(position + radius * self._outlines))
        self._bodies.set_facecolor(_fade(self._colors, presence))
        self._bodies.set_edgecolor(_fade(white, presence))
        arms = 0.6 * np.array([[[-1, -1], [1, 1]], [[1, -1], [-1, 1]]])  # [2, 2, 2]
        self._crosses.set_segments(list((position[:, None] + radius[:, None] * arms).reshape(-1, 2, 2)))
        self._crosses.set_color(_fade(self._colors.repeat(2, axis=0), (0.45 * (1 - presence)).repeat(2)))
        self._labels.set_offsets(moment.position)
        self._labels.set_facecolor(_fade(white, presence))
        if self._bars:
            self._draw_bars(moment)

    def _draw_bars(self, moment: Moment) -> None:
        """Draw a gray bar above each unit, its health on the bar, and its shield above the bar."""
        width = np.maximum(_BAR_WIDTH_PX * self._pixel, 1.9 * self._radius)
        left = moment.position[:, 0] - width / 2
        bottom = moment.position[:, 1] + self._radius + _BAR_HEIGHT_PX * self._pixel
        visibility = moment.presence * (self._scene.team != 2)
        gray, shield_color = np.array((0.5, 0.5, 0.5, 0.4)), np.array(to_rgba(SPEED_COLOR))
        bars = (  # length as a fraction of the width, offset [px], color
            (np.ones_like(width), 0.0, gray),
            (moment.health, 0.0, self._text_color),
            (moment.shield, _SHIELD_OFFSET_PX, shield_color),
        )
        height = _BAR_HEIGHT_PX * self._pixel
        boxes = [
            _make_boxes(left, bottom + offset * self._pixel, width * np.clip(fraction, 0, 1), height)
            for fraction, offset, _ in bars
        ]
        self._bar_boxes.set_verts(list(np.concatenate(boxes)))
        colors = np.concatenate([np.tile(color, (len(width), 1)) for *_, color in bars])
        self._bar_boxes.set_facecolor(_fade(colors, np.tile(visibility, len(bars))))

    def _draw_aims(self, moment: Moment) -> None:
        """Draw an arrow from each unit to its target. It ends at the edge of the target."""
        units = np.flatnonzero((moment.target >= 0) & (moment.target < len(moment.target)))
        targets = moment.target[units]
        offset = moment.position[targets] - moment.position[units]
        distance = np.hypot(*offset.T)
        clearance = self._radius[targets] + 3 * self._pixel
        is_visible = distance > clearance
        units, offset = units[is_visible], offset[is_visible]
        distance, clearance = distance[is_visible], clearance[is_visible]
        direction = offset / distance[:, None]
        tip = moment.position[units] + direction * (distance - clearance)[:, None]
        self._aim_lines.set_segments(list(np.stack([moment.position[units], tip], axis=1)))
        self._arrow_heads.set_verts(list(_make_arrow_heads(tip, direction, self._pixel)))
        colors = _fade(self._colors[units], 0.7 * moment.presence[units])
        self._aim_lines.set_color(colors)
        self._arrow_heads.set_facecolor(colors)


def _draw_ground(ax: Axes, scene: Scene) -> None:
    """Draw the cells that are not walkable, and the markings of the field."""
    if scene.walkable is not None:
        blocked = np.where(scene.walkable.T, np.nan, 1.0)
        columns, rows = scene.walkable.shape
        gray = LinearSegmentedColormap.from_list("blocked", [(0.5, 0.5, 0.5, 0.25)] * 2)
        ax.imshow(blocked, extent=(0, columns, 0, rows), origin="lower", cmap=gray, interpolation="nearest")
    if scene.markings is not None:
        lines = LineCollection(list(scene.markings.reshape(-1, 2, 2)), colors="#8a8f98", linewidths=1)
        ax.add_collection(lines, autolim=False)


def _make_outline(team: int) -> Floats:
    """Make the outline of a unit of radius 1, [corners, 2]: a square for opponents, otherwise a circle."""
    angle = np.linspace(0, 2 * np.pi, _CORNERS, endpoint=False)
    if team != 1:
        return np.stack([np.cos(angle), np.sin(angle)], axis=1)
    corners = np.array([[-0.9, -0.9], [0.9, -0.9], [0.9, 0.9], [-0.9, 0.9]])
    return corners.repeat(_CORNERS // 4, axis=0)


def _make_labels(labels: Sequence[str]) -> list[Path]:
    """Convert each label to a path that is centered at the origin [points]."""
    font = FontProperties(weight="bold")
    paths: list[Path] = []
    for label in labels:
        path = TextPath((0, 0), label, size=_LABEL_POINTS, prop=font)
        if len(path.vertices):
            box = path.get_extents()
            path = path.transformed(Affine2D().translate(-(box.x0 + box.x1) / 2, -(box.y0 + box.y1) / 2))
        paths.append(path)
    return paths


def _fade(colors: Floats, factor: Floats) -> list[Color]:
    """Multiply the opacity of colors [N, 4] by a factor [N]."""
    opacity = colors[:, 3] * np.clip(factor, 0, 1)
    return [(r, g, b, a) for (r, g, b), a in zip(colors[:, :3].tolist(), opacity.tolist(), strict=True)]


def _make_boxes(left: Floats, bottom: Floats, width: Floats, height: float) -> Floats:
    """Make rectangles [N, 4, 2]."""
    right, top = left + width, bottom + height
    corners = [np.stack(pair, axis=1) for pair in ((left, bottom), (right, bottom), (right, top), (left, top))]
    return np.stack(corners, axis=1)


def _make_arrow_heads(tip: Floats, direction: Floats, pixel: float) -> Floats:
    """Make triangles [N, 3, 2] around each tip."""
    normal = np.stack([-direction[:, 1], direction[:, 0]], axis=1)
    base = tip - 6 * pixel * direction
    return np.stack([tip + 3 * pixel * direction, base + 4 * pixel * normal, base - 4 * pixel * normal], axis=1)
