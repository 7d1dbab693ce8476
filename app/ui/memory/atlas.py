"""The map of the memory: a canvas in the browser, which computes colors, filters and selections without the server.

The server sends the URLs of the columns and the view from the page's URL. The selected point and the paths of episodes
are sent through a second component, so a click never sends the map again. The events of a map rerun one fragment.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NotRequired, TypedDict

import streamlit as st
from streamlit.components.v2 import component

from app.analysis.projections.linear import LabeledPoints
from app.analysis.selection import NODE_QUANTITIES, NodeSelection
from app.figures.assets import read_asset, read_script
from app.figures.theme import BINARY_COLORS, RED_GREEN, VIRIDIS, VIRIDIS_ON_DARK
from app.ui.memory.columns import Columns, publish
from app.ui.page_state import TOUR

MapEvent = Literal["pick", "select", "view"]
"""A point was selected; a region or range was selected; color, scale or camera changed."""
MAX_EVENT_CHARACTERS = 20_000
KEYS: Final = (
    "Arrow keys pan, plus and minus zoom, 0 shows all points, n and p select the next and previous point, s selects "
    "the points in view, Escape clears the selection."
)
MapPoint = list[float]
"""x and y on the map."""


@dataclass(frozen=True)
class Palette:
    """A color scale, low to high."""

    name: str
    colors: tuple[str, ...]
    dark_colors: tuple[str, ...]
    """The colors on a dark background."""


PALETTES: Final = {
    "viridis": Palette("viridis", VIRIDIS, VIRIDIS_ON_DARK),
    "red-green": Palette("red–green", RED_GREEN, RED_GREEN),
}


@dataclass(frozen=True)
class MapView:
    """The view that the page's URL requests."""

    color: str
    palette: str
    camera: tuple[float, float, float] | None  # center x and y, and width of the view, in units of the plane
    selection: NodeSelection


@dataclass(frozen=True)
class MapIdentity:
    """Identifies a map, and defines what it shares with other maps."""

    channel: str  # unique on the page
    group: str  # maps of one group share color, filters and selection; empty: no group
    run: str  # maps of one run select the same memories by slot
    nodes: str  # identifies the snapshot
    kind: str  # maps of one kind share a camera, for example the snapshots of a run under one projection


class EpisodePath(TypedDict):
    """An episode on the map: one point for each step, None if its node is not in the snapshot."""

    label: str
    color: NotRequired[str]
    places: list[MapPoint | None]
    beta: list[float | None]
    delta_mem: list[float | None]
    jumps: list[int]  # steps whose error is written on the map


_atlas = component(
    "emtc_lab_atlas",
    html=read_asset("atlas.html"),
    css=read_asset("atlas.css"),
    js=read_script("atlas_points.js", "atlas_picture.js", "atlas_controls.js", "atlas.js"),
)
_marker = component("emtc_lab_marker", js=read_asset("marker.js"))
_listener = component("emtc_lab_listener", js=read_asset("listener.js"))


def show(
    columns: Columns,
    points: LabeledPoints,
    color_limits: Mapping[str, tuple[float, float]],
    *,
    identity: MapIdentity,
    coordinates_key: str,
    view: MapView,
    alt: str,
    is_sample: bool,
) -> None:
    """Draw a map.

    Args:
        columns: Every quantity of every node.
        points: Coordinates [M, 2] of the nodes, in the snapshot's order.
        color_limits: Values at the ends of each quantity's color scale.
        identity: The map's channel and what it shares with other maps.
        coordinates_key: A text that identifies the coordinates.
        view: The first view.
        alt: Text alternative of the picture.
        is_sample: Whether the nodes are a sample of the memory.
    """
    coordinates = points.coordinates[columns.order]
    slot = {"key": "slot", "name": "memory", "unit": "id", "meaning": "slot in the memory", "colored": False}
    column_data: list[dict[str, object]] = [{**slot, **publish(f"slot-{identity.nodes}", columns.slot)}]
    for key, values in columns.quantities.items():
        quantity, (low, high) = NODE_QUANTITIES[key], color_limits[key]
        names = {"key": key, "name": quantity.name, "unit": quantity.unit, "meaning": quantity.meaning}
        words = {"words": list(quantity.value_names)} if quantity.value_names else {}
        kind = {"binary": quantity.is_binary, "whole": quantity.is_integer or quantity.is_binary, "colored": True}
        url = publish(f"{key}-{identity.nodes}", values)
        scale = {"low": low, "high": high, "noEffect": quantity.no_effect, "log": quantity.is_log}
        column_data.append({**names, **words, **kind, **scale, **url})
    camera = None if view.camera is None else dict(zip(("x", "y", "span"), view.camera, strict=True))
    meta = {
        "n": len(coordinates),
        "isSample": is_sample,
        "x": publish(f"x-{coordinates_key}", coordinates[:, 0]),
        "y": publish(f"y-{coordinates_key}", coordinates[:, 1]),
        "xLabel": points.x_label,
        "yLabel": points.y_label,
        "columns": column_data,
        "palettes": {
            key: {"name": palette.name, "lut": list(palette.colors), "darkLut": list(palette.dark_colors)}
            for key, palette in PALETTES.items()
        },
        "defaultPalette": next(iter(PALETTES)),
        "binaryColors": list(BINARY_COLORS),
        "equalAspect": not points.x_label.startswith("embedding"),
        "kind": identity.kind,
        "channel": identity.channel,
        "group": identity.group,
        "run": identity.run,
        "tourStep": TOUR.read(),  # if it changes, the map applies the view of the URL again
        "view": {
            "color": view.color,
            "palette": view.palette,
            "camera": camera,
            "polygon": [list(corner) for corner in view.selection.polygon] or None,
            "filters": {key: list(limits) for key, limits in view.selection.ranges.items()},
        },
        "alt": f"{alt} {KEYS}",
    }
    _atlas(key=identity.channel, data=meta)


def on_event(callbacks: Mapping[MapEvent, Callable[[dict[str, Any]], None]], *, channel: str) -> None:
    """Call a function when an event of a map arrives. Call this inside the fragment that must be rerun.

    One fragment must use each kind of event only once: of two reruns that are requested at once, Streamlit executes
    one.

    Args:
        callbacks: Functions by kind of event. The event is sent by a browser, so the function must validate it.
        channel: The map.
    """
    key = f"events-{'-'.join(callbacks)}-{channel}"

    def received() -> None:
        text = getattr(st.session_state.get(key), "events", None)
        if not isinstance(text, str) or len(text) > MAX_EVENT_CHARACTERS:
            return
        events = json.loads(text)
        for kind, callback in callbacks.items() if isinstance(events, dict) else ():
            if isinstance(events.get(kind), dict):
                callback(events[kind])

    _listener(key=key, data={"events": list(callbacks), "channel": channel}, on_events_change=received)


def show_marks(
    *,
    channel: str,
    selected: int | None,
    at: MapPoint | None = None,
    hint: MapPoint | None = None,
    near: Sequence[MapPoint] = (),
    paths: Sequence[EpisodePath] = (),
    every: int = 10,
    seek: bool = False,
) -> None:
    """Draw rings around points of a map, and the paths of episodes.

    Args:
        channel: The map.
        selected: Slot of the selected node.
        at: Point of the selected node.
        hint: Point of a node that the reader is asked to select.
        near: Points of its neighbors.
        paths: Episodes.
        every: Number of steps between two marks on a path.
        seek: A click on the first path moves the cursor of the player instead of selecting a node.
    """
    data = {
        "channel": channel, "selected": selected, "at": at, "hint": hint, "near": list(near), "traces": list(paths),
        "every": every, "seek": seek,
    }  # fmt: skip
    _marker(key=f"{channel}-marker", data=data)
