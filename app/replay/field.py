"""Draw the units of a scene on their field at any moment, for the GIF and SVG files of a replay.

`assets/field.js` draws the same in the browser, and a test compares both. Units are drawn as a few Matplotlib
collections whose arrays change, because single shapes (several hundred for forty units) would be slow to draw.
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
from app.replay.layout import MIN_RADIUS_PX
from app.replay.payload import TEAMS, label_units
from emtc_core.envs.scene import Scene, find_passes

Floats = NDArray[np.float64]
Color = tuple[float, float, float, float]

_CORNERS = 28
_LABEL_POINTS = 6.5
_RING_POINTS = 33
_HEALTH_OFFSET_PX, _SHIELD_OFFSET_PX, _CARRIER_OFFSET_PX = 2.5, 5.5, 4.0
_MIN_BALL_RADIUS_PX = 4.0
_TRAIL_STEPS = 8
_HIT_COLOR = "#ffb000"


@dataclass(frozen=True)
class Moment:
    """The state of U units at one moment."""

    position: Floats  # [U, 2]
    health: Floats  # [U]
    shield: Floats  # [U]
    presence: Floats  # [U] 1 alive, 0 dead, in between while it dies
    target: NDArray[np.int64]  # [U] index of the target; -1 without a target
    hit: Floats  # [U] 1 at the start of a step in which the unit loses health or shield, falling to 0 at its end
    death: Floats  # [U] 1 at the start of the step in which the unit dies, falling to 0 in two steps
    trail: Floats  # [U, K + 1, 2] the last K positions and the present one; NaN before the first step


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
    loss = (scene.health[t] - scene.health[t_next]) + (scene.shield[t] - scene.shield[t_next])
    dies, died = scene.alive[t] & ~scene.alive[t_next], ~scene.alive[t] & scene.alive[max(t - 1, 0)]
    past = np.full((_TRAIL_STEPS, *position.shape), np.nan)
    steps = scene.position[max(0, t - _TRAIL_STEPS + 1) : t + 1]
    past[_TRAIL_STEPS - len(steps) :] = steps
    return Moment(
        position=np.asarray(position, np.float64),
        health=interpolate(scene.health),
        shield=interpolate(scene.shield),
        presence=interpolate(scene.alive),
        target=np.where(scene.alive[t], target, -1),
        hit=np.where((loss > 1e-6) & scene.alive[t], 1 - fraction, 0.0),
        death=np.where(dies, 1 - fraction / 2, np.where(died, (1 - fraction) / 2, 0.0)),
        trail=np.moveaxis(np.concatenate([past, position[None]]), 0, 1),
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
        self, ax: Axes, scene: Scene, bounds: Sequence[float], size_px: tuple[float, float], *, has_rings: bool
    ) -> None:
        """Draw the field.

        Args:
            ax: The axes.
            scene: The scene.
            bounds: Visible part of the field, x0, y0, x1, y1 [field units].
            size_px: Width and height of the axes [px].
            has_rings: Whether to draw rings of health and shield.
        """
        self._scene, self._has_rings = scene, has_rings
        x0, y0, x1, y1 = bounds
        ax.set_facecolor((0.5, 0.5, 0.5, 0.08))
        for spine in ax.spines.values():
            spine.set_visible(False)
        _draw_ground(ax, scene)
        ax.set(xlim=(x0, x1), ylim=(y0, y1), aspect="equal", xticks=[], yticks=[])
        self._pixel = 1 / min(size_px[0] / (x1 - x0), size_px[1] / (y1 - y0))  # [field units]
        min_radius = np.where(scene.team == 2, _MIN_BALL_RADIUS_PX, MIN_RADIUS_PX) * self._pixel  # 2: ball
        self._radius = np.maximum(scene.radius, min_radius).astype(np.float64)
        self._colors = to_rgba_array([TEAMS[team][1] for team in scene.team.tolist()])
        self._outlines = np.array([_make_outline(team) for team in scene.team.tolist()])  # [U, corners, 2]
        self._text_color = np.array(to_rgba(ax.xaxis.label.get_color()))
        self._aim_lines = LineCollection([], linestyles=(0, (4, 3)), linewidths=1.1)
        self._arrow_heads = PolyCollection([], linewidths=0)
        self._crosses = LineCollection([], linewidths=1.6)
        self._bodies = PolyCollection([], linewidths=0.8)
        self._labels = PathCollection(_make_labels(label_units(scene)), offset_transform=ax.transData, linewidths=0)
        self._trails = LineCollection([], linewidths=1.6)
        self._rings = LineCollection([], linewidths=2.2)
        self._neutral = PolyCollection([], linewidths=0.8)  # for example a ball
        self._pass_lines = LineCollection([], linewidths=1.8)
        self._pass_heads = PolyCollection([], linewidths=0)
        self._carrier = LineCollection([], linewidths=2.2, colors=[tuple(self._text_color)])
        self._deaths = LineCollection([], linewidths=2.2)
        self._passes = find_passes(scene)
        artists = (
            self._trails, self._pass_lines, self._pass_heads, self._aim_lines, self._arrow_heads, self._crosses,
            self._bodies, self._rings, self._carrier, self._deaths, self._labels, self._neutral,
        )  # fmt: skip
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
        is_neutral = self._scene.team == 2
        outlines = position + radius * self._outlines
        edge = white + moment.hit[:, None] * (np.array(to_rgba(_HIT_COLOR)) - white)
        for bodies, rows in ((self._bodies, ~is_neutral), (self._neutral, is_neutral)):
            bodies.set_verts(list(outlines[rows]))
            bodies.set_facecolor(_fade(self._colors[rows], presence[rows]))
            bodies.set_edgecolor(_fade(edge[rows], presence[rows]))
            bodies.set_linewidth((0.8 + 2.5 * moment.hit[rows]).tolist())
        arms = 0.6 * np.array([[[-1, -1], [1, 1]], [[1, -1], [-1, 1]]])  # [2, 2, 2]
        self._crosses.set_segments(list((position[:, None] + radius[:, None] * arms).reshape(-1, 2, 2)))
        self._crosses.set_color(_fade(self._colors.repeat(2, axis=0), (0.45 * (1 - presence)).repeat(2)))
        self._labels.set_offsets(moment.position)
        self._labels.set_facecolor(_fade(white, presence))
        self._draw_trails(moment)
        self._draw_passes(frame)
        self._draw_carrier(frame, moment)
        self._draw_deaths(moment)
        if self._has_rings:
            self._draw_rings(moment)

    def _draw_trails(self, moment: Moment) -> None:
        """Draw the last steps of each living unit as a line that fades toward the past."""
        segments = np.stack([moment.trail[:, :-1], moment.trail[:, 1:]], axis=2)  # [U, K, 2, 2]
        steps = segments.shape[1]
        strength = 0.6 * np.arange(1, steps + 1) / steps * moment.presence[:, None]  # [U, K]
        self._trails.set_segments(list(segments.reshape(-1, 2, 2)))
        self._trails.set_color(_fade(self._colors.repeat(steps, axis=0), strength.ravel()))

    def _draw_passes(self, frame: float) -> None:
        """Draw the passes of the last steps, and a pass in flight, from the passing to the receiving player."""
        first, last, unit, receiver = self._passes.T
        is_visible = (frame >= first) & (frame <= last + _TRAIL_STEPS)
        first, last, unit, receiver = self._passes[is_visible].T
        position = self._scene.position.astype(np.float64)
        start, end = position[first, unit], position[last, receiver]
        strength = 0.9 * (1 - np.maximum(0, frame - last) / (_TRAIL_STEPS + 1))
        is_drawn, lines, heads = _make_arrows(
            start, end, clearance=self._radius[receiver] + 3 * self._pixel, pixel=self._pixel
        )
        colors = _fade(self._colors[unit[is_drawn]], strength[is_drawn])
        self._pass_lines.set_segments(list(lines))
        self._pass_lines.set_color(colors)
        self._pass_heads.set_verts(list(heads))
        self._pass_heads.set_facecolor(colors)

    def _draw_carrier(self, frame: float, moment: Moment) -> None:
        """Draw a ring around the player who has the ball."""
        if self._scene.carrier is None:
            return
        unit = int(self._scene.carrier[min(int(frame), len(self._scene.carrier) - 1)])
        units = np.array([unit] if unit >= 0 else [], int)
        radius = self._radius[units] + _CARRIER_OFFSET_PX * self._pixel
        self._carrier.set_segments(list(_make_arcs(moment.position[units], radius)))

    def _draw_deaths(self, moment: Moment) -> None:
        """Draw a ring that grows and fades around each unit that dies."""
        units = np.flatnonzero((moment.death > 0) & (self._scene.team != 2))
        death = moment.death[units]
        self._deaths.set_segments(list(_make_arcs(moment.position[units], self._radius[units] * (2.4 - 1.2 * death))))
        self._deaths.set_color(_fade(np.tile(to_rgba(_HIT_COLOR), (len(units), 1)), death))

    def _draw_rings(self, moment: Moment) -> None:
        """Draw health as an arc around each unit, clockwise from the top, and shield as an arc around it."""
        visibility = moment.presence * (self._scene.team != 2)
        gray, shield_color = np.array((0.5, 0.5, 0.5, 0.4)), np.array(to_rgba(SPEED_COLOR))
        rings = (  # length as a fraction of the circle, offset [px], color
            (np.ones_like(visibility), _HEALTH_OFFSET_PX, gray),
            (moment.health, _HEALTH_OFFSET_PX, self._text_color),
            (moment.shield, _SHIELD_OFFSET_PX, shield_color),
        )
        arcs = [
            _make_arcs(moment.position, self._radius + offset * self._pixel, fraction) for fraction, offset, _ in rings
        ]
        self._rings.set_segments(list(np.concatenate(arcs)))
        colors = np.concatenate([np.tile(color, (len(visibility), 1)) for *_, color in rings])
        self._rings.set_color(_fade(colors, np.tile(visibility, len(rings))))

    def _draw_aims(self, moment: Moment) -> None:
        """Draw an arrow from each unit to its target. It ends at the edge of the target."""
        units = np.flatnonzero((moment.target >= 0) & (moment.target < len(moment.target)))
        targets = moment.target[units]
        clearance = self._radius[targets] + 3 * self._pixel
        is_drawn, lines, heads = _make_arrows(
            moment.position[units], moment.position[targets], clearance=clearance, pixel=self._pixel
        )
        units = units[is_drawn]
        self._aim_lines.set_segments(list(lines))
        self._arrow_heads.set_verts(list(heads))
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
        if not label:  # a TextPath of an empty text raises an error
            paths.append(Path(np.empty((0, 2))))
            continue
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


def _make_arcs(center: Floats, radius: Floats, fraction: Floats | None = None) -> Floats:
    """Make arcs [N, points, 2], clockwise from the top.

    Args:
        center: Centers [N, 2].
        radius: Radii [N].
        fraction: Lengths as fractions of the circle [N]; None: whole circles.
    """
    length = np.ones(len(radius)) if fraction is None else np.clip(fraction, 0, 1)
    angle = np.pi / 2 - 2 * np.pi * length[:, None] * np.linspace(0, 1, _RING_POINTS)
    return center[:, None] + radius[:, None, None] * np.stack([np.cos(angle), np.sin(angle)], axis=2)


def _make_arrows(
    start: Floats, target: Floats, *, clearance: Floats, pixel: float
) -> tuple[NDArray[np.bool_], Floats, Floats]:
    """Make arrows that end before their targets.

    Args:
        start: Starts [N, 2].
        target: Targets [N, 2].
        clearance: Distance from the tip to the target [N].
        pixel: Size of a pixel [field units].

    Returns:
        Which arrows are drawn [N], because a target may be nearer than the clearance; and of the drawn ones, the lines
        [n, 2, 2] and the heads [n, 3, 2].
    """
    distance = np.hypot(*(target - start).T)
    is_drawn = distance > clearance
    start, target, distance, clearance = start[is_drawn], target[is_drawn], distance[is_drawn], clearance[is_drawn]
    direction = (target - start) / distance[:, None]
    tip = start + direction * (distance - clearance)[:, None]
    normal = np.stack([-direction[:, 1], direction[:, 0]], axis=1)
    base = tip - 6 * pixel * direction
    heads = np.stack([tip + 3 * pixel * direction, base + 4 * pixel * normal, base - 4 * pixel * normal], axis=1)
    return is_drawn, np.stack([start, tip], axis=1), heads
