"""One colour per meaning on every page and in every export, chosen so that colour-blind readers see it too.

A second cue always stands beside the colour: a line style, a shape or a label. Symbols in labels become Matplotlib's
mathematics: "Δ̄_mem" is a bar over a Delta with an upright index.
"""

import re
import zlib
from collections.abc import Mapping
from typing import Final, Literal, NamedTuple, get_args

Mode = Literal["light", "dark"]

DELTA_MEM: Final = "#D55E00"
BETA: Final = "#0072B2"
TAU: Final = "#E69F00"
WIN_RATE: Final = "#009E73"
RETURN: Final = "#CC79A7"
H_VALUE: Final = "#8B6BB1"
LOSS: Final = "#7A828C"
SPEED: Final = "#56B4E9"

AGENTS: Final = "#2C8FD1"
OPPONENTS: Final = "#B0413E"
NEUTRAL: Final = "#9AA1A9"

OKABE_ITO: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8B6BB1", "#7A828C")

Dash = tuple[int, int] | None
Marker = Literal[
    "", "circle", "square", "triangle-up", "diamond", "x", "triangle-down", "cross", "star", "pentagon", "hexagon"
]
MARKERS: Final[tuple[Marker, ...]] = get_args(Marker)[2:]
"""The shapes that tell the variants of one algorithm apart; the plain algorithm has none, or dots."""

_GREEK = {
    "Δ": r"\Delta",
    "α": r"\alpha",
    "β": r"\beta",
    "γ": r"\gamma",
    "δ": r"\delta",
    "ε": r"\epsilon",
    "λ": r"\lambda",
    "μ": r"\mu",
    "ξ": r"\xi",
    "ρ": r"\rho",
    "σ": r"\sigma",
    "τ": r"\tau",
}
_BAR = "\u0304"
_UNPRINTABLE = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_LATIN = r"(?<![\w.])(?:[NQpr](?=_)|[VH](?=\*)|H(?!\w))"
_SYMBOL = re.compile(
    rf"(?P<base>[{''.join(_GREEK)}]|{_LATIN})(?P<bar>{_BAR})?(?:_(?P<index>[A-Za-z]+|ξ))?(?P<star>\*)?(?P<prime>′)?"
)


class Style(NamedTuple):
    """How a line is drawn: colour for the algorithm, dash for the method, marker for a variant within it."""

    color: str
    dash: Dash = None
    marker: Marker = ""


_SOLID, _DASHED, _DOTTED, _LONG, _SHORT = None, (7, 4), (2, 3), (12, 3), (4, 2)
_DASHES: Final[dict[str, Dash]] = {"emtc": _SOLID, "emu": _DASHED}
METHOD: Final[dict[str, Style]] = {
    "emtc-qplex": Style("#D55E00", _SOLID),
    "emtc-cds": Style("#0072B2", _SOLID),
    "emtc-qmix": Style("#DA5AF3", _SOLID),
    "emtc-vdn": Style("#1BA67B", _SOLID),
    "emtc-dmix": Style("#B82175", _SOLID),
    "emu-qplex": Style("#8B5B18", _DASHED),
    "emu-cds": Style("#9F9635", _DASHED),
    "emu-qmix": Style("#7B3FDC", _DASHED),
    "emu-vdn": Style("#F3169E", _DASHED),
    "emu-dmix": Style("#2D93FE", _DASHED),
    "qplex": Style("#1A5EFF", _DOTTED),
    "cds": Style("#D80007", _DOTTED),
    "qmix": Style("#9F82CD", _DOTTED),
    "vdn": Style("#715B82", _DOTTED),
    "dmix": Style("#BA04C6", _DOTTED),
    "mappo": Style("#13763C", _LONG),
    "emc": Style("#E96A7F", _SHORT),
}
"""Colour and dash of every algorithm: solid is EMTC, dashed EMU, dotted a backbone alone, MAPPO and EMC their own.

The colours were searched for: each has a contrast of 3:1 on both backgrounds, and those that share a dash stay far
apart for readers without red, green or blue cones; tests/app/test_theme.py measures both.
"""
_SHADES: Final = (0.126, 0.175, 0.295)
"""How light the variants of an algorithm may be: from a contrast of 3:1 on the dark background to 3:1 on the light."""


def style_methods(methods: Mapping[str, tuple[str, str]]) -> dict[str, Style]:
    """Give every line its style; its colour and dash are the same whatever stands beside it.

    Args:
        methods: Key of a line → its algorithm, and what of it was changed: "gate.enabled = false", empty for nothing.

    Returns:
        Key → style. An algorithm has its own colour and dash on every page, one that is not listed its method's dash
        in grey; a variant has a shade of that colour, always the same, and the marker that its key points to, or the
        next one that is free in this figure.
    """
    styles: dict[str, Style] = {}
    for key in sorted(methods, key=lambda each: (methods[each][1], each)):
        algo, changes = methods[key]
        color, dash, _ = METHOD.get(algo, Style(NEUTRAL, _DASHES.get(algo.partition("-")[0], _DOTTED)))
        if changes:
            color = shade(color, _SHADES[zlib.crc32(f"tone {changes}".encode()) % len(_SHADES)])
        start = zlib.crc32(key.encode())
        turned: list[Marker] = [MARKERS[(start + place) % len(MARKERS)] for place in range(len(MARKERS))]
        plain = [] if changes else [Style(color, dash)]
        looks = plain + [Style(color, dash, marker) for marker in turned]
        styles[key] = min(looks, key=lambda look: _count_alike(look, algo, styles, methods))
    return styles


def _count_alike(
    look: Style, algo: str, styles: Mapping[str, Style], methods: Mapping[str, tuple[str, str]]
) -> tuple[int, int]:
    """Count the lines of an algorithm that look the same, then those with the same marker at least."""
    others = [style for key, style in styles.items() if methods[key][0] == algo]
    return sum(style == look for style in others), sum(style.marker == look.marker for style in others)


def shade(color: str, light: float) -> str:
    """Make a colour as light as told, 0 to 1, and keep its hue."""
    linear = [_linear(int(color[place : place + 2], 16) / 255) for place in (1, 3, 5)]
    now = luminance(color)
    if light > now:  # towards white
        linear = [part + (1 - part) * (light - now) / (1 - now) for part in linear]
    else:
        linear = [part * light / now for part in linear]
    return "#" + "".join(f"{round(255 * _encoded(part)):02X}" for part in linear)


def luminance(color: str) -> float:
    """Measure how light a colour is, 0 to 1, as WCAG does."""
    red, green, blue = (_linear(int(color[place : place + 2], 16) / 255) for place in (1, 3, 5))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _linear(part: float) -> float:
    return part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4


def _encoded(part: float) -> float:
    return 12.92 * part if part <= 0.0031308 else 1.055 * part ** (1 / 2.4) - 0.055


VIRIDIS: Final = (
    "#440154", "#481a6c", "#472f7d", "#414487", "#39568c", "#31688e", "#2a788e", "#23888e",
    "#1f988b", "#22a884", "#35b779", "#54c568", "#7ad151", "#a5db36", "#d2e21b", "#fde725",
)  # fmt: skip
TWO: Final = ("#B8BEC6", "#009E73")
"""No, yes."""
RED_GREEN: Final = (
    "#a50026", "#d73027", "#f46d43", "#fdae61", "#fee08b", "#ffffbf", "#d9ef8b", "#a6d96a", "#66bd63", "#1a9850",
    "#006837",
)  # fmt: skip
"""The paper's scale; a reader in twelve cannot tell its ends apart, so it is never the usual one."""

STATUS_COLOR: Final = {
    "queued": "gray",
    "created": "gray",
    "starting": "blue",
    "stopping": "orange",
    "running": "blue",
    "paused": "orange",
    "finished": "green",
    "stopped": "gray",
    "failed": "red",
    "lost": "red",
    "pruned": "violet",
}
STATUS_ICON: Final = {
    "queued": ":material/schedule:",
    "created": ":material/schedule:",
    "starting": ":material/hourglass_top:",
    "stopping": ":material/hourglass_bottom:",
    "running": ":material/play_circle:",
    "paused": ":material/pause_circle:",
    "finished": ":material/check_circle:",
    "stopped": ":material/stop_circle:",
    "failed": ":material/error:",
    "lost": ":material/link_off:",
    "pruned": ":material/content_cut:",
}
GateColor = Literal["green", "orange"]
GATE_COLOR: Final[dict[str, GateColor]] = {"active": "green", "idle": "orange"}
GATE_ICON: Final = {"active": ":material/filter_alt:", "idle": ":material/filter_alt_off:"}
ENDED: Final = frozenset({"finished", "stopped", "failed", "lost"})

_INK: Final = {"light": ("#1f2430", "#ffffff", "#e3e6ea"), "dark": ("#e6e8ec", "#0f131a", "#2a313c")}


def ink(mode: Mode) -> tuple[str, str, str]:
    """Return the colours of text, background and grid."""
    return _INK[mode]


def make_printable(text: str) -> str:
    """Replace what no font has and no SVG may hold: a run's name is whatever somebody wrote."""
    return _UNPRINTABLE.sub("\ufffd", text)


def set_as_math(text: str) -> str:
    """Write the symbols of a label as mathtext; every other character stays what it is, dollars too."""
    escaped = make_printable(text).replace("$", r"\$").replace("log₁₀", "\0")
    return _SYMBOL.sub(_symbol, escaped).replace("\0", r"$\log_{10}$")


def _symbol(found: re.Match[str]) -> str:
    base = _GREEK.get(found["base"], found["base"])
    if found["bar"]:
        base = rf"\bar{{{base}}}"
    if found["index"]:
        index = _GREEK.get(found["index"], rf"\mathrm{{{found['index']}}}")
        base = f"{base}_{{{index}}}"
    if found["star"] or found["prime"]:
        base = f"{base}^{{{'*' if found['star'] else ''}{chr(92) + 'prime' if found['prime'] else ''}}}"
    return f"${base}$"
