"""Export one or two episodes as an HTML, GIF, MP4 or SVG file, for `emtc export --replay` and the buttons of the page.

The HTML file plays in any browser without a server or network. It contains the scripts of the app's player, and the
same payload as the app, encoded as base64. Text in the markup is escaped, and a content security policy forbids the
file to load anything.
"""

import base64
from collections.abc import Sequence
from html import escape
from typing import Literal, get_args

from app.analysis.provenance import describe_runs
from app.figures.assets import read_asset, read_script
from app.figures.theme import Mode, get_theme_colors, replace_unprintable
from app.replay.drawing import to_gif, to_mp4, to_svg
from app.replay.payload import make_payload
from app.replay.replay import EpisodeView, Replay, add_run_names, make_replay
from emtc_core.errors import ConfigError
from storage.engine import Database
from storage.queries.episodes import get_playback, get_trajectory
from storage.runs.rows import find_run

Format = Literal["html", "gif", "mp4", "svg"]
FORMATS: tuple[Format, ...] = get_args(Format)
MIME: dict[Format, str] = {"html": "text/html", "gif": "image/gif", "mp4": "video/mp4", "svg": "image/svg+xml"}

_MAX_FIELD_HEIGHT_PX = 400
"""Maximum height of the fields in the HTML file, which has no other content above and below them."""
_CONTENT_SECURITY_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'"
_PRIMARY_COLOR = {"light": "#0072B2", "dark": "#56B4E9"}
_SECONDARY_BACKGROUND = {"light": "#f3f5f8", "dark": "#1a202b"}
_START_SCRIPT = """
const text = document.getElementById("data").textContent
playback({ data: Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)), parentElement: document.body })
const player = document.querySelector(".playback")
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => player.state.show())
player.focus({ preventScroll: true })
"""


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
        if len(parts) > 2 or not all(part.isdecimal() and part.isascii() and len(part) <= 18 for part in parts):
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
        format: An HTML page that plays offline, an animated GIF, a video, or one frame as SVG.
        t: First frame of the HTML page, or the frame of the SVG.
        mode: Light or dark. The HTML page follows the theme of the reader's system instead.

    Raises:
        ConfigError: If the format is mp4 and the package imageio-ffmpeg is not installed.
    """
    sides = [replay.side for replay in replays]
    sources = describe_runs({replay.run.id: replay.run for replay in replays}.values())
    if format == "html":
        return make_page(sides, start=t, sources=sources)
    if format == "svg":
        return to_svg(sides, frame=t, mode=mode, sources=sources)
    return to_gif(sides, mode=mode) if format == "gif" else to_mp4(sides, mode=mode)


def _make_style() -> str:
    """Make the style sheet of the page. The player uses the CSS variables of Streamlit."""
    light, dark = _make_variables("light"), _make_variables("dark")
    return (
        f":root {{ color-scheme: light dark; {light} --st-font: system-ui, sans-serif; }}\n"
        f"@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n"
        "body { margin: 0 auto; padding: 16px 20px; max-width: 1500px; background: var(--st-background-color); "
        "color: var(--st-text-color); font: 14px/1.5 var(--st-font); }\n"
        "h1 { font-size: 18px; margin: 0 0 12px; overflow-wrap: anywhere; }"
    )


def _make_variables(mode: Mode) -> str:
    text, background, grid = get_theme_colors(mode)
    colors = {
        "text-color": text,
        "background-color": background,
        "border-color": grid,
        "secondary-background-color": _SECONDARY_BACKGROUND[mode],
        "primary-color": _PRIMARY_COLOR[mode],
    }
    return " ".join(f"--st-{name}: {color};" for name, color in colors.items())
