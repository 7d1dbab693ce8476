"""The picture behind the files of a replay: fields or strips above, values below, and what of it moves with time."""

from collections.abc import Sequence

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.colors import LinearSegmentedColormap, to_rgba
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Circle, Rectangle
from matplotlib.text import Text

from app.figures.chart import Chart, Panel
from app.figures.symbols import make_printable, set_as_math
from app.playback.frames import Floats, Moment, moment_at
from app.playback.payload import TEAMS, frame_sides, label_units, name_entries
from app.playback.side import MISSING, NAMES, Side, count_actions, join_values, level_values, show_actions
from app.theme import SPEED, VIRIDIS
from emtc_core.envs.base import Scene

_INCH = 100.0  # CSS-like pixels in an inch; sizes below are inches unless they say so
_WIDTH = {1: 7.2, 2: 10.0}
_TALLEST_FIELD = {1: 3.6, 2: 2.8}
_EDGE, _GAP, _TOP = 0.15, 0.25, 0.6
_PANEL, _ABOVE, _BELOW, _BESIDE = 0.75, 0.34, 0.45, 0.62
_MOST_COLUMNS = {1: 2, 2: 3}
_LOST = "#888888"
_BAR_PX, _SMALLEST_PX, _SMALLEST_BALL_PX = 18.0, 8.0, 4.0


class Board:
    """A figure of one or two episodes that can be moved to any moment.

    With `animated`, drawing the figure leaves out what moves; `moving` lists it in drawing order.
    """

    def __init__(self, sides: Sequence[Side], *, animated: bool = False) -> None:
        self.title = " beside ".join(side.title for side in sides)
        chart = join_values(list(sides))
        acted = any(count_actions(side) for side in sides)
        count = len(chart.panels) + acted
        columns = min(_MOST_COLUMNS[len(sides)], max(1, count))
        rows = -(-count // columns)
        width = _WIDTH[len(sides)]
        each = (width - 2 * _EDGE - (len(sides) - 1) * _GAP) / len(sides)
        hurt = any((side.scene.health < 1).any() for side in sides)
        seen = frame_sides(sides)
        most = _TALLEST_FIELD[len(sides)]
        tall = max(_field_height(side, bounds, each, most) for side, bounds in zip(sides, seen, strict=True))
        below = rows * (_PANEL + _ABOVE) + _BELOW if count else _EDGE
        self.figure = Figure(figsize=(width, _TOP + tall + below))
        self._frame = _Frame(self.figure, width, _TOP + tall + below)
        self._parts: list[_Field | _Strip | _Values] = []
        for number, side in enumerate(sides):
            left = _EDGE + number * (each + _GAP)
            ax = self._frame.add(left, _TOP, each, tall)
            self._frame.write(left, 0.42, _titled(side, number, pair=len(sides) > 1))
            if side.has_units:
                self._parts.append(_Field(ax, side.scene, seen[number], (each * _INCH, tall * _INCH), bars=bool(hurt)))
            else:
                self._parts.append(_Strip(ax, side))
        self._clock = self._frame.write(width - _EDGE, 0.2, "", align="right")
        self._add_values(chart, sides, columns, _TOP + tall, width, acted=acted)
        self.moving: list[Artist] = [artist for part in self._parts for artist in part.moving] + [self._clock]
        for artist in self.moving:
            artist.set_animated(animated)

    def _add_values(
        self, chart: Chart, sides: Sequence[Side], columns: int, top: float, width: float, *, acted: bool
    ) -> None:
        wide = (width - _EDGE) / columns
        last = max(side.frames for side in sides) - 1
        count = len(chart.panels) + acted
        for place in range(count):
            row, column = divmod(place, columns)
            ax = self._frame.add(
                column * wide + _BESIDE,
                top + row * (_PANEL + _ABOVE) + _ABOVE,
                wide - _BESIDE - 0.1,
                _PANEL,
            )
            ax.set_xlim(0, max(1, last))
            ax.tick_params(labelsize=7, length=2, labelbottom=place + columns >= count)
            if place + columns >= count:
                ax.set_xlabel(set_as_math(chart.x_label), fontsize=7, labelpad=1)
            if place < len(chart.panels):
                _draw_panel(ax, chart.panels[place])
                self._parts.append(_Values(ax, chart.panels[place], len(sides)))
            else:
                _draw_actions(ax, sides)
                self._parts.append(_Values(ax, None, len(sides)))

    def move(self, frame: float) -> None:
        """Show a moment of the longer episode; the shorter one stays at its end."""
        for part in self._parts:
            part.move(frame)
        self._clock.set_text(f"t = {int(frame)}")


class _Frame:
    """Places in inches from the upper left."""

    def __init__(self, figure: Figure, width: float, height: float) -> None:
        self._figure, self._width, self._height = figure, width, height

    def add(self, left: float, top: float, wide: float, tall: float) -> Axes:
        bottom = self._height - top - tall
        box = (left / self._width, bottom / self._height, wide / self._width, tall / self._height)
        return self._figure.add_axes(box)

    def write(self, left: float, top: float, text: str, *, align: str = "left") -> Text:
        place = left / self._width, 1 - top / self._height
        return self._figure.text(*place, text, fontsize=8.5, ha=align, va="baseline", fontweight="bold")


def _titled(side: Side, number: int, *, pair: bool) -> str:
    text = set_as_math(make_printable(side.title))
    return f"{NAMES[number]}   {text}" if pair else text


def _field_height(side: Side, bounds: Sequence[float], width: float, most: float) -> float:
    if not side.has_units:
        return min(most, 2.4)
    x0, y0, x1, y1 = bounds
    return min(most, width * (y1 - y0) / (x1 - x0))


class _Field:
    """Units on their field."""

    def __init__(
        self, ax: Axes, scene: Scene, bounds: Sequence[float], size_px: tuple[float, float], *, bars: bool
    ) -> None:
        self._scene = scene
        x0, y0, x1, y1 = bounds
        ax.set(xlim=(x0, x1), ylim=(y0, y1), aspect="equal", xticks=[], yticks=[])
        ax.set_facecolor((0.5, 0.5, 0.5, 0.08))
        for spine in ax.spines.values():
            spine.set_visible(False)
        self._ground(ax, bounds)
        self._pixel = 1 / min(size_px[0] / (x1 - x0), size_px[1] / (y1 - y0))  # field units
        smallest = np.where(scene.team == 2, _SMALLEST_BALL_PX, _SMALLEST_PX) * self._pixel
        self._radius = np.maximum(scene.radius, smallest)
        self._colors = [TEAMS[team][1] for team in scene.team.tolist()]
        self._aims = LineCollection([], linestyles=(0, (4, 3)), linewidths=1.1, alpha=0.7)
        self._heads = PolyCollection([], linewidths=0, alpha=0.7)
        ax.add_collection(self._aims, autolim=False)
        ax.add_collection(self._heads, autolim=False)
        self._crosses = [self._cross(ax, u) for u in range(len(scene.kind))]
        self._bodies = [self._body(ax, u) for u in range(len(scene.kind))]
        self._names = [
            ax.text(0, 0, name, color="white", fontsize=7, fontweight="bold", ha="center", va="center_baseline")
            for name in label_units(scene)
        ]
        self._bars = [self._bar(ax, u) for u in range(len(scene.kind))] if bars else []
        strips = [part for each in self._bars for part in each]
        self.moving: list[Artist] = [self._aims, self._heads, *self._crosses, *self._bodies, *self._names, *strips]

    def _ground(self, ax: Axes, bounds: Sequence[float]) -> None:
        scene = self._scene
        if scene.walkable is not None:
            blocked = np.where(scene.walkable.T, np.nan, 1.0)
            columns, rows = scene.walkable.shape
            grey = LinearSegmentedColormap.from_list("blocked", [(0.5, 0.5, 0.5, 0.25)] * 2)
            ax.imshow(blocked, extent=(0, columns, 0, rows), origin="lower", cmap=grey, interpolation="nearest")
            x0, y0, x1, y1 = bounds
            ax.set(xlim=(x0, x1), ylim=(y0, y1), aspect="equal")
        if scene.markings is not None:
            lines = LineCollection(list(scene.markings.reshape(-1, 2, 2)), colors="#8a8f98", linewidths=1)
            ax.add_collection(lines, autolim=False)

    def _body(self, ax: Axes, u: int) -> Circle | Rectangle:
        r = float(self._radius[u])
        body = Rectangle((0, 0), 1.8 * r, 1.8 * r) if self._scene.team[u] == 1 else Circle((0, 0), r)
        body.set(facecolor=self._colors[u], edgecolor="white", linewidth=0.8)
        ax.add_patch(body)
        return body

    def _cross(self, ax: Axes, u: int) -> Line2D:
        size = 72 / _INCH * 1.2 * float(self._radius[u]) / self._pixel
        return ax.plot([], [], "x", color=self._colors[u], markersize=size, markeredgewidth=1.6)[0]

    def _bar(self, ax: Axes, u: int) -> tuple[Rectangle, Rectangle, Rectangle]:
        """Make what is lost, what is left, and the shield above."""
        tall = 3 * self._pixel
        ink = ax.xaxis.label.get_color()
        parts = [Rectangle((0, 0), 1, tall, linewidth=0, facecolor=color) for color in (_LOST, ink, SPEED)]
        for part in parts:
            ax.add_patch(part)
        return parts[0], parts[1], parts[2]

    def move(self, frame: float) -> None:
        moment = moment_at(self._scene, frame)
        self._aim(moment)
        for u, (x, y) in enumerate(moment.place.tolist()):
            here = float(moment.presence[u])
            body, r = self._bodies[u], float(self._radius[u])
            if isinstance(body, Circle):
                body.set_center((x, y))
            else:
                body.set_xy((x - 0.9 * r, y - 0.9 * r))
            body.set_alpha(here)
            self._names[u].set_position((x, y))
            self._names[u].set_alpha(here)
            self._crosses[u].set_data([x], [y])
            self._crosses[u].set_alpha(0.45 * (1 - here))
            if self._bars:
                self._fill(u, x, y, moment)

    def _fill(self, u: int, x: float, y: float, moment: Moment) -> None:
        lost, left, shield = self._bars[u]
        r, here = float(self._radius[u]), float(moment.presence[u]) * float(self._scene.team[u] != 2)
        wide = max(_BAR_PX * self._pixel, 1.9 * r)
        bottom = y + r + 3 * self._pixel
        for part, share, lift in ((lost, 1.0, 0.0), (left, moment.health[u], 0.0), (shield, moment.shield[u], 5.0)):
            part.set_xy((x - wide / 2, bottom + lift * self._pixel))
            part.set_width(wide * float(np.clip(share, 0, 1)))
            part.set_alpha(here * (0.4 if part is lost else 1.0))

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
        colors = [self._colors[u] for u in units]
        self._aims.set_color(colors)
        self._heads.set_facecolor(colors)


def _heads(tip: Floats, ahead: Floats, pixel: float) -> Floats:
    """Make a triangle [N, 3, 2] at each tip."""
    across = np.stack([-ahead[:, 1], ahead[:, 0]], axis=1)
    back = tip - 6 * pixel * ahead
    return np.stack([tip + 3 * pixel * ahead, back + 4 * pixel * across, back - 4 * pixel * across], axis=1)


class _Strip:
    """The state's entries over time, where nobody can draw the state itself."""

    def __init__(self, ax: Axes, side: Side) -> None:
        values = side.scene.values
        self._last = side.frames - 1
        ax.set(xticks=[], yticks=[])
        if values is not None and values.size:
            levels = level_values(values).T.astype(np.float64)
            levels[levels == MISSING] = np.nan
            ramp = LinearSegmentedColormap.from_list("levels", list(VIRIDIS))
            ax.imshow(levels, aspect="auto", cmap=ramp, vmin=0, vmax=254, interpolation="nearest")
            names = name_entries(side.scene)
            if len(names) <= 16:
                ax.set_yticks(range(len(names)), [make_printable(name)[:14] for name in names], fontsize=6)
                ax.tick_params(axis="y", direction="in", pad=-4, length=0)
                for label in ax.get_yticklabels():
                    label.set(horizontalalignment="left", color="white")
        self._cursor = ax.axvline(0, color="white", linewidth=1.6)
        self._edge = ax.axvline(0, color="black", linewidth=0.7)
        self.moving: list[Artist] = [self._cursor, self._edge]

    def move(self, frame: float) -> None:
        at = min(frame, self._last)
        for line in (self._cursor, self._edge):
            line.set_xdata([at, at])


class _Values:
    """The time cursor of one panel, and what it reads."""

    def __init__(self, ax: Axes, panel: Panel | None, sides: int) -> None:
        self._panel, self._sides = panel, sides
        self._cursor = ax.axvline(0, color=ax.xaxis.label.get_color(), linewidth=1.1)
        self._dots = (
            [ax.plot([], [], "o", color=line.color, markersize=3.5)[0] for line in panel.lines] if panel else []
        )
        self._text = ax.text(1, 1.06, "", transform=ax.transAxes, fontsize=7, ha="right", va="bottom")
        self.moving: list[Artist] = [self._cursor, *self._dots, self._text]

    def move(self, frame: float) -> None:
        self._cursor.set_xdata([frame, frame])
        if self._panel is None:
            return
        said: list[list[str]] = [[] for _ in range(self._sides)]
        for line, dot in zip(self._panel.lines, self._dots, strict=True):
            t = min(int(frame), len(line.y) - 1)
            known = 0 <= int(frame) <= len(line.y) and t >= 0 and np.isfinite(line.y[t])
            dot.set_data([line.x[t]] if known else [], [line.y[t]] if known else [])
            if known:
                said[NAMES.index(line.group) if line.group in NAMES else 0].append(f"{line.y[t]:.3g}")
        named = [
            f"{NAMES[k]} {', '.join(values) or '–'}" if self._sides > 1 else ", ".join(values)
            for k, values in enumerate(said)
        ]
        self._text.set_text("   ".join(named))


def _draw_panel(ax: Axes, panel: Panel) -> None:
    for line in panel.lines:
        ax.plot(line.x, line.y, color=line.color, linewidth=1.2, linestyle=(0, (4, 2)) if line.dash else "-")
    if panel.range:
        ax.set_ylim(*panel.range)
    elif panel.from_zero:
        ax.set_ylim(bottom=0)
    ax.grid(True, linewidth=0.5)
    unit = f" [{panel.unit}]" if panel.unit else ""
    ax.text(0, 1.06, set_as_math(panel.title + unit), transform=ax.transAxes, fontsize=8, va="bottom")


def _draw_actions(ax: Axes, sides: Sequence[Side]) -> None:
    """Draw a row for each agent and a cell for each step, in the colours of the page."""
    names: list[str] = []
    for number, side in enumerate(sides):
        if side.actions is None:
            continue
        shown = show_actions(side.action_names, count_actions(side))
        colors = np.array([to_rgba(action.color) if action.color else (0, 0, 0, 0) for action in shown])
        steps, agents = side.actions.shape
        top = len(names)
        names += [f"{NAMES[number] if len(sides) > 1 else ''}{agent}" for agent in range(agents)]
        legal = (side.actions >= 0) & (side.actions < len(colors))
        cells = np.where(legal[..., None], colors[np.where(legal, side.actions, 0)], 0.0)
        extent = (0, steps, top + agents - 0.5, top - 0.5)
        ax.imshow(cells.transpose(1, 0, 2), aspect="auto", extent=extent, interpolation="nearest")
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.set_xlim(0, max(1, max(side.frames for side in sides) - 1))
    few = len(names) <= 8
    ax.set_yticks(range(len(names)) if few else [], names if few else [], fontsize=6)
    ax.text(0, 1.06, "actions", transform=ax.transAxes, fontsize=8, va="bottom")
