"""One or two episodes → one HTML file that plays them in any browser, without a server and without a network.

The player is the page's own script; the data are the page's own bytes, as base64. Text stands in the data or is
escaped, and the file forbids itself to load anything.
"""

import base64
from collections.abc import Sequence
from html import escape

from app.figures.assets import read_asset, read_script
from app.figures.render.symbols import make_printable
from app.figures.theme import ink
from app.replay.payload import make_payload
from app.replay.side import Side

_ROOM_PX = 400
"""How tall the fields may be where nothing stands above and below them."""
_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'"
_PRIMARY = {"light": "#0072B2", "dark": "#56B4E9"}
_RAISED = {"light": "#f3f5f8", "dark": "#1a202b"}


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
    script = f"{read_script('field.js', 'playback.js')}\n{_START}".replace("</", "<\\/")
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
{read_asset("playback.css")}
</style>
</head>
<body>
<h1>{escape(title)}</h1>
{notes}
{read_asset("playback.html").replace('class="playback"', f'class="playback" data-room="{_ROOM_PX}"', 1)}
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
