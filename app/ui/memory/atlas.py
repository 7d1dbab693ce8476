"""The map of the memory: a canvas that fetches raw columns and decides colour, filter and selection by itself.

What is sent through here is small: addresses of columns, and what the page's address asks to see. Which point is
selected, and the paths of episodes, go through a component beside it, so that a click never touches the map.

What a map says, heard by one part of a page: that part is drawn anew, and no other.

The columns of a snapshot as the browser fetches them: one address each, raw numbers behind it.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NotRequired, TypedDict

import numpy as np
import streamlit as st
from numpy.typing import NDArray
from streamlit.components.v2 import component
from streamlit.runtime import get_instance

from app.analysis.projections.linear import LabeledPoints
from app.analysis.selection import NODE_QUANTITIES, NodeSelection, compute_node_values
from app.figures.assets import read_asset, read_script
from app.figures.kinds.maps import compute_color_limits
from app.figures.theme import BINARY_COLORS, RED_GREEN, VIRIDIS
from app.ui import data, state
from storage.queries.memory import Snapshot

Column = NDArray[np.float32] | NDArray[np.int32]
_DTYPES = {"float32": "f4", "int32": "i4"}
_MIME = "application/octet-stream"


@dataclass(frozen=True)
class Columns:
    """Every quantity of every node, in the order in which the map draws them."""

    order: NDArray[np.int64]  # [M] rows of the snapshot, shuffled, so that no value lies on top of another
    slot: NDArray[np.int32]
    quantities: Mapping[str, NDArray[np.float32]]
    ends: Mapping[str, tuple[float, float]]
    """Values at the ends of the colour scale; one point in a hundred may lie beyond either."""


@data.cached(st.cache_resource, max_entries=6, hash_funcs={Snapshot: lambda each: each.id})
def columns_of(url: str, snapshot: Snapshot, stamp: str) -> Columns:
    """Arrange the columns of a snapshot, once."""
    order = np.random.default_rng(0).permutation(snapshot.size)
    quantities = {key: compute_node_values(snapshot, key)[order] for key in NODE_QUANTITIES}
    ends = {key: compute_color_limits(values, NODE_QUANTITIES[key]) for key, values in quantities.items()}
    return Columns(order, snapshot.slot[order].astype(np.int32), quantities, ends)


def publish(name: str, column: Column) -> dict[str, str]:
    """Give a column an address; `name` tells it from every other column of every snapshot.

    The store tells big files apart by their length and a few samples, so the name is a part of what it looks at.
    """
    url = get_instance().media_file_mgr.add(
        np.ascontiguousarray(column).tobytes(), _MIME, coordinates=f"emtc-column-{name}", file_name=name
    )
    return {"url": url, "dtype": _DTYPES[column.dtype.name]}


Said = Literal["pick", "select", "view"]
LONGEST = 20_000
_listener = component("emtc_lab_listener", js=read_asset("listener.js"))


def hear(acts: Mapping[Said, Callable[[dict[str, Any]], None]], *, channel: str) -> None:
    """Act on what the map of this channel says; call this inside the fragment that shall be drawn anew.

    Of one kind of event one fragment may hear: of two that are asked for at once, Streamlit draws one.

    Args:
        acts: What to do when a point was picked, a selection was made, or colour, scale or camera changed. The event
            comes from a browser: check what you take.
        channel: The map.
    """
    key = f"hear-{'-'.join(acts)}-{channel}"

    def heard() -> None:
        text = getattr(st.session_state.get(key), "heard", None)
        if isinstance(text, str) and len(text) <= LONGEST:
            said = json.loads(text)
            for what, act in acts.items() if isinstance(said, dict) else ():
                if isinstance(said.get(what), dict):
                    act(said[what])

    _listener(key=key, data={"hears": list(acts), "channel": channel}, on_heard_change=heard)


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
    choice: NodeSelection


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
    drawn: LabeledPoints,
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
        quantity, (low, high) = NODE_QUANTITIES[key], ends[key]
        about: dict[str, object] = {
            "key": key,
            "name": quantity.name,
            "unit": quantity.unit,
            "meaning": quantity.meaning,
        }
        about |= {"words": list(quantity.value_names)} if quantity.value_names else {}
        shape = {"binary": quantity.is_binary, "whole": quantity.is_integer or quantity.is_binary, "colored": True}
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
        "two": list(BINARY_COLORS),
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
    *,
    channel: str,
    selected: int | None,
    at: Place | None = None,
    near: Sequence[Place] = (),
    traces: Sequence[Path] = (),
    every: int = 10,
    seek: bool = False,
) -> None:
    """Ring the selected point of the map `channel` and those `near` it; draw paths, every so manieth step marked.

    With `seek` a press on the first path moves the cursor of the player beside it, and chooses nothing.
    """
    data = {
        "channel": channel, "selected": selected, "at": at, "near": list(near), "traces": list(traces), "every": every,
        "seek": seek,
    }  # fmt: skip
    _marker(key=f"{channel}-marker", data=data)
