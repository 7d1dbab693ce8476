"""The map of the memory: a canvas that fetches raw columns and decides colour, filter and selection by itself.

What is sent through here is small: addresses of columns, and what the page's address asks to see. Which point is
selected, and the paths of episodes, go through a component beside it, so that a click never touches the map.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NotRequired, TypedDict

from streamlit.components.v2 import component

from app.analysis.node_quantities import QUANTITIES
from app.analysis.projections.linear import Drawn
from app.analysis.selection import Choice
from app.figures.assets import read_asset, read_script
from app.figures.theme import RED_GREEN, TWO, VIRIDIS
from app.ui import state
from app.ui.memory.columns import Columns, publish

KEYS: Final = (
    "Arrow keys pan, plus and minus zoom, 0 shows everything, n and p step through the points, s selects what is in "
    "view, Escape forgets the selection."
)
Place = list[float]
"""x and y on the map."""


@dataclass(frozen=True)
class Palette:
    """A colour scale, low to high."""

    name: str
    colors: tuple[str, ...]


PALETTES: Final = {"viridis": Palette("viridis", VIRIDIS), "red-green": Palette("red–green", RED_GREEN)}


@dataclass(frozen=True)
class View:
    """What the page's address asks the map to show."""

    color: str
    palette: str
    camera: tuple[float, float, float] | None  # centre x and y, and the width of the frame, in units of the plane
    choice: Choice


@dataclass(frozen=True)
class Frame:
    """What tells a map from others, and what it shares with them."""

    channel: str  # tells this map from others on the page
    group: str  # maps of one group are coloured, filtered and selected together; empty: alone
    run: str  # maps of one run share their memories by slot
    nodes: str  # tells the snapshot from any other
    kind: str  # maps of one kind share a camera, as the snapshots of a run under one projection


class Path(TypedDict):
    """An episode over the map: one place per step, None where its node is gone."""

    label: str
    color: NotRequired[str]
    places: list[Place | None]
    beta: list[float | None]
    delta_mem: list[float | None]
    jumps: list[int]  # steps whose error is written beside them


_atlas = component(
    "emtc_lab_atlas",
    html=read_asset("atlas.html"),
    css=read_asset("atlas.css"),
    js=read_script("atlas_points.js", "atlas_picture.js", "atlas_controls.js", "atlas.js"),
)
_marker = component("emtc_lab_marker", js=read_asset("marker.js"))


def show(
    columns: Columns,
    drawn: Drawn,
    ends: Mapping[str, tuple[float, float]],
    *,
    frame: Frame,
    plane: str,
    view: View,
    alt: str,
) -> None:
    """Draw a map.

    Args:
        columns: Every quantity of every node.
        drawn: Places [M, 2] of the nodes, in the snapshot's order.
        ends: Values at the ends of each quantity's colour scale.
        frame: Which map it is.
        plane: Tells the places from any others.
        view: What to show at first.
        alt: What the picture shows, in words.
    """
    place = drawn.coordinates[columns.order]
    slot = {"key": "slot", "name": "memory", "unit": "id", "meaning": "slot in the memory", "colored": False}
    own: list[dict[str, object]] = [{**slot, **publish(f"slot-{frame.nodes}", columns.slot)}]
    for key, values in columns.quantities.items():
        quantity, (low, high) = QUANTITIES[key], ends[key]
        about = {"key": key, "name": quantity.name, "unit": quantity.unit, "meaning": quantity.meaning}
        shape = {"binary": quantity.binary, "whole": quantity.whole or quantity.binary, "colored": True}
        own.append({**about, **shape, "low": low, "high": high, **publish(f"{key}-{frame.nodes}", values)})
    meta = {
        "n": len(place),
        "x": publish(f"x-{plane}", place[:, 0]),
        "y": publish(f"y-{plane}", place[:, 1]),
        "xLabel": drawn.x_label,
        "yLabel": drawn.y_label,
        "columns": own,
        "palettes": {key: {"name": each.name, "lut": list(each.colors)} for key, each in PALETTES.items()},
        "usual": next(iter(PALETTES)),
        "two": list(TWO),
        "equal": not drawn.x_label.startswith("embedding"),
        "kind": frame.kind,
        "channel": frame.channel,
        "group": frame.group,
        "run": frame.run,
        "asked": state.read_int(state.TOUR),  # at another stop of the tour the map looks at the address again
        "view": _asked(view),
        "alt": f"{alt} {KEYS}",
    }
    _atlas(key=frame.channel, data=meta)


def _asked(view: View) -> dict[str, object]:
    camera = None if view.camera is None else dict(zip(("x", "y", "span"), view.camera, strict=True))
    return {
        "color": view.color,
        "palette": view.palette,
        "camera": camera,
        "polygon": [list(corner) for corner in view.choice.polygon] or None,
        "filters": {key: list(ends) for key, ends in view.choice.ranges.items()},
    }


def mark(
    *, channel: str, selected: int | None, at: Place | None = None, traces: Sequence[Path] = (), every: int = 10
) -> None:
    """Ring the selected point of the map `channel` and draw paths of episodes, every so manieth step marked."""
    data = {"channel": channel, "selected": selected, "at": at, "traces": list(traces), "every": every}
    _marker(key=f"{channel}-marker", data=data)
