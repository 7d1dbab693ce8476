"""Episodes by name → the file of a replay, for `emtc export --replay` and the page's buttons.

One or two episodes become one HTML file that plays them in any browser, without a server and without a network. The
player is the page's own script; the data are the page's own bytes, as base64. Text stands in the data or is escaped,
and the file forbids itself to load anything.
"""

import base64
from collections.abc import Sequence
from html import escape
from typing import Literal, get_args

from app.analysis.provenance import describe_runs
from app.figures.assets import read_asset, read_script
from app.figures.theme import Mode, ink, make_printable
from app.replay.drawing import to_gif, to_svg
from app.replay.payload import make_payload
from app.replay.replay import Replay, Side, make_replay, tell_apart
from emtc_core.errors import ConfigError
from storage.engine import Database
from storage.queries.episodes import get_playback, get_trajectory
from storage.runs.rows import find_run

_ROOM_PX = 400
"""How tall the fields may be where nothing stands above and below them."""
_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'"
_PRIMARY = {"light": "#0072B2", "dark": "#56B4E9"}
_RAISED = {"light": "#f3f5f8", "dark": "#1a202b"}

Format = Literal["html", "gif", "svg"]
FORMATS: tuple[Format, ...] = get_args(Format)
MIME: dict[Format, str] = {"html": "text/html", "gif": "image/gif", "svg": "image/svg+xml"}


def make_page(sides: Sequence[Side], *, start: int = 0, sources: Sequence[str] = ()) -> bytes:
    """Write the player with its data as one page, light or dark as the reader's system is.

    Args:
        sides: What is played.
        start: First frame that is shown.
        sources: The runs behind it, for the page's metadata.
    """
    title = make_printable(" beside ".join(side.title for side in sides)) or "Replay"
    packed = base64.b64encode(make_payload(sides, start=start)).decode()
    told = dict.fromkeys(side.scene.note for side in sides if side.hides_field and side.scene.note)
    notes = "\n".join(f"<p>{escape(make_printable(note))}</p>" for note in told)
    script = f"{read_script('field.js', 'replay.js')}\n{_START}".replace("</", "<\\/")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="keywords" content="{escape(make_printable("; ".join(sources)))}">
<title>{escape(title)}</title>
<style>
{_style()}
{read_asset("replay.css")}
</style>
</head>
<body>
<h1>{escape(title)}</h1>
{notes}
{read_asset("replay.html").replace('class="playback"', f'class="playback" data-room="{_ROOM_PX}"', 1)}
<script type="application/octet-stream" id="data">{packed}</script>
<script type="module">
{script}
</script>
</body>
</html>
""".encode()


_START = """
const text = document.getElementById("data").textContent
playback({ data: Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)), parentElement: document.body })
const player = document.querySelector(".playback")
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => player.state.show())
player.focus({ preventScroll: true })
"""


def _style() -> str:
    light, dark = (_variables(mode) for mode in ("light", "dark"))
    return (
        f":root {{ color-scheme: light dark; {light} --st-font: system-ui, sans-serif; }}\n"
        f"@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n"
        "body { margin: 0 auto; padding: 16px 20px; max-width: 1500px; background: var(--st-background-color); "
        "color: var(--st-text-color); font: 14px/1.5 var(--st-font); }\n"
        "h1 { font-size: 18px; margin: 0 0 12px; overflow-wrap: anywhere; }"
    )


def _variables(mode: str) -> str:
    text, background, grid = ink("dark" if mode == "dark" else "light")
    named = {
        "text-color": text,
        "background-color": background,
        "border-color": grid,
        "secondary-background-color": _RAISED[mode],
        "primary-color": _PRIMARY[mode],
    }
    return " ".join(f"--st-{name}: {color};" for name, color in named.items())


def read_replays(db: Database, wanted: Sequence[tuple[str, str]]) -> list[Replay]:
    """Read episodes, each as the beginning of a run's id and a name: "512", or "80000-0" for a playback.

    Raises:
        ConfigError: If a name is none.
        StorageError: If there is no such run or episode.
    """
    return tell_apart([_read(db, run, name) for run, name in wanted])


def _read(db: Database, prefix: str, name: str) -> Replay:
    parts = name.split("-")
    if len(parts) > 2 or not all(part.isdecimal() and part.isascii() and len(part) <= 18 for part in parts):
        raise ConfigError("must be the number of an episode, or as 80000-0 for a playback", key="episode", value=name)
    run = find_run(db, prefix)
    numbers = [int(part) for part in parts]
    if len(numbers) == 1:
        return make_replay(run, get_trajectory(db, run.id, numbers[0]), training=True)
    return make_replay(run, get_playback(db, run.id, *numbers), training=False)


def make_file(replays: Sequence[Replay], format: Format, *, t: int = 0, mode: Mode = "light") -> bytes:
    """Write one or two episodes as a page that plays offline, as an animation, or step `t` of them as vectors.

    The page follows the reader's own light or dark theme; it starts at `t`.
    """
    sides = [replay.side for replay in replays]
    sources = describe_runs({replay.run.id: replay.run for replay in replays}.values())
    if format == "html":
        return make_page(sides, start=t, sources=sources)
    return to_gif(sides, mode=mode) if format == "gif" else to_svg(sides, frame=t, mode=mode, sources=sources)
