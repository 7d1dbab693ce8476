"""One colour per meaning on every page and in every export; Okabe-Ito, so that colour-blind readers see it too.

A second cue always stands beside the colour: a line style, a shape or a label.
"""

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

VIRIDIS: Final = (
    "#440154", "#481a6c", "#472f7d", "#414487", "#39568c", "#31688e", "#2a788e", "#23888e",
    "#1f988b", "#22a884", "#35b779", "#54c568", "#7ad151", "#a5db36", "#d2e21b", "#fde725",
)  # fmt: skip
TWO: Final = ("#B8BEC6", "#009E73")
"""No, yes."""

STATUS_COLOR: Final = {
    "queued": "gray",
    "running": "blue",
    "paused": "orange",
    "finished": "green",
    "stopped": "gray",
    "failed": "red",
    "lost": "red",
}
STATUS_ICON: Final = {
    "queued": ":material/schedule:",
    "running": ":material/play_circle:",
    "paused": ":material/pause_circle:",
    "finished": ":material/check_circle:",
    "stopped": ":material/stop_circle:",
    "failed": ":material/error:",
    "lost": ":material/link_off:",
}
ENDED: Final = frozenset({"finished", "stopped", "failed", "lost"})

_INK: Final = {"light": ("#1f2430", "#ffffff", "#e3e6ea"), "dark": ("#e6e8ec", "#0f131a", "#2a313c")}


def ink(mode: Mode) -> tuple[str, str, str]:
    """Return the colours of text, background and grid."""
    return _INK[mode]
