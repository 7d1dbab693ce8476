"""Draw one or two episodes as an animated GIF or a video, or one frame of them as SVG, without a browser.

`EpisodeFigure` arranges the figure (fields or strips above, values below) and moves it to any moment. For an animation,
the fixed artists are drawn once, and only the moving artists are drawn for each frame.
"""

import io
import textwrap
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap, to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.text import Text
from PIL import Image

from app.figures.kinds.chart import Chart, Panel
from app.figures.named.trajectories import NAMES
from app.figures.render.matplotlib_view import make_style
from app.figures.theme import VIRIDIS, Mode, format_mathtext, replace_unprintable
from app.replay.field import FieldArtist, sample_moments
from app.replay.layout import lay_out_fields
from app.replay.payload import describe_field, list_teams, name_entries
from app.replay.replay import (
    MISSING,
    EpisodeView,
    count_actions,
    join_values,
    quantize_values,
    style_actions,
)
from emtc_core.envs.scene import Scene
from emtc_core.errors import ConfigError
from emtc_core.install import get_install_command

MAX_FRAMES = 200
"""Maximum number of frames of an animation."""
GIF_DPI = 100
COLORS = 128
STEPS_PER_SECOND = 8
_MAX_FRAMES_PER_STEP = 3
_MIN_FRAME_MS, _MAX_FRAME_MS, _LAST_FRAME_MS = 40, 120, 1200
"""Limits of a frame's duration: browsers slow down frames below the minimum."""

_PX_PER_INCH = 100.0
# Sizes are in inches. The keys of these dictionaries are the number of episodes.
_FIGURE_WIDTH = {1: 7.2, 2: 10.0}
_MAX_FIELD_HEIGHT = {1: 3.6, 2: 2.8}
_MAX_PANEL_COLUMNS = {1: 2, 2: 3}
_MARGIN, _FIELD_GAP, _HEADER_HEIGHT = 0.15, 0.25, 0.6
_STRIP_HEIGHT = 2.4
_LEGEND_HEIGHT, _LEGEND_CHARACTERS = 0.48, 110
_PANEL_HEIGHT, _PANEL_TITLE_HEIGHT, _FOOTER_HEIGHT = 0.75, 0.34, 0.45
_PANEL_LEFT, _PANEL_RIGHT = 0.62, 0.1
_MAX_ENTRY_NAMES, _MAX_ENTRY_LENGTH = 16, 14
_MAX_AGENT_LABELS = 8

Progress = Callable[[int, int], None]
"""Called with the number of drawn frames and the number of all frames."""


class _Part(Protocol):
    """A part of the figure that can be moved to a frame."""

    moving: list[Artist]

    def move(self, frame: float) -> None: ...


class EpisodeFigure:
    """A figure of one or two episodes that can be moved to any moment.

    If `animated`, drawing the figure omits the moving artists. `moving` lists them in drawing order.
    """

    def __init__(self, sides: Sequence[EpisodeView], *, animated: bool = False) -> None:
        self.title = " compared with ".join(side.title for side in sides)
        chart = join_values(list(sides))
        has_actions = any(count_actions(side) for side in sides)
        n_panels = len(chart.panels) + has_actions
        rows = -(-n_panels // _MAX_PANEL_COLUMNS[len(sides)])
        columns = max(1, -(-n_panels // max(1, rows)))  # as in the player: no row is shorter than needed
        width = _FIGURE_WIDTH[len(sides)]
        field_width = (width - 2 * _MARGIN - (len(sides) - 1) * _FIELD_GAP) / len(sides)
        has_damage = any((side.scene.health < 1).any() for side in sides)
        fields = lay_out_fields(sides)
        max_height = _MAX_FIELD_HEIGHT[len(sides)]
        field_height = max(
            min(max_height, field_width * (y1 - y0) / (x1 - x0)) if side.has_units else min(max_height, _STRIP_HEIGHT)
            for side, (_, (x0, y0, x1, y1)) in zip(sides, fields, strict=True)
        )
        panel_area = rows * (_PANEL_HEIGHT + _PANEL_TITLE_HEIGHT) + _FOOTER_HEIGHT if n_panels else _MARGIN
        has_units = any(side.has_units for side in sides)
        legend_height = _LEGEND_HEIGHT if has_units else 0
        height = _HEADER_HEIGHT + field_height + legend_height + panel_area
        self.figure = Figure(figsize=(width, height))
        self._grid = _InchGrid(self.figure, width, height)
        self._parts: list[_Part] = []
        for number, side in enumerate(sides):
            left = _MARGIN + number * (field_width + _FIELD_GAP)
            ax = self._grid.add_axes(left, _HEADER_HEIGHT, field_width, field_height)
            title = format_mathtext(replace_unprintable(side.title))
            self._grid.write(left, 0.42, f"{NAMES[number]}   {title}" if len(sides) > 1 else title)
            if side.has_units:
                size_px = (field_width * _PX_PER_INCH, field_height * _PX_PER_INCH)
                scene, bounds = fields[number]
                self._parts.append(FieldArtist(ax, scene, bounds, size_px, has_rings=bool(has_damage)))
                self._write_legend(side, scene, left, _HEADER_HEIGHT + field_height, has_rings=bool(has_damage))
            else:
                self._parts.append(_Strip(ax, side))
        self._clock = self._grid.write(width - _MARGIN, 0.2, "", align="right")
        self._add_panels(
            chart,
            sides,
            columns=columns,
            top=_HEADER_HEIGHT + field_height + legend_height,
            width=width,
            has_actions=has_actions,
        )
        self.moving: list[Artist] = [artist for part in self._parts for artist in part.moving] + [self._clock]
        for artist in self.moving:
            artist.set_animated(animated)

    def _write_legend(self, side: EpisodeView, scene: Scene, left: float, top: float, *, has_rings: bool) -> None:
        """Write the teams and the meaning of the marks below a field whose left lower corner is at `left`, `top`."""
        used = set(scene.team.tolist())
        x = left
        for number, (name, color) in enumerate(list_teams([side])):
            if number in used:
                mark = "■" if number == 1 else "●"
                self._grid.write(x, top + 0.16, mark, size=7, color=color, weight="normal")
                self._grid.write(x + 0.12, top + 0.16, name, size=7, weight="normal")
                x += 0.3 + 0.055 * len(name)
        for row, text in enumerate(textwrap.wrap(describe_field(scene, has_rings=has_rings), _LEGEND_CHARACTERS)[:2]):
            self._grid.write(left, top + 0.31 + 0.13 * row, replace_unprintable(text), size=6, weight="normal")

    def _add_panels(
        self, chart: Chart, sides: Sequence[EpisodeView], *, columns: int, top: float, width: float, has_actions: bool
    ) -> None:
        """Add the panels of the values, row by row, and then a panel of the actions.

        Args:
            chart: The values.
            sides: The episodes.
            columns: Number of panels per row.
            top: Upper edge of the first row [inch].
            width: Width of the figure [inch].
            has_actions: Whether there is a panel of the actions.
        """
        column_width = (width - _MARGIN) / columns
        last_step = max(side.frames for side in sides) - 1
        n_panels = len(chart.panels) + has_actions
        for index in range(n_panels):
            row, column = divmod(index, columns)
            ax = self._grid.add_axes(
                column * column_width + _PANEL_LEFT,
                top + row * (_PANEL_HEIGHT + _PANEL_TITLE_HEIGHT) + _PANEL_TITLE_HEIGHT,
                column_width - _PANEL_LEFT - _PANEL_RIGHT,
                _PANEL_HEIGHT,
            )
            is_lowest = index + columns >= n_panels
            ax.set_xlim(0, max(1, last_step))
            ax.tick_params(labelsize=7, length=2, labelbottom=is_lowest)
            if is_lowest:
                ax.set_xlabel(format_mathtext(chart.x_label), fontsize=7, labelpad=1)
            if index < len(chart.panels):
                _draw_panel(ax, chart.panels[index])
                self._parts.append(_ValueCursor(ax, chart.panels[index], len(sides)))
            else:
                _draw_actions(ax, sides)
                self._parts.append(_ValueCursor(ax, None, len(sides)))

    def move(self, frame: float) -> None:
        """Show a moment of the longer episode. After the end of the shorter one, its last frame is shown."""
        for part in self._parts:
            part.move(frame)
        self._clock.set_text(f"t = {int(frame)}")


def to_svg(sides: Sequence[EpisodeView], *, frame: float, mode: Mode = "light", sources: Sequence[str] = ()) -> bytes:
    """Draw one moment as SVG.

    Args:
        sides: One or two episodes.
        frame: The moment; the last frame if it is beyond the end.
        mode: Light or dark.
        sources: Descriptions of the runs, for the metadata of the file.
    """
    last_frame = max(side.frames for side in sides) - 1
    frame = min(max(float(frame), 0.0), float(last_frame))
    with mpl.rc_context(make_style(mode)):
        board = EpisodeFigure(sides)
        board.move(frame)
        file = io.BytesIO()
        keywords = [replace_unprintable(source) for source in sources]
        title = replace_unprintable(f"{board.title}, t = {frame:g}")
        board.figure.savefig(file, format="svg", metadata={"Date": None, "Title": title, "Keywords": keywords})
    return file.getvalue()


def to_gif(sides: Sequence[EpisodeView], *, mode: Mode = "light", on_progress: Progress | None = None) -> bytes:
    """Draw whole episodes as an animation of at most `MAX_FRAMES` frames. Short episodes have frames between steps.

    Args:
        sides: One or two episodes.
        mode: Light or dark.
        on_progress: Called after each frame.
    """
    moments, frame_ms = _choose_moments(sides)
    images = _reduce_colors(_draw_frames(sides, moments, mode, on_progress))
    first = next(images)
    file = io.BytesIO()
    first.save(
        file,
        format="GIF",
        save_all=True,
        append_images=images,
        duration=[frame_ms] * (len(moments) - 1) + [_LAST_FRAME_MS],
        loop=0,
        disposal=1,
    )
    return file.getvalue()


def to_mp4(sides: Sequence[EpisodeView], *, mode: Mode = "light", on_progress: Progress | None = None) -> bytes:
    """Draw whole episodes as a video (H.264) with the frames of `to_gif`, in all colors.

    Raises:
        ConfigError: If the package imageio-ffmpeg is not installed.
    """
    try:
        from imageio_ffmpeg import write_frames  # pyright: ignore[reportMissingImports]  # an optional extra
    except ModuleNotFoundError as error:
        hint = f"Install it with: {get_install_command('video')}"
        raise ConfigError("needs the package imageio-ffmpeg", key="mp4", hint=hint) from error
    moments, frame_ms = _choose_moments(sides)
    images = (_crop_to_even_size(image) for image in _draw_frames(sides, moments, mode, on_progress))
    image = first = next(images)
    with TemporaryDirectory(prefix="emtc-video-") as folder:
        path = Path(folder) / "replay.mp4"
        writer = write_frames(str(path), first.size, fps=round(1000 / frame_ms), macro_block_size=2, quality=8)
        writer.send(None)
        for image in chain([first], images):
            writer.send(image.tobytes())
        for _ in range(_LAST_FRAME_MS // frame_ms):
            writer.send(image.tobytes())
        writer.close()
        return path.read_bytes()


def _choose_moments(sides: Sequence[EpisodeView]) -> tuple[list[float], int]:
    """Choose the moments of the frames [steps], and the duration of a frame [ms]."""
    frames = max(side.frames for side in sides)
    moments, per_step = sample_moments(frames, MAX_FRAMES, max_per_step=_MAX_FRAMES_PER_STEP)
    frame_ms = int(np.clip(round(100 / (STEPS_PER_SECOND * per_step)) * 10, _MIN_FRAME_MS, _MAX_FRAME_MS))
    return moments.tolist(), frame_ms


def _crop_to_even_size(image: Image.Image) -> Image.Image:
    """Remove the last column and row of pixels if their number is odd, because H.264 needs even numbers."""
    return image.crop((0, 0, image.width // 2 * 2, image.height // 2 * 2))


class _InchGrid:
    """Places axes and texts on a figure, in inches from the upper left corner."""

    def __init__(self, figure: Figure, width: float, height: float) -> None:
        self._figure, self._width, self._height = figure, width, height

    def add_axes(self, left: float, top: float, width: float, height: float) -> Axes:
        bottom = self._height - top - height
        box = (left / self._width, bottom / self._height, width / self._width, height / self._height)
        return self._figure.add_axes(box)

    def write(
        self, left: float, top: float, text: str, *, align: str = "left", size: float = 8.5, weight: str = "bold",
        color: str | None = None,
    ) -> Text:  # fmt: skip
        x, y = left / self._width, 1 - top / self._height
        return self._figure.text(x, y, text, fontsize=size, ha=align, va="baseline", fontweight=weight, color=color)


class _Strip:
    """The entries of the state over time with a cursor, for states that cannot be drawn as units."""

    def __init__(self, ax: Axes, side: EpisodeView) -> None:
        values = side.scene.values
        self._last_frame = side.frames - 1
        ax.set(xticks=[], yticks=[])
        if values is not None and values.size:
            levels = quantize_values(values).T.astype(np.float64)
            levels[levels == MISSING] = np.nan
            colors = LinearSegmentedColormap.from_list("levels", list(VIRIDIS))
            ax.imshow(levels, aspect="auto", cmap=colors, vmin=0, vmax=254, interpolation="nearest")
            names = name_entries(side.scene)
            if len(names) <= _MAX_ENTRY_NAMES:
                labels = [replace_unprintable(name)[:_MAX_ENTRY_LENGTH] for name in names]
                ax.set_yticks(range(len(names)), labels, fontsize=6)
                ax.tick_params(axis="y", direction="in", pad=-4, length=0)
                for label in ax.get_yticklabels():
                    label.set(horizontalalignment="left", color="white")
        self._cursor = ax.axvline(0, color="white", linewidth=1.6)
        self._edge = ax.axvline(0, color="black", linewidth=0.7)
        self.moving: list[Artist] = [self._cursor, self._edge]

    def move(self, frame: float) -> None:
        x = min(frame, self._last_frame)
        for line in (self._cursor, self._edge):
            line.set_xdata([x, x])


class _ValueCursor:
    """The time cursor of a panel, a dot on each line, and the values at the cursor as text."""

    def __init__(self, ax: Axes, panel: Panel | None, n_sides: int) -> None:
        self._panel, self._n_sides = panel, n_sides
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
        values_by_side: list[list[str]] = [[] for _ in range(self._n_sides)]
        for line, dot in zip(self._panel.lines, self._dots, strict=True):
            t = min(int(frame), len(line.y) - 1)
            has_value = 0 <= int(frame) <= len(line.y) and t >= 0 and np.isfinite(line.y[t])
            dot.set_data([line.x[t]] if has_value else [], [line.y[t]] if has_value else [])
            if has_value:
                side = NAMES.index(line.group) if line.group in NAMES else 0
                values_by_side[side].append(f"{line.y[t]:.3g}")
        texts = [
            f"{NAMES[side]} {', '.join(values) or '–'}" if self._n_sides > 1 else ", ".join(values)
            for side, values in enumerate(values_by_side)
        ]
        self._text.set_text("   ".join(texts))


def _draw_panel(ax: Axes, panel: Panel) -> None:
    for line in panel.lines:
        ax.plot(line.x, line.y, color=line.color, linewidth=1.2, linestyle=(0, (4, 2)) if line.dash else "-")
    if panel.range:
        ax.set_ylim(*panel.range)
    elif panel.from_zero:
        ax.set_ylim(bottom=0)
    ax.grid(True, linewidth=0.5)
    unit = f" [{panel.unit}]" if panel.unit else ""
    ax.text(0, 1.06, format_mathtext(panel.title + unit), transform=ax.transAxes, fontsize=8, va="bottom")


def _draw_actions(ax: Axes, sides: Sequence[EpisodeView]) -> None:
    """Draw one row per agent and one cell per step, in the same colors as on the page, and a legend of the colors."""
    names: list[str] = []
    groups: dict[str, str] = {}
    for number, side in enumerate(sides):
        if side.actions is None:
            continue
        styles = style_actions(side.action_names, count_actions(side))
        colors = np.array([to_rgba(style.color) if style.color else (0, 0, 0, 0) for style in styles])
        steps, agents = side.actions.shape
        top = len(names)
        names += [f"{NAMES[number] if len(sides) > 1 else ''}{agent}" for agent in range(agents)]
        is_valid = (side.actions >= 0) & (side.actions < len(colors))
        cells = np.where(is_valid[..., None], colors[np.where(is_valid, side.actions, 0)], 0.0)
        extent = (0, steps, top + agents - 0.5, top - 0.5)
        ax.imshow(cells.transpose(1, 0, 2), aspect="auto", extent=extent, interpolation="nearest")
        used = set(side.actions[is_valid].tolist())
        groups |= {style.group: style.color for k, style in enumerate(styles) if style.color and k in used}
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.set_xlim(0, max(1, max(side.frames for side in sides) - 1))
    has_labels = len(names) <= _MAX_AGENT_LABELS
    ax.set_yticks(range(len(names)) if has_labels else [], names if has_labels else [], fontsize=6)
    ax.text(0, 1.06, "actions", transform=ax.transAxes, fontsize=8, va="bottom")
    handles = [Patch(color=color, label=group) for group, color in groups.items()]
    ax.legend(
        handles=handles, loc="lower right", bbox_to_anchor=(1.0, 0.98), ncols=4, fontsize=5.5, frameon=False,
        handlelength=0.9, handleheight=0.9, handletextpad=0.4, columnspacing=0.8, borderpad=0, labelspacing=0.1,
    )  # fmt: skip


def _draw_frames(
    sides: Sequence[EpisodeView], moments: Sequence[float], mode: Mode, on_progress: Progress | None
) -> Iterator[Image.Image]:
    """Draw the moving artists of each frame on the same background."""
    with mpl.rc_context(make_style(mode)):
        board = EpisodeFigure(sides, animated=True)
        board.figure.set_dpi(GIF_DPI)
        canvas = FigureCanvasAgg(board.figure)
        canvas.draw()
        background = canvas.copy_from_bbox(board.figure.bbox)
    for number, moment in enumerate(moments, 1):
        canvas.restore_region(background)
        with mpl.rc_context(make_style(mode)):
            board.move(moment)
            for artist in board.moving:
                board.figure.draw_artist(artist)
        yield Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3].copy())
        if on_progress:
            on_progress(number, len(moments))


def _reduce_colors(images: Iterator[Image.Image]) -> Iterator[Image.Image]:
    """Reduce each image to the colors of the first one."""
    first = next(images)
    palette = first.quantize(COLORS, dither=Image.Dither.NONE)
    for image in chain([first], images):
        yield image.quantize(palette=palette, dither=Image.Dither.NONE)
