"""One colour per meaning on every page and in every export; Okabe-Ito, so that colour-blind readers see it too.

A second cue always stands beside the colour: a line style, a shape or a label.
"""

import zlib
from collections.abc import Sequence
from typing import Final, Literal

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

_SOLID, _DASHED, _DOTTED, _LONG = None, (7, 4), (2, 3), (12, 3)
METHOD: Final[dict[str, tuple[str, Dash]]] = {
    "emtc-qplex": ("#D55E00", _SOLID),
    "emtc-cds": ("#0072B2", _SOLID),
    "emtc-qmix": ("#009E73", _SOLID),
    "emtc-vdn": ("#8B6BB1", _SOLID),
    "emtc-dmix": ("#CC79A7", _SOLID),
    "emu-qplex": ("#E69F00", _DASHED),
    "emu-cds": ("#56B4E9", _DASHED),
    "emu-qmix": ("#009E73", _DASHED),
    "emu-vdn": ("#8B6BB1", _DASHED),
    "emu-dmix": ("#CC79A7", _DASHED),
    "qplex": ("#CC79A7", _DOTTED),
    "cds": ("#009E73", _DOTTED),
    "qmix": ("#7A828C", _DOTTED),
    "vdn": ("#8B6BB1", _DOTTED),
    "dmix": ("#E69F00", _DOTTED),
    "mappo": ("#7A828C", _LONG),
    "emc": ("#56B4E9", _DOTTED),
}
"""Colour and dash of every algorithm: solid is EMTC, dashed EMU, dotted a backbone alone; no two are the same."""
_MORE_DASHES: Final[tuple[Dash, ...]] = (_LONG, _DASHED, _DOTTED, (4, 2), (10, 6))


def style_methods(names: Sequence[str]) -> dict[str, tuple[str, Dash]]:
    """Give every name its colour and dash, whatever stands beside it.

    An algorithm has its own style on every page. Another name (an ablation, "emtc-qplex (gate.enabled = false)")
    gets the style that its text points to, or the next free one when that is taken in this figure.
    """
    styles = {name: METHOD[name] for name in names if name in METHOD}
    every = [(color, dash) for dash in _MORE_DASHES for color in OKABE_ITO]
    for name in sorted(set(names) - set(styles)):
        start = zlib.crc32(name.encode()) % len(OKABE_ITO)
        turned = [*every[start:], *every[:start]]
        colors = {color for color, _ in styles.values()}
        free = [style for style in turned if style not in styles.values()]
        styles[name] = next((style for style in free if style[0] not in colors), free[0] if free else turned[0])
    return styles


VIRIDIS: Final = (
    "#440154", "#481a6c", "#472f7d", "#414487", "#39568c", "#31688e", "#2a788e", "#23888e",
    "#1f988b", "#22a884", "#35b779", "#54c568", "#7ad151", "#a5db36", "#d2e21b", "#fde725",
)  # fmt: skip
TWO: Final = ("#B8BEC6", "#009E73")
"""No, yes."""

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
}
GateColor = Literal["green", "orange"]
GATE_COLOR: Final[dict[str, GateColor]] = {"active": "green", "idle": "orange"}
GATE_ICON: Final = {"active": ":material/filter_alt:", "idle": ":material/filter_alt_off:"}
ENDED: Final = frozenset({"finished", "stopped", "failed", "lost"})

_INK: Final = {"light": ("#1f2430", "#ffffff", "#e3e6ea"), "dark": ("#e6e8ec", "#0f131a", "#2a313c")}


def ink(mode: Mode) -> tuple[str, str, str]:
    """Return the colours of text, background and grid."""
    return _INK[mode]
