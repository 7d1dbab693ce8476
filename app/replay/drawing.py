"""One or two episodes → an animated GIF, or one frame of them as SVG. Drawn with Matplotlib, without a browser.

`Board` lays the picture out, fields or strips above, values below, and moves it; what is below it writes it. An
animation draws what stands still once and only what moves for each frame.
"""

import io
from collections.abc import Callable, Iterator, Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap, to_rgba
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image

from app.figures.kinds.chart import Chart, Panel
from app.figures.named.trajectories import NAMES
from app.figures.render.matplotlib_view import make_style
from app.figures.theme import VIRIDIS, Mode, make_printable, set_as_math
from app.replay.field import Field, list_moments
from app.replay.payload import frame_sides, name_entries
from app.replay.replay import MISSING, Side, count_actions, join_values, level_picture, level_values, show_actions

_INCH = 100.0  # CSS-like pixels in an inch; sizes below are inches unless they say so
_WIDTH = {1: 7.2, 2: 10.0}
_TALLEST_FIELD = {1: 3.6, 2: 2.8}
_EDGE, _GAP, _TOP = 0.15, 0.25, 0.6
_PANEL, _ABOVE, _BELOW, _BESIDE = 0.75, 0.34, 0.45, 0.62
_MOST_COLUMNS = {1: 2, 2: 3}

MOST_FRAMES = 200
GIF_DPI = 100
COLORS = 128
STEPS_PER_SECOND = 8
_MOST_PER_STEP = 3
_SHORTEST_MS, _LONGEST_MS, _LAST_MS = 40, 120, 1200
"""How long a frame may stand; browsers slow down what is faster."""

Progress = Callable[[int, int], None]


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
        self._parts: list[Field | _Picture | _Strip | _Values] = []
        for number, side in enumerate(sides):
            left = _EDGE + number * (each + _GAP)
            ax = self._frame.add(left, _TOP, each, tall)
            self._frame.write(left, 0.42, _titled(side, number, pair=len(sides) > 1))
            if side.has_units:
                self._parts.append(Field(ax, side.scene, seen[number], (each * _INCH, tall * _INCH), bars=bool(hurt)))
            elif side.scene.picture and side.scene.values is not None:
                self._parts.append(_Picture(ax, side))
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


class _Picture:
    """The state as the picture that it is."""

    def __init__(self, ax: Axes, side: Side) -> None:
        assert side.scene.values is not None  # the caller has looked
        self._pixels = level_picture(side.scene.values, side.scene.picture)
        ax.set(xticks=[], yticks=[])
        self._image = ax.imshow(self._pixels[0], cmap="gray", vmin=0, vmax=255, interpolation="nearest")
        self.moving: list[Artist] = [self._image]

    def move(self, frame: float) -> None:
        self._image.set_data(self._pixels[min(int(frame), len(self._pixels) - 1)])


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


def to_svg(sides: Sequence[Side], *, frame: float, mode: Mode = "light", sources: Sequence[str] = ()) -> bytes:
    """Draw one moment as vectors; a frame beyond the end is the last one."""
    last = max(side.frames for side in sides) - 1
    shown = min(max(float(frame), 0.0), float(last))
    with mpl.rc_context(make_style(mode)):
        board = Board(sides)
        board.move(shown)
        file = io.BytesIO()
        told = [make_printable(source) for source in sources]
        title = make_printable(f"{board.title}, t = {shown:g}")
        board.figure.savefig(file, format="svg", metadata={"Date": None, "Title": title, "Keywords": told})
    return file.getvalue()


def to_gif(sides: Sequence[Side], *, mode: Mode = "light", on_progress: Progress | None = None) -> bytes:
    """Animate the whole of it in at most `MOST_FRAMES` frames, interpolated between steps where there is room.

    Args:
        sides: What is played.
        mode: Light or dark.
        on_progress: Told after each frame how many of how many are drawn.
    """
    moments, per_step = list_moments(max(side.frames for side in sides), MOST_FRAMES, most_per_step=_MOST_PER_STEP)
    each_ms = int(np.clip(round(100 / (STEPS_PER_SECOND * per_step)) * 10, _SHORTEST_MS, _LONGEST_MS))
    images = _paint(sides, moments.tolist(), mode, on_progress)
    first = next(images)
    file = io.BytesIO()
    first.save(
        file,
        format="GIF",
        save_all=True,
        append_images=images,
        duration=[each_ms] * (len(moments) - 1) + [_LAST_MS],
        loop=0,
        disposal=1,
    )
    return file.getvalue()


def _paint(
    sides: Sequence[Side], moments: Sequence[float], mode: Mode, on_progress: Progress | None
) -> Iterator[Image.Image]:
    """Paint frame after frame over the same ground, all in the colours of the first."""
    with mpl.rc_context(make_style(mode)):
        board = Board(sides, animated=True)
        board.figure.set_dpi(GIF_DPI)
        canvas = FigureCanvasAgg(board.figure)
        canvas.draw()
        ground = canvas.copy_from_bbox(board.figure.bbox)
    palette: Image.Image | None = None
    for number, moment in enumerate(moments, 1):
        canvas.restore_region(ground)
        with mpl.rc_context(make_style(mode)):
            board.move(moment)
            for artist in board.moving:
                board.figure.draw_artist(artist)
        painted = Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3].copy())
        if palette is None:
            palette = painted.quantize(COLORS, dither=Image.Dither.NONE)
        yield painted.quantize(palette=palette, dither=Image.Dither.NONE)
        if on_progress:
            on_progress(number, len(moments))
