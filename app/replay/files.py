"""Write one or two episodes as a file (HTML, GIF, MP4, SVG, PNG), for `emtc export --replay` and the Replay page.

The HTML file plays in any browser without a server or network. It contains the scripts of the app's player, and the
same data as the app (`payload`), encoded as base64. Text in the markup is escaped, and a content security policy
forbids the file to load anything.

A frame shows one state of the episode. An animation shows moments, which can also be between two frames.
"""

import base64
import io
from collections.abc import Sequence
from html import escape
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, get_args

import numpy as np
from PIL import Image

from app.analysis.provenance import describe_runs
from app.figures.assets import read_asset, read_script
from app.figures.mathtext import replace_unprintable
from app.figures.theme import Mode, get_theme_colors
from app.replay.drawing import draw_frames, draw_image
from app.replay.payload import make_payload
from app.replay.replay import EpisodeView, Replay, add_run_names, make_replay
from emtc_core.errors import ConfigError
from emtc_core.install import get_install_command
from storage.engine import Database
from storage.queries.episodes import get_playback, get_trajectory
from storage.runs.rows import find_run

Format = Literal["html", "gif", "mp4", "svg", "png"]
FORMATS: tuple[Format, ...] = get_args(Format)
MIME: dict[Format, str] = {
    "html": "text/html",
    "gif": "image/gif",
    "mp4": "video/mp4",
    "svg": "image/svg+xml",
    "png": "image/png",
}
MAX_FRAMES = 200
"""Maximum number of images of an animation."""
_MAX_IMAGES_PER_STEP = 3
_STEPS_PER_SECOND = 8
_MIN_IMAGE_MS = 40
"""Minimum duration of an image. Browsers slow down animations with shorter ones."""
_MAX_IMAGE_MS = 120
_LAST_IMAGE_MS = 1200
"""Duration of the last image."""
_N_GIF_COLORS = 128

_MAX_FIELD_HEIGHT_PX = 400
"""Maximum height of the fields in the HTML file, which has no other content above and below them."""
_CONTENT_SECURITY_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'"
_PRIMARY_COLOR = {"light": "#0072B2", "dark": "#56B4E9"}
_SECONDARY_BACKGROUND = {"light": "#f3f5f8", "dark": "#1a202b"}
_MAX_DIGITS = 18
"""Maximum length of a number in the name of an episode. Such a number is less than 2^63, the limit of the database."""
_START_SCRIPT = """
const text = document.getElementById("data").textContent
playback({ data: Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)), parentElement: document.body })
const player = document.querySelector(".playback")
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => player.state.show())
player.focus({ preventScroll: true })
"""


def read_replays(db: Database, episodes: Sequence[tuple[str, str]]) -> list[Replay]:
    """Read episodes from a database.

    Args:
        db: The database.
        episodes: Run id or its beginning, and name of the episode: "512" for a training episode, or "80000-0" for
            episode 0 of the evaluation at step 80000.

    Raises:
        ConfigError: If the name of an episode is not valid.
        StorageError: If there is no such run or episode.
    """
    replays: list[Replay] = []
    for run_prefix, name in episodes:
        parts = name.split("-")
        are_numbers = all(part.isdecimal() and part.isascii() and len(part) <= _MAX_DIGITS for part in parts)
        if len(parts) > 2 or not are_numbers:
            raise ConfigError(
                "must be the number of an episode, or for instance 80000-0 for an evaluation episode",
                key="episode",
                value=name,
            )
        run = find_run(db, run_prefix)
        numbers = [int(part) for part in parts]
        if len(numbers) == 1:
            replays.append(make_replay(run, get_trajectory(db, run.id, numbers[0]), training=True))
        else:
            replays.append(make_replay(run, get_playback(db, run.id, *numbers), training=False))
    return add_run_names(replays)


def make_file(replays: Sequence[Replay], format: Format, *, t: int = 0, mode: Mode = "light") -> bytes:
    """Export one or two episodes.

    Args:
        replays: The episodes.
        format: An HTML page that plays offline, an animated GIF, a video, or one frame as SVG or PNG.
        t: First frame of the HTML page, or the frame of the SVG or PNG.
        mode: Light or dark. The HTML page follows the theme of the reader's system instead.

    Raises:
        ConfigError: If the format is mp4 and the package imageio-ffmpeg is not installed.
    """
    sides = [replay.side for replay in replays]
    sources = describe_runs({replay.run.id: replay.run for replay in replays}.values())
    if format == "html":
        return make_page(sides, start=t, sources=sources)
    if format == "gif":
        return make_gif(sides, mode=mode)
    if format == "mp4":
        return make_mp4(sides, mode=mode)
    return draw_image(sides, frame=t, format=format, mode=mode, sources=sources)


def make_page(sides: Sequence[EpisodeView], *, start: int = 0, sources: Sequence[str] = ()) -> bytes:
    """Make an HTML page with the player and its data. It is light or dark like the reader's system.

    Args:
        sides: One or two episodes.
        start: First frame that is shown.
        sources: Descriptions of the runs, for the metadata of the page.
    """
    title = replace_unprintable(" compared with ".join(side.title for side in sides)) or "Replay"
    payload = base64.b64encode(make_payload(sides, start=start)).decode()
    notes = dict.fromkeys(side.scene.note for side in sides if not side.has_units and side.scene.note)
    note_html = "\n".join(f"<p>{escape(replace_unprintable(note))}</p>" for note in notes)
    script = f"{read_script('field.js', 'replay.js')}\n{_START_SCRIPT}".replace("</", "<\\/")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_CONTENT_SECURITY_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="keywords" content="{escape(replace_unprintable("; ".join(sources)))}">
<title>{escape(title)}</title>
<style>
{_make_style()}
{read_asset("replay.css")}
</style>
</head>
<body>
<h1>{escape(title)}</h1>
{note_html}
{read_asset("replay.html").replace('class="playback"', f'class="playback" data-room="{_MAX_FIELD_HEIGHT_PX}"', 1)}
<script type="application/octet-stream" id="data">{payload}</script>
<script type="module">
{script}
</script>
</body>
</html>
""".encode()


def make_gif(sides: Sequence[EpisodeView], *, mode: Mode = "light") -> bytes:
    """Make an animation of at most `MAX_FRAMES` images. Short episodes have images between their steps."""
    moments, image_ms = choose_moments(max(side.frames for side in sides))
    images = draw_frames(sides, moments, mode=mode)
    first_image = next(images)
    # All images have the palette of the first one.
    palette = first_image.quantize(_N_GIF_COLORS, dither=Image.Dither.NONE)
    all_images = chain([first_image], images)
    gif_images = (image.quantize(palette=palette, dither=Image.Dither.NONE) for image in all_images)
    first_gif_image = next(gif_images)
    file = io.BytesIO()
    first_gif_image.save(
        file,
        format="GIF",
        save_all=True,
        append_images=gif_images,
        duration=[image_ms] * (len(moments) - 1) + [_LAST_IMAGE_MS],
        loop=0,
        disposal=1,
    )
    return file.getvalue()


def make_mp4(sides: Sequence[EpisodeView], *, mode: Mode = "light") -> bytes:
    """Make a video (H.264) with the images of `make_gif`, in all colors.

    Raises:
        ConfigError: If the package imageio-ffmpeg is not installed.
    """
    try:
        from imageio_ffmpeg import write_frames  # pyright: ignore[reportMissingImports]  # an optional extra
    except ModuleNotFoundError as error:
        hint = f"Install it with: {get_install_command('video')}"
        raise ConfigError("needs the package imageio-ffmpeg", key="mp4", hint=hint) from error
    moments, image_ms = choose_moments(max(side.frames for side in sides))
    images = (_crop_to_even_size(image) for image in draw_frames(sides, moments, mode=mode))
    first_image = next(images)
    image = first_image
    with TemporaryDirectory(prefix="emtc-video-") as folder:
        path = Path(folder) / "replay.mp4"
        writer = write_frames(str(path), first_image.size, fps=round(1000 / image_ms), macro_block_size=2, quality=8)
        writer.send(None)  # starts the generator
        for image in chain([first_image], images):
            writer.send(image.tobytes())
        for _ in range(_LAST_IMAGE_MS // image_ms):  # repeats the last image
            writer.send(image.tobytes())
        writer.close()
        return path.read_bytes()


def choose_moments(n_frames: int) -> tuple[list[float], int]:
    """Choose the moments of an animation, evenly spaced, including the first and the last frame of the episode.

    An episode of more than `MAX_FRAMES` frames gets less than one moment per step.

    Args:
        n_frames: Number of frames of the episode.

    Returns:
        The moments [frames], and the duration of each image of the animation [ms].
    """
    n_steps = n_frames - 1
    if n_steps < 1:
        moments_per_step = 1.0
    elif n_steps < MAX_FRAMES:
        moments_per_step = float(min(_MAX_IMAGES_PER_STEP, (MAX_FRAMES - 1) // n_steps))
    else:
        moments_per_step = (MAX_FRAMES - 1) / n_steps
    moments = np.linspace(0, n_steps, round(n_steps * moments_per_step) + 1)
    duration_cs = round(100 / (_STEPS_PER_SECOND * moments_per_step))  # GIF stores durations in 1/100 s
    duration_ms = min(max(10 * duration_cs, _MIN_IMAGE_MS), _MAX_IMAGE_MS)
    return moments.tolist(), duration_ms


def _crop_to_even_size(image: Image.Image) -> Image.Image:
    """Remove the last column and row of pixels if their number is odd, because H.264 needs even numbers."""
    return image.crop((0, 0, image.width // 2 * 2, image.height // 2 * 2))


def _make_style() -> str:
    """Make the style sheet of the page. The player uses the CSS variables of Streamlit."""
    light_variables = _make_variables("light")
    dark_variables = _make_variables("dark")
    return (
        f":root {{ color-scheme: light dark; {light_variables} --st-font: system-ui, sans-serif; }}\n"
        f"@media (prefers-color-scheme: dark) {{ :root {{ {dark_variables} }} }}\n"
        "body { margin: 0 auto; padding: 16px 20px; max-width: 1500px; background: var(--st-background-color); "
        "color: var(--st-text-color); font: 14px/1.5 var(--st-font); }\n"
        "h1 { font-size: 18px; margin: 0 0 12px; overflow-wrap: anywhere; }"
    )


def _make_variables(mode: Mode) -> str:
    """Make the CSS variables of the colors of a theme."""
    text, background, grid = get_theme_colors(mode)
    colors = {
        "text-color": text,
        "background-color": background,
        "border-color": grid,
        "secondary-background-color": _SECONDARY_BACKGROUND[mode],
        "primary-color": _PRIMARY_COLOR[mode],
    }
    return " ".join(f"--st-{name}: {color};" for name, color in colors.items())
