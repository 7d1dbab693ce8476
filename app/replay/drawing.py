"""One or two episodes → an animated GIF, or one frame of them as SVG. Drawn with Matplotlib, without a browser.

`board` lays the picture out and moves it; this file writes it. An animation draws what stands still once and only
what moves for each frame.
"""

import io
from collections.abc import Callable, Iterator, Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from PIL import Image

from app.figures.render.matplotlib_view import make_style
from app.figures.render.symbols import make_printable
from app.figures.theme import Mode
from app.replay.board import Board
from app.replay.frames import list_moments
from app.replay.side import Side

MOST_FRAMES = 200
GIF_DPI = 100
COLORS = 128
STEPS_PER_SECOND = 8
_MOST_PER_STEP = 3
_SHORTEST_MS, _LONGEST_MS, _LAST_MS = 40, 120, 1200
"""How long a frame may stand; browsers slow down what is faster."""

Progress = Callable[[int, int], None]


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
