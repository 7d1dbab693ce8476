"""Draw one or two episodes with Matplotlib: fields or strips above, values below.

A field shows the units of an episode (agents, opponents, ball). A strip shows the entries of the state as colors over
time, if the environment has no units. Below are panels with curves such as the reward, and a panel with the actions.

`draw_image` draws one moment, and `draw_frames` draws the images of an animation. For an animation, the fixed artists
are drawn once, and only the moving artists are drawn for each image. The units are a few collections whose arrays
change, because single shapes (several hundred for forty units) would be slow to draw.

Array axes: T frames, U units. Widths of lines, radii and offsets of marks are in pixels, as in the player.
"""

import io
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import ceil
from typing import Literal

import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import Collection, LineCollection, PathCollection, PolyCollection
from matplotlib.colors import LinearSegmentedColormap, to_rgba, to_rgba_array
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Patch
from matplotlib.path import Path
from matplotlib.text import Text
from matplotlib.textpath import TextPath
from matplotlib.transforms import Affine2D
from numpy.typing import NDArray
from PIL import Image

from app.figures.kinds.chart import Chart, Panel
from app.figures.mathtext import format_mathtext, replace_unprintable
from app.figures.named.trajectories import EPISODE_NAMES
from app.figures.render.matplotlib_style import make_style
from app.figures.theme import SPEED_COLOR, VIRIDIS, Mode
from app.replay.layout import (
    NEUTRAL_TEAM,
    OPPONENT_TEAM,
    STYLE,
    TEAM_COLORS,
    EpisodeLayout,
    Floats,
    Moment,
    lay_out_episodes,
    mix_frames,
)
from app.replay.replay import MISSING, EpisodeView, count_actions, join_values, list_action_groups, style_actions
from emtc_core.envs.scene import Scene

Color = tuple[float, float, float, float]
"""Red, green, blue and opacity, from 0 to 1."""

_PX_PER_INCH = 100
_PNG_DPI = 200
_POINTS_PER_PX = 72 / _PX_PER_INCH
# Sizes of the figure in inches. The keys of the dictionaries are the number of episodes.
_FIGURE_WIDTH = {1: 7.2, 2: 10.0}
_MAX_FIELD_HEIGHT = {1: 3.6, 2: 2.8}
_MARGIN = 0.15
_FIELD_GAP = 0.25
_HEADER_HEIGHT = 0.6
_STRIP_HEIGHT = 2.4
_LEGEND_HEIGHT = 0.48
_PANEL_HEIGHT = 0.75
_PANEL_TITLE_HEIGHT = 0.34
_FOOTER_HEIGHT = 0.45
_PANEL_LEFT = 0.62
"""Space for the numbers at the left of a panel."""
_PANEL_RIGHT = 0.1
# Limits and counts:
_MAX_PANEL_COLUMNS = {1: 2, 2: 3}
_MAX_LEGEND_LINE_LENGTH = 110
_MAX_ENTRY_NAMES = 16
"""Entries of the state have names if there are at most this many."""
_MAX_ENTRY_NAME_LENGTH = 14
_MAX_AGENT_LABELS = 8
"""Rows of the panel of actions have labels if there are at most this many."""
_N_CORNERS = 28
"""Number of corners of the polygon of a unit."""
_N_ARC_POINTS = 33
_GRAY = "#8a8f98"


def draw_image(
    sides: Sequence[EpisodeView],
    *,
    frame: float,
    format: Literal["svg", "png"],
    mode: Mode = "light",
    sources: Sequence[str] = (),
) -> bytes:
    """Draw one moment as a file.

    Args:
        sides: One or two episodes.
        frame: The moment; the last frame if it is beyond the end.
        format: Vectors or pixels.
        mode: Light or dark.
        sources: Descriptions of the runs, for the metadata of the file.
    """
    last_frame = max(side.frames for side in sides) - 1
    frame = min(max(float(frame), 0.0), float(last_frame))
    with mpl.rc_context(make_style(mode)):
        episode_figure = EpisodeFigure(sides)
        episode_figure.move(frame)
        title = replace_unprintable(f"{episode_figure.title}, t = {frame:g}")
        keywords = [replace_unprintable(source) for source in sources]
        file = io.BytesIO()
        if format == "svg":
            metadata = {"Title": title, "Keywords": keywords, "Date": None}
            episode_figure.figure.savefig(file, format="svg", metadata=metadata)
        else:
            metadata = {"Title": title, "Keywords": "; ".join(keywords)}
            episode_figure.figure.savefig(file, format="png", metadata=metadata, dpi=_PNG_DPI)
    return file.getvalue()


def draw_frames(sides: Sequence[EpisodeView], moments: Sequence[float], *, mode: Mode) -> Iterator[Image.Image]:
    """Draw the images of an animation.

    Args:
        sides: One or two episodes.
        moments: The moment of each image [frames].
        mode: Light or dark.
    """
    with mpl.rc_context(make_style(mode)):
        episode_figure = EpisodeFigure(sides, is_animated=True)
        figure = episode_figure.figure
        figure.set_dpi(_PX_PER_INCH)
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        background = canvas.copy_from_bbox(figure.bbox)
    for moment in moments:
        canvas.restore_region(background)
        with mpl.rc_context(make_style(mode)):
            episode_figure.move(moment)
            for artist in episode_figure.moving:
                figure.draw_artist(artist)
        yield Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3].copy())


class EpisodeFigure:
    """A figure of one or two episodes that can be moved to any moment.

    `moving` lists the artists that change over time, in drawing order. If `is_animated`, drawing the figure omits them.
    """

    def __init__(self, sides: Sequence[EpisodeView], *, is_animated: bool = False) -> None:
        self.title = " compared with ".join(side.title for side in sides)
        self._sides = sides
        layouts = lay_out_episodes(sides)
        chart = join_values(sides)
        n_sides = len(sides)
        # Compute the size of the figure [inch].
        has_actions = any(count_actions(side) for side in sides)
        n_panels = len(chart.panels) + has_actions
        n_rows = ceil(n_panels / _MAX_PANEL_COLUMNS[n_sides])
        width = _FIGURE_WIDTH[n_sides]
        field_width = (width - 2 * _MARGIN - (n_sides - 1) * _FIELD_GAP) / n_sides
        field_height = max(_compute_field_height(layout, field_width, n_sides) for layout in layouts)
        legend_height = _LEGEND_HEIGHT if any(layout.units for layout in layouts) else 0
        panels_top = _HEADER_HEIGHT + field_height + legend_height
        panels_height = _MARGIN
        if n_panels:
            panels_height = n_rows * (_PANEL_HEIGHT + _PANEL_TITLE_HEIGHT) + _FOOTER_HEIGHT
        height = panels_top + panels_height
        self.figure = Figure(figsize=(width, height))
        self._grid = _InchGrid(self.figure, width, height)
        self._parts: list[FieldArtist | _Strip | _ValueCursor] = []
        # Add a field or a strip for each episode, then the step number, then the panels.
        for number, layout in enumerate(layouts):
            left = _MARGIN + number * (field_width + _FIELD_GAP)
            title = format_mathtext(replace_unprintable(layout.title))
            self._grid.write(left, 0.42, f"{EPISODE_NAMES[number]}   {title}" if n_sides > 1 else title)
            ax = self._grid.add_axes(left, _HEADER_HEIGHT, field_width, field_height)
            if layout.units:
                size_px = (field_width * _PX_PER_INCH, field_height * _PX_PER_INCH)
                self._parts.append(FieldArtist(ax, layout, size_px))
                self._write_legend(layout, left, _HEADER_HEIGHT + field_height)
            else:
                self._parts.append(_Strip(ax, layout))
        self._step_text = self._grid.write(width - _MARGIN, 0.2, "", align="right")
        if n_panels:
            n_columns = ceil(n_panels / n_rows)  # as in the player: all rows have about the same number of panels
            self._add_panels(chart, n_panels, n_columns, panels_top, width)
        self.moving: list[Artist] = [artist for part in self._parts for artist in part.moving] + [self._step_text]
        for artist in self.moving:
            artist.set_animated(is_animated)

    def move(self, frame: float) -> None:
        """Show a moment of the longer episode. After the end of the shorter one, its last frame is shown."""
        for part in self._parts:
            part.move(frame)
        self._step_text.set_text(f"t = {int(frame)}")

    def _write_legend(self, layout: EpisodeLayout, left: float, top: float) -> None:
        """Write the teams and the meaning of the marks below a field.

        Args:
            layout: The episode.
            left: Left edge of the field [inch].
            top: Lower edge of the field, from the top of the figure [inch].
        """
        # All numbers are in inches, except the font sizes.
        x = left
        for team in layout.legend:
            self._grid.write(x, top + 0.16, "■" if team.is_square else "●", size=7, color=team.color, weight="normal")
            self._grid.write(x + 0.12, top + 0.16, team.name, size=7, weight="normal")
            x += 0.3 + 0.055 * len(team.name)  # estimated width of the symbol and the name
        for row, text in enumerate(textwrap.wrap(layout.scene.note, _MAX_LEGEND_LINE_LENGTH)[:2]):
            self._grid.write(left, top + 0.31 + 0.13 * row, replace_unprintable(text), size=6, weight="normal")

    def _add_panels(self, chart: Chart, n_panels: int, n_columns: int, top: float, width: float) -> None:
        """Add the panels of the values, row by row. If there is one more panel, it shows the actions.

        Args:
            chart: The values.
            n_panels: Number of panels.
            n_columns: Number of panels per row.
            top: Upper edge of the first row [inch].
            width: Width of the figure [inch].
        """
        column_width = (width - _MARGIN) / n_columns
        last_frame = max(side.frames for side in self._sides) - 1
        for index in range(n_panels):
            row, column = divmod(index, n_columns)
            ax = self._grid.add_axes(
                column * column_width + _PANEL_LEFT,
                top + row * (_PANEL_HEIGHT + _PANEL_TITLE_HEIGHT) + _PANEL_TITLE_HEIGHT,
                column_width - _PANEL_LEFT - _PANEL_RIGHT,
                _PANEL_HEIGHT,
            )
            is_lowest = index + n_columns >= n_panels  # no panel is below this one
            ax.set_xlim(0, max(1, last_frame))
            ax.tick_params(labelsize=7, length=2, labelbottom=is_lowest)
            if is_lowest:
                ax.set_xlabel(format_mathtext(chart.x_label), fontsize=7, labelpad=1)
            panel = chart.panels[index] if index < len(chart.panels) else None
            if panel is not None:
                _draw_panel(ax, panel)
            else:
                _draw_actions(ax, self._sides)
            self._parts.append(_ValueCursor(ax, panel, len(self._sides)))


class FieldArtist:
    """The field and the units of an episode on axes in pixels. `moving` lists the artists that change over time."""

    def __init__(self, ax: Axes, layout: EpisodeLayout, size_px: tuple[float, float]) -> None:
        """Draw the field and create the moving artists without content.

        Args:
            ax: The axes.
            layout: The layout of the episode.
            size_px: Width and height of the axes [px].
        """
        scene = layout.scene
        x0, y0, x1, y1 = scene.bounds
        scale = min(size_px[0] / (x1 - x0), size_px[1] / (y1 - y0))  # [px per field unit]
        ax.set_facecolor((0.5, 0.5, 0.5, 0.08))
        for spine in ax.spines.values():
            spine.set_visible(False)
        _draw_ground(ax, scene, scale)
        ax.set(xlim=(0, (x1 - x0) * scale), ylim=(0, (y1 - y0) * scale), aspect="equal", xticks=[], yticks=[])
        self._position = (scene.position.astype(np.float64) - (x0, y0)) * scale  # [T, U, 2] [px]
        self._layout = replace(layout, scene=replace(scene, position=self._position))
        self._radius = np.maximum(scene.radius.astype(np.float64) * scale, layout.min_radius_px)  # [U] [px]
        self._colors = to_rgba_array(TEAM_COLORS)[scene.team]  # [U, 4]
        self._is_neutral = scene.team == NEUTRAL_TEAM
        self._outlines = _make_outlines(scene.team == OPPONENT_TEAM)
        self._text_color = np.array(to_rgba(ax.xaxis.label.get_color()))
        self._background = np.array(to_rgba(ax.figure.get_facecolor()))

        self._trails = _make_lines(STYLE.trail_width)
        self._pass_lines = _make_lines(STYLE.pass_width)
        self._pass_heads = PolyCollection([], linewidths=0)
        self._aim_lines = _make_lines(STYLE.aim_width)
        self._aim_lines.set_linestyle((0, [length / STYLE.aim_width for length in STYLE.aim_dash]))
        self._aim_heads = PolyCollection([], linewidths=0)
        self._crosses = _make_lines(STYLE.cross_width)
        self._bodies = PolyCollection([])
        self._rings = _make_lines(STYLE.ring_width)
        self._carrier_ring = _make_lines(STYLE.ring_width)
        self._carrier_ring.set_color(tuple(self._text_color))
        self._death_rings = _make_lines(STYLE.death_width)
        labels = _make_labels(layout.labels, np.clip(self._radius, *STYLE.label_sizes))
        self._labels = PathCollection(labels, offset_transform=ax.transData, linewidths=0)
        outline_width = _POINTS_PER_PX * STYLE.label_outline
        self._label_outlines = PathCollection(
            labels, offset_transform=ax.transData, facecolors="none", linewidths=outline_width, joinstyle="round"
        )
        self._neutral_bodies = PolyCollection([])  # for example a ball
        # In drawing order: the label of a unit is drawn over its rings, and the ball over the players.
        artists: tuple[Collection, ...] = (
            self._trails, self._pass_lines, self._pass_heads, self._aim_lines, self._aim_heads, self._crosses,
            self._bodies, self._rings, self._carrier_ring, self._death_rings, self._label_outlines, self._labels,
            self._neutral_bodies,
        )  # fmt: skip
        for number, artist in enumerate(artists):
            ax.add_collection(artist, autolim=False)
            artist.set_zorder(3 + number)
        px_to_display = Affine2D().scale(1 / _PX_PER_INCH) + ax.figure.dpi_scale_trans
        self._labels.set_transform(px_to_display)
        self._label_outlines.set_transform(px_to_display)
        self.moving: list[Artist] = list(artists)

    def move(self, frame: float) -> None:
        """Draw the units at a moment. After the last frame, the last frame is shown."""
        frame = min(max(frame, 0.0), self._layout.frames - 1.0)
        moment = mix_frames(self._layout, frame)
        self._draw_trails(int(frame), moment)
        self._draw_passes(frame)
        self._draw_aims(int(frame), moment)
        self._draw_crosses(moment)
        self._draw_bodies(moment)
        if self._layout.has_rings:
            self._draw_rings(moment)
        self._draw_carrier(int(frame), moment)
        self._draw_deaths(moment)
        self._draw_labels(moment)

    def _draw_trails(self, t: int, moment: Moment) -> None:
        """Draw the last steps of each living unit as lines that fade toward the past."""
        first = max(0, t - STYLE.trail_steps + 1)
        points = np.concatenate([self._position[first : t + 1], moment.position[None]])  # [steps + 1, U, 2]
        lines = np.stack([points[:-1], points[1:]], axis=2)  # [steps, U, 2, 2]
        age = t - np.arange(first, t + 1)  # [steps]
        opacity = STYLE.trail_opacity * (1 - age[:, None] / STYLE.trail_steps) * moment.presence
        self._trails.set_segments(list(lines.reshape(-1, 2, 2)))
        self._trails.set_color(_fade(np.tile(self._colors, (len(age), 1)), opacity.ravel()))

    def _draw_passes(self, frame: float) -> None:
        """Draw the passes of the last steps, and a pass in flight, from the passing to the receiving player."""
        first_frame, last_frame = self._layout.passes[:, :2].T
        is_visible = (frame >= first_frame) & (frame <= last_frame + STYLE.pass_steps)
        first_frame, last_frame, passer, receiver = self._layout.passes[is_visible].T
        age = np.maximum(0, frame - last_frame)  # 0 for a pass in flight
        opacity = STYLE.pass_opacity * (1 - age / (STYLE.pass_steps + 1))
        start = self._position[first_frame, passer]
        end = self._position[last_frame, receiver]
        self._draw_arrows(self._pass_lines, self._pass_heads, start, end, passer, receiver, opacity)

    def _draw_aims(self, t: int, moment: Moment) -> None:
        """Draw an arrow from each unit to its target."""
        target = self._layout.target[t]
        units = np.flatnonzero(target >= 0)
        opacity = STYLE.aim_opacity * moment.presence[units]
        start = moment.position[units]
        end = moment.position[target[units]]
        self._draw_arrows(self._aim_lines, self._aim_heads, start, end, units, target[units], opacity)

    def _draw_arrows(
        self,
        lines: LineCollection,
        heads: PolyCollection,
        start: Floats,
        end: Floats,
        units: NDArray[np.integer],
        targets: NDArray[np.integer],
        opacity: Floats,
    ) -> None:
        """Draw arrows in the colors of units. An arrow ends at the edge of its target.

        An arrow that would start inside this edge is omitted.

        Args:
            lines: Artist of the lines.
            heads: Artist of the heads.
            start: Start of each arrow, [N, 2] [px].
            end: Center of the target of each arrow, [N, 2] [px].
            units: Indices of the units whose colors the arrows have, [N].
            targets: Indices of the targets, [N].
            opacity: Opacities, [N].
        """
        distance = np.hypot(*(end - start).T)
        length = distance - self._radius[targets] - STYLE.arrow_clearance
        is_drawn = length > 0
        start = start[is_drawn]
        end = end[is_drawn]
        distance = distance[is_drawn]
        length = length[is_drawn]
        direction = (end - start) / distance[:, None]
        normal = np.stack([-direction[:, 1], direction[:, 0]], axis=1)
        line_end = start + direction * length[:, None]
        # The head is a triangle around the end of the line.
        front = line_end + STYLE.arrow_tip * direction
        back = line_end - STYLE.arrow_back * direction
        half_width = STYLE.arrow_half_width * normal
        colors = _fade(self._colors[units[is_drawn]], opacity[is_drawn])
        lines.set_segments(list(np.stack([start, line_end], axis=1)))
        lines.set_color(colors)
        heads.set_verts(list(np.stack([front, back + half_width, back - half_width], axis=1)))
        heads.set_facecolor(colors)

    def _draw_crosses(self, moment: Moment) -> None:
        """Draw a cross at the position of each dead unit."""
        diagonals = STYLE.cross_size * np.array([[[-1, -1], [1, 1]], [[1, -1], [-1, 1]]])  # [lines, ends, xy]
        lines = moment.position[:, None, None] + self._radius[:, None, None, None] * diagonals
        opacity = STYLE.cross_opacity * (1 - moment.presence)
        self._crosses.set_segments(list(lines.reshape(-1, 2, 2)))
        self._crosses.set_color(_fade(self._colors.repeat(2, axis=0), opacity.repeat(2)))

    def _draw_bodies(self, moment: Moment) -> None:
        """Draw the units. The edge of a unit that was hit is thick and orange."""
        outlines = moment.position[:, None] + self._radius[:, None, None] * self._outlines  # [U, corners, 2]
        hit = moment.hit[:, None]
        edge_colors = self._background * (1 - hit) + np.array(to_rgba(STYLE.hit_color)) * hit
        edge_widths = STYLE.body_edge + (STYLE.hit_width - STYLE.body_edge) * moment.hit
        for bodies, is_drawn in ((self._bodies, ~self._is_neutral), (self._neutral_bodies, self._is_neutral)):
            bodies.set_verts(list(outlines[is_drawn]))
            bodies.set_facecolor(_fade(self._colors[is_drawn], moment.presence[is_drawn]))
            bodies.set_edgecolor(_fade(edge_colors[is_drawn], moment.presence[is_drawn]))
            bodies.set_linewidth((_POINTS_PER_PX * edge_widths[is_drawn]).tolist())

    def _draw_rings(self, moment: Moment) -> None:
        """Draw health as an arc around each unit, clockwise from the top, and shield as an outer arc."""
        opacity = moment.presence * ~self._is_neutral
        track_color = np.array((0.5, 0.5, 0.5, 0.4))
        shield_color = np.array(to_rgba(SPEED_COLOR))
        rings = (  # length as a fraction of the circle, distance from the edge of the unit, color
            (np.ones_like(opacity), STYLE.health_offset, track_color),  # the whole circle under the arc of health
            (moment.health, STYLE.health_offset, self._text_color),
            (moment.shield, STYLE.shield_offset, shield_color),
        )
        arcs = [_make_arcs(moment.position, self._radius + offset, fraction) for fraction, offset, _ in rings]
        colors = np.concatenate([np.tile(color, (len(opacity), 1)) for *_, color in rings])
        self._rings.set_segments(list(np.concatenate(arcs)))
        self._rings.set_color(_fade(colors, np.tile(opacity, len(rings))))

    def _draw_carrier(self, t: int, moment: Moment) -> None:
        """Draw a ring around the player who has the ball."""
        carrier = self._layout.scene.carrier
        unit = -1 if carrier is None else int(carrier[t])
        units = np.array([unit] if unit >= 0 else [], int)  # one unit or none
        arcs = _make_arcs(moment.position[units], self._radius[units] + STYLE.carrier_offset)
        self._carrier_ring.set_segments(list(arcs))

    def _draw_deaths(self, moment: Moment) -> None:
        """Draw a ring that grows and fades around each unit that dies."""
        units = np.flatnonzero((moment.death > 0) & ~self._is_neutral)
        death = moment.death[units]
        first_size, last_size = STYLE.death_sizes
        sizes = last_size + (first_size - last_size) * death  # `death` decreases from 1 to 0
        self._death_rings.set_segments(list(_make_arcs(moment.position[units], self._radius[units] * sizes)))
        self._death_rings.set_color(_fade(np.tile(to_rgba(STYLE.hit_color), (len(units), 1)), death))

    def _draw_labels(self, moment: Moment) -> None:
        """Draw the label of each unit in white, with an outline in the color of its team."""
        for labels in (self._labels, self._label_outlines):
            labels.set_offsets(moment.position)
        self._labels.set_facecolor(_fade(np.ones_like(self._colors), moment.presence))
        self._label_outlines.set_edgecolor(_fade(self._colors, moment.presence))


class _Strip:
    """The entries of the state over time with a cursor, for states that cannot be drawn as units."""

    def __init__(self, ax: Axes, layout: EpisodeLayout) -> None:
        self._last_frame = layout.frames - 1
        ax.set(xticks=[], yticks=[])
        if layout.levels is not None and layout.levels.size:
            levels = layout.levels.T.astype(np.float64)
            levels[levels == MISSING] = np.nan
            colors = LinearSegmentedColormap.from_list("levels", list(VIRIDIS))
            ax.imshow(levels, aspect="auto", cmap=colors, vmin=0, vmax=254, interpolation="nearest")
            if len(layout.entries) <= _MAX_ENTRY_NAMES:
                labels = [replace_unprintable(name)[:_MAX_ENTRY_NAME_LENGTH] for name in layout.entries]
                ax.set_yticks(range(len(labels)), labels, fontsize=6)
                ax.tick_params(axis="y", direction="in", pad=-4, length=0)
                for label in ax.get_yticklabels():
                    label.set(horizontalalignment="left", color="white")
        # A black line on a wider white line is visible on all colors.
        self._white_cursor = ax.axvline(0, color="white", linewidth=1.6)
        self._black_cursor = ax.axvline(0, color="black", linewidth=0.7)
        self.moving: list[Artist] = [self._white_cursor, self._black_cursor]

    def move(self, frame: float) -> None:
        x = min(frame, self._last_frame)
        for line in (self._white_cursor, self._black_cursor):
            line.set_xdata([x, x])


class _ValueCursor:
    """The time cursor of a panel, a dot on each line, and the values at the cursor as text."""

    def __init__(self, ax: Axes, panel: Panel | None, n_sides: int) -> None:
        self._lines = panel.lines if panel is not None else ()
        self._n_sides = n_sides
        self._cursor = ax.axvline(0, color=ax.xaxis.label.get_color(), linewidth=1.1)
        self._dots = [ax.plot([], [], "o", color=line.color, markersize=3.5)[0] for line in self._lines]
        self._text = ax.text(1, 1.06, "", transform=ax.transAxes, fontsize=7, ha="right", va="bottom")
        self.moving: list[Artist] = [self._cursor, *self._dots, self._text]

    def move(self, frame: float) -> None:
        self._cursor.set_xdata([frame, frame])
        values_by_side: list[list[str]] = [[] for _ in range(self._n_sides)]
        for line, dot in zip(self._lines, self._dots, strict=True):
            # A line has one value per step, which is one less than the number of frames. At the last frame, the value
            # of the last step is shown.
            t = min(int(frame), len(line.y) - 1)
            has_value = t >= 0 and int(frame) <= len(line.y) and np.isfinite(line.y[t])
            if not has_value:
                dot.set_data([], [])
                continue
            dot.set_data([line.x[t]], [line.y[t]])
            side_number = EPISODE_NAMES.index(line.group) if line.group in EPISODE_NAMES else 0
            values_by_side[side_number].append(f"{line.y[t]:.3g}")
        texts = [", ".join(values) for values in values_by_side]
        if self._n_sides > 1 and self._lines:
            texts = [f"{name} {text or '–'}" for name, text in zip(EPISODE_NAMES, texts, strict=True)]
        self._text.set_text("   ".join(texts))


class _InchGrid:
    """Adds axes and texts to a figure at positions in inches from the upper left corner."""

    def __init__(self, figure: Figure, width: float, height: float) -> None:
        self._figure = figure
        self._width = width
        self._height = height

    def add_axes(self, left: float, top: float, width: float, height: float) -> Axes:
        bottom = self._height - top - height
        box = (left / self._width, bottom / self._height, width / self._width, height / self._height)
        return self._figure.add_axes(box)

    def write(
        self, left: float, top: float, text: str, *, align: str = "left", size: float = 8.5, weight: str = "bold",
        color: str | None = None,
    ) -> Text:  # fmt: skip
        x = left / self._width
        y = 1 - top / self._height
        return self._figure.text(x, y, text, fontsize=size, ha=align, va="baseline", fontweight=weight, color=color)


def _compute_field_height(layout: EpisodeLayout, width: float, n_sides: int) -> float:
    """Compute the height of a field or strip, given its width [inch]."""
    max_height = _MAX_FIELD_HEIGHT[n_sides]
    if not layout.units:
        return min(max_height, _STRIP_HEIGHT)
    x0, y0, x1, y1 = layout.scene.bounds
    return min(max_height, width * (y1 - y0) / (x1 - x0))


def _draw_panel(ax: Axes, panel: Panel) -> None:
    """Draw the lines, the limits and the title of a panel."""
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
    for number, side in enumerate(sides):
        if side.actions is None:
            continue
        styles = style_actions(side.action_names, count_actions(side))
        colors = np.array([to_rgba(style.color) if style.color else (0, 0, 0, 0) for style in styles])
        n_steps, n_agents = side.actions.shape
        top = len(names)
        side_name = EPISODE_NAMES[number] if len(sides) > 1 else ""
        names += [f"{side_name}{agent}" for agent in range(n_agents)]
        is_valid = (side.actions >= 0) & (side.actions < len(colors))
        valid_actions = np.where(is_valid, side.actions, 0)
        cells = np.where(is_valid[..., None], colors[valid_actions], 0.0)  # [steps, agents, 4]
        extent = (0, n_steps, top + n_agents - 0.5, top - 0.5)
        ax.imshow(cells.transpose(1, 0, 2), aspect="auto", extent=extent, interpolation="nearest")
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.set_xlim(0, max(1, max(side.frames for side in sides) - 1))
    if len(names) <= _MAX_AGENT_LABELS:
        ax.set_yticks(range(len(names)), names, fontsize=6)
    else:
        ax.set_yticks([])
    ax.text(0, 1.06, "actions", transform=ax.transAxes, fontsize=8, va="bottom")
    ax.legend(
        handles=[Patch(color=color, label=group) for group, color in list_action_groups(sides)],
        loc="lower right", bbox_to_anchor=(1.0, 0.98), ncols=4, fontsize=5.5, frameon=False,
        handlelength=0.9, handleheight=0.9, handletextpad=0.4, columnspacing=0.8, borderpad=0, labelspacing=0.1,
    )  # fmt: skip


def _draw_ground(ax: Axes, scene: Scene, scale: float) -> None:
    """Draw the cells that are not walkable, and the markings of the field. `scale` is in pixels per field unit."""
    x0, y0, _, _ = scene.bounds
    if scene.walkable is not None:
        blocked = np.where(scene.walkable.T, np.nan, 1.0)
        n_columns, n_rows = scene.walkable.shape
        gray = LinearSegmentedColormap.from_list("blocked", [(0.5, 0.5, 0.5, 0.25)] * 2)
        extent = (-x0 * scale, (n_columns - x0) * scale, -y0 * scale, (n_rows - y0) * scale)
        ax.imshow(blocked, extent=extent, origin="lower", cmap=gray, interpolation="nearest")
    if scene.markings is not None:
        lines = (scene.markings.reshape(-1, 2, 2) - (x0, y0)) * scale
        ax.add_collection(LineCollection(list(lines), colors=_GRAY, linewidths=1), autolim=False)


def _make_lines(width_px: float) -> LineCollection:
    return LineCollection([], linewidths=_POINTS_PER_PX * width_px)


def _make_outlines(is_square: NDArray[np.bool_]) -> Floats:
    """Make the corners of units of radius 1, [U, corners, 2]. The four corners of a square are repeated."""
    angle = np.linspace(0, 2 * np.pi, _N_CORNERS, endpoint=False)
    circle = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    square_corners = STYLE.square_size * np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]])
    square = square_corners.repeat(_N_CORNERS // 4, axis=0)
    return np.where(is_square[:, None, None], square, circle)


def _make_labels(labels: Sequence[str], sizes: Floats) -> list[Path]:
    """Convert each label to a path, centered at the origin. `sizes` are the font sizes [px]."""
    font = FontProperties(weight="bold")
    paths: list[Path] = []
    for label, size in zip(labels, sizes.tolist(), strict=True):
        if not label:  # a TextPath of an empty text raises an error
            paths.append(Path(np.empty((0, 2))))
            continue
        path = TextPath((0, 0), label, size=size, prop=font)
        box = path.get_extents()
        to_center = Affine2D().translate(-(box.x0 + box.x1) / 2, -(box.y0 + box.y1) / 2)
        paths.append(path.transformed(to_center))
    return paths


def _make_arcs(center: Floats, radius: Floats, fraction: Floats | None = None) -> Floats:
    """Make arcs [N, points, 2], clockwise from the top.

    Args:
        center: Centers [N, 2].
        radius: Radii [N].
        fraction: Lengths as fractions of the circle [N]; None: whole circles.
    """
    length = np.ones(len(radius)) if fraction is None else np.clip(fraction, 0, 1)
    angle = np.pi / 2 - 2 * np.pi * length[:, None] * np.linspace(0, 1, _N_ARC_POINTS)
    return center[:, None] + radius[:, None, None] * np.stack([np.cos(angle), np.sin(angle)], axis=2)


def _fade(colors: Floats, factor: Floats) -> list[Color]:
    """Multiply the opacity of colors [N, 4] by a factor [N]."""
    opacity = colors[:, 3] * np.clip(factor, 0, 1)
    return [(r, g, b, a) for (r, g, b), a in zip(colors[:, :3].tolist(), opacity.tolist(), strict=True)]
