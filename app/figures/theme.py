"""Colors and styles of lines, and colors and icons of the statuses of runs.

Each quantity and each variant has the same color on every page and in every export. A variant is an algorithm with its
changed settings; an ablation is a variant without one part of EMTC. The colors are also chosen for color-blind readers:
lines differ not only in their color, but also in a dash, a marker or a label.
"""

import zlib
from collections.abc import Mapping
from typing import Final, Literal, NamedTuple, get_args

from app.figures.color_math import luminance, set_luminance, shift_hue

Mode = Literal["light", "dark"]

DELTA_MEM_COLOR: Final = "#D55E00"
BETA_COLOR: Final = "#0072B2"
TAU_COLOR: Final = "#E69F00"
WIN_RATE_COLOR: Final = "#009E73"
RETURN_COLOR: Final = "#CC79A7"
H_VALUE_COLOR: Final = "#8B6BB1"
LOSS_COLOR: Final = "#7A828C"
SPEED_COLOR: Final = "#56B4E9"

AGENT_COLOR: Final = "#2C8FD1"
OPPONENT_COLOR: Final = "#B0413E"
NEUTRAL_COLOR: Final = "#9AA1A9"

OKABE_ITO: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8B6BB1", "#7A828C")
"""Six colors of the palette by Okabe and Ito, and the colors of H and of losses."""

Dash = tuple[int, int] | None
"""Lengths of dash and gap [px]; None: a solid line."""
Marker = Literal[
    "", "circle", "square", "triangle-up", "diamond", "x", "triangle-down", "cross", "star", "pentagon", "hexagon"
]
MARKERS: Final[tuple[Marker, ...]] = get_args(Marker)[2:]  # all except "" and "circle"
"""The shapes of variants and imported algorithms. An unchanged algorithm has no shape, or circles."""


class Style(NamedTuple):
    """The style of a line: color for the algorithm, dash for the family of algorithms, marker for the variant."""

    color: str
    dash: Dash = None
    marker: Marker = ""


_SOLID = None
_DASHED = (7, 4)
_DOTTED = (2, 3)
_LONG = (12, 3)
_SHORT = (4, 2)
_FAMILY_DASHES: Final[dict[str, Dash]] = {"emtc": _SOLID, "emu": _DASHED}
"""Dash of the algorithms whose names start with emtc- or emu-."""
METHOD_STYLES: Final[dict[str, Style]] = {
    "emtc-qplex": Style("#D55E00", _SOLID),
    "emtc-cds": Style("#0072B2", _SOLID),
    "emtc-qmix": Style("#B82175", _SOLID),
    "emtc-vdn": Style("#4EA077", _SOLID),
    "emtc-dmix": Style("#F047F2", _SOLID),
    "emu-qplex": Style("#7B3FDC", _DASHED),
    "emu-cds": Style("#0A735F", _DASHED),
    "emu-qmix": Style("#A24611", _DASHED),
    "emu-vdn": Style("#F3009D", _DASHED),
    "emu-dmix": Style("#907FEA", _DASHED),
    "qplex": Style("#1A5EFF", _DOTTED),
    "cds": Style("#E6244D", _DOTTED),
    "qmix": Style("#BA04C6", _DOTTED),
    "vdn": Style("#96618C", _DOTTED),
    "dmix": Style("#009ECB", _DOTTED),
    "mappo": Style("#AA914A", _LONG),
    "emc": Style("#D475A6", _SHORT),
}
"""Color and dash of every algorithm.

Solid: EMTC. Dashed: EMU. Dotted: an algorithm without an episodic memory. Long dashes: MAPPO. Short dashes: EMC.

Each color has a contrast of 3:1 on both backgrounds. Colors with the same dash stay distinct for readers without red,
green or blue cones. The algorithms that the paper compares (EMTC, its ablations, EMU(QPLEX), QPLEX, EMC, CDS, DMIX and
MAPPO) have distinct hues. Those of them that have the same dash also differ in lightness, so that they are distinct
without color. tests/app/test_theme.py measures all of this.
"""
VARIANT_STYLES: Final[dict[tuple[str, str], Style]] = {
    ("emtc-qplex", "gate.enabled = false"): Style("#248965", _SOLID, "square"),
    ("emtc-qplex", "embed.type = dcae"): Style("#CA6BF5", _SOLID, "triangle-up"),
}
"""Style of the ablations of the paper, by algorithm and change. They have these markers in every figure."""
OTHER_COLORS: Final = (
    "#306C84", "#7890C0", "#6C60CC", "#9C00FC", "#C06CFC", "#C0249C",
    "#FC48B4", "#CC7878", "#9C5454", "#D80000", "#606C00", "#24A818",
)  # fmt: skip
"""Colors of algorithms that are not in `METHOD_STYLES` (of other programs and plug-ins), in the order of their hues.

Each has a contrast of 3:1 on both backgrounds; tests/app/test_theme.py measures their distances.
"""
_OTHER_DASHES: Final = (_DOTTED, _LONG, _SHORT, _DASHED)
"""Dashes of `OTHER_COLORS`, in turn, so that colors with similar hues have different dashes."""
_RESERVED_MARKERS: Final[tuple[Marker, ...]] = tuple(style.marker for style in VARIANT_STYLES.values())
_VARIANT_HUE_SHIFTS: Final = (60, 110, 155, 290)
"""Degrees from the hue of an algorithm to the hue of a variant that is not in `VARIANT_STYLES`."""
_HUE_SHIFTS_OF_ABLATED: Final = {"emtc-qplex": (30, 170, 280, 315)}
"""The same for algorithms with ablations in `VARIANT_STYLES`.

The hues differ from those of the ablations. EMTC(QPLEX) is orange and its ablations are green and violet, so its other
variants are olive, light blue, magenta and red. They also differ from the blue of QPLEX and the violet of EMU(QPLEX).
"""


def make_styles(methods: Mapping[str, tuple[str, str]]) -> dict[str, Style]:
    """Choose a style for each line. It does not depend on the other lines, unless two lines would look equal.

    - An algorithm in `METHOD_STYLES` has the style given there.
    - A variant of it has the style in `VARIANT_STYLES`. If there is none, the hash of its changes selects a hue and a
      marker. If another line has this color and marker already, the next hue and marker are taken: this is so if two
      variants differ only in their training length.
    - Another algorithm has one of `OTHER_COLORS`, and a marker if it is a variant. The hash of its name and its changes
      selects them. If another line has this color already, the next free color is taken.

    Args:
        methods: Key of a line → its algorithm, and the changed settings, for example "gate.enabled = false", or "".

    Returns:
        Key → style.
    """

    def get_position(key: str) -> tuple[bool, str, str]:
        """The ablations of the paper choose first, so that they always have the style in `VARIANT_STYLES`."""
        return methods[key] not in VARIANT_STYLES, methods[key][1], key

    styles: dict[str, Style] = {}
    for key in sorted(methods, key=get_position):
        algo, changes = methods[key]
        used_styles = list(styles.values())
        # `min` returns the first of several candidates that are equally rare
        if algo in METHOD_STYLES:
            styles[key] = min(_list_known_styles(algo, changes, key), key=used_styles.count)
        else:
            colors = [style.color for style in used_styles]
            markers = [style.marker for style in used_styles]
            styles[key] = min(
                _list_other_styles(algo, changes),
                key=lambda style: (colors.count(style.color), markers.count(style.marker)),
            )
    return styles


def _list_known_styles(algo: str, changes: str, key: str) -> list[Style]:
    """List the styles that an algorithm of `METHOD_STYLES` or its variant can have, the preferred one first."""
    color, dash, _ = METHOD_STYLES[algo]
    text = changes or key  # two lines of the unchanged algorithm differ only in their keys
    shifts = _HUE_SHIFTS_OF_ABLATED.get(algo, _VARIANT_HUE_SHIFTS)
    first = zlib.crc32(f"hue {text}".encode()) % len(shifts)
    colors = [shift_hue(color, shift) for shift in (*shifts[first:], *shifts[:first])]
    markers = _order_markers(text)
    # Both the color and the marker change from one candidate to the next one. 4 colors and 9 markers have no common
    # factor, so these are all combinations.
    n_candidates = len(colors) * len(markers)
    candidates = [Style(colors[i % len(colors)], dash, markers[i % len(markers)]) for i in range(n_candidates)]
    if not changes:
        candidates.insert(0, Style(color, dash))
    elif (algo, changes) in VARIANT_STYLES:
        candidates.insert(0, VARIANT_STYLES[algo, changes])
    return candidates


def _list_other_styles(algo: str, changes: str) -> list[Style]:
    """List the styles that an algorithm can have that is not in `METHOD_STYLES`, the preferred one first."""
    name = f"{algo} {changes}"
    first = zlib.crc32(name.encode())
    family = algo.partition("-")[0]
    markers: list[Marker] = _order_markers(name) if changes else [""]
    candidates = []
    for position in range(first, first + len(OTHER_COLORS)):
        index = position % len(OTHER_COLORS)
        dash = _FAMILY_DASHES[family] if family in _FAMILY_DASHES else _OTHER_DASHES[index % len(_OTHER_DASHES)]
        candidates += [Style(OTHER_COLORS[index], dash, marker) for marker in markers]
    return candidates


def _order_markers(text: str) -> list[Marker]:
    """Order the markers by the hash of a text. Those of the paper's ablations are last."""
    markers: list[Marker] = [marker for marker in MARKERS if marker not in _RESERVED_MARKERS]
    first = zlib.crc32(text.encode()) % len(markers)
    return [*markers[first:], *markers[:first], *_RESERVED_MARKERS]


VIRIDIS: Final = (
    "#440154", "#481a6c", "#472f7d", "#414487", "#39568c", "#31688e", "#2a788e", "#23888e",
    "#1f988b", "#22a884", "#35b779", "#54c568", "#7ad151", "#a5db36", "#d2e21b", "#fde725",
)  # fmt: skip
VIRIDIS_ON_DARK: Final = tuple(set_luminance(color, 0.12 + 0.88 * luminance(color)) for color in VIRIDIS)
"""Viridis with lighter low values: each color has a contrast of 3:1 on the dark background."""
BINARY_COLORS: Final = ("#B8BEC6", "#009E73")
"""Colors for the values no and yes."""

STATUS_COLOR: Final = {
    "queued": "gray",
    "starting": "blue",
    "stopping": "orange",
    "running": "blue",
    "paused": "orange",
    "finished": "green",
    "stopped": "gray",
    "failed": "red",
    "lost": "red",
    "waiting": "red",
    "pruned": "violet",
}
STATUS_ICON: Final = {
    "queued": ":material/schedule:",
    "starting": ":material/hourglass_top:",
    "stopping": ":material/hourglass_bottom:",
    "running": ":material/play_circle:",
    "paused": ":material/pause_circle:",
    "finished": ":material/check_circle:",
    "stopped": ":material/stop_circle:",
    "failed": ":material/error:",
    "lost": ":material/link_off:",
    "waiting": ":material/link_off:",
    "pruned": ":material/content_cut:",
}
GateColor = Literal["green", "orange"]
GATE_COLOR: Final[dict[str, GateColor]] = {"active": "green", "idle": "orange"}
GATE_ICON: Final = {"active": ":material/filter_alt:", "idle": ":material/filter_alt_off:"}
ENDED_STATUSES: Final = frozenset({"finished", "stopped", "failed", "lost"})

_THEME_COLORS: Final = {"light": ("#1f2430", "#ffffff", "#e3e6ea"), "dark": ("#e6e8ec", "#0f131a", "#2a313c")}


def get_theme_colors(mode: Mode) -> tuple[str, str, str]:
    """Return the colors of text, background and grid."""
    return _THEME_COLORS[mode]
