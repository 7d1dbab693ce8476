"""The map of the episodic memory: a canvas in the browser, which computes colors, filters and selections itself.

A point of the map is a node: one stored state of the memory. A node is identified by its slot, the place in the memory.
The server reads the view from the page's URL and sends it to the browser, with the URLs of the values of the nodes. The
scripts in the browser call the map "atlas".

A map has three Streamlit components: the canvas, the marks (selected node, paths of episodes), and the listener for
events. Because they are separate, a click sends only new marks and not the map again, and an event reruns only one
fragment of the page.
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
from app.figures.kinds.maps import describe_color_limits
from app.figures.theme import BINARY_COLORS, VIRIDIS, VIRIDIS_ON_DARK
from app.ui.memory.columns import Columns, publish_column
from app.ui.page_state import TOUR

MapEvent = Literal["pick", "select", "view"]
"""pick: a point was selected. select: a region or range was selected. view: color or camera changed."""
_MAX_EVENT_CHARACTERS = 20_000
_KEYBOARD_HELP: Final = (
    "Arrow keys pan, plus and minus zoom, 0 shows all points, n and p select the next and previous point, s selects "
    "the points in view, Escape clears the selection."
)
MapPoint = list[float]
"""x and y on the map."""


@dataclass(frozen=True)
class MapView:
    """The view that the page's URL requests."""

    color: str
    camera: tuple[float, float, float] | None  # center x and y, and width of the visible part, in units of the axes
    selection: NodeSelection


@dataclass(frozen=True)
class MapIdentity:
    """Identifies a map, and defines what it shares with other maps of the page."""

    channel: str  # unique on the page; the name under which the browser's components exchange messages
    group: str  # maps of one group share color, filters and selection; empty: no group
    run: str  # maps of one run also share the selected slot
    nodes: str  # key of the snapshot (the memory at one env step) that contains the nodes
    kind: str  # maps of one kind share the camera: two snapshots with the same projection


class EpisodePath(TypedDict):
    """The path of an episode on the map. The lists have one value for each step."""

    label: str
    color: NotRequired[str]
    points: list[MapPoint | None]  # None: the node of the step is not in the snapshot
    beta: list[float | None]  # gate coefficient, the weight of the episodic incentive
    delta_mem: list[float | None]  # consistency error [return]
    jumps: list[int]  # steps with the largest delta_mem; the map labels them with t and delta_mem


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
    n_memory_nodes: int,
) -> None:
    """Draw a map.

    Args:
        columns: Every quantity of every node.
        points: Coordinates [M, 2] of the nodes, in the snapshot's order.
        color_limits: Values at the ends of each quantity's color scale.
        identity: The map's channel and what it shares with other maps.
        coordinates_key: A text that identifies the coordinates.
        view: The view with which the map opens.
        alt: Text alternative of the picture.
        n_memory_nodes: Number of nodes of the whole memory. The snapshot may be a sample of them.
    """
    coordinates = points.coordinates[columns.order]  # from the order of the snapshot to the drawing order
    slot_column = {"key": "slot", "name": "memory", "unit": "id", "meaning": "slot in the memory", "colored": False}
    slot_column |= publish_column(f"slot-{identity.nodes}", columns.slot)
    quantity_columns = [
        _describe_column(key, color_limits[key]) | publish_column(f"{key}-{identity.nodes}", values)
        for key, values in columns.quantities.items()
    ]
    camera = None
    if view.camera is not None:
        center_x, center_y, width = view.camera
        camera = {"x": center_x, "y": center_y, "span": width}
    meta = {
        "n": len(coordinates),
        "nMemory": n_memory_nodes,
        "x": publish_column(f"x-{coordinates_key}", coordinates[:, 0]),
        "y": publish_column(f"y-{coordinates_key}", coordinates[:, 1]),
        "xLabel": points.x_label,
        "yLabel": points.y_label,
        "columns": [slot_column, *quantity_columns],
        "lut": list(VIRIDIS),
        "darkLut": list(VIRIDIS_ON_DARK),
        "binaryColors": list(BINARY_COLORS),
        "kind": identity.kind,
        "channel": identity.channel,
        "group": identity.group,
        "run": identity.run,
        "tourStep": TOUR.read(),  # if it changes, the map applies the view of the URL again
        "view": {
            "color": view.color,
            "camera": camera,
            "polygon": [list(corner) for corner in view.selection.polygon] or None,
            "filters": {key: list(limits) for key, limits in view.selection.ranges.items()},
        },
        "alt": f"{alt} {_KEYBOARD_HELP}",
    }
    _atlas(key=identity.channel, data=meta)


def on_event(callbacks: Mapping[MapEvent, Callable[[dict[str, Any]], None]], *, channel: str) -> None:
    """Call a function when an event of a map arrives. Call this inside the fragment that the event must rerun.

    Two fragments must not use the same kind of event. Streamlit would rerun only one of them.

    Args:
        callbacks: Functions by kind of event. The event is sent by a browser, so the function must validate it.
        channel: The map.
    """
    key = f"events-{'-'.join(callbacks)}-{channel}"

    def call_callbacks() -> None:
        text = getattr(st.session_state.get(key), "events", None)
        if not isinstance(text, str) or len(text) > _MAX_EVENT_CHARACTERS:
            return
        events = json.loads(text)
        if not isinstance(events, dict):
            return
        for kind, callback in callbacks.items():
            event = events.get(kind)
            if isinstance(event, dict):
                callback(event)

    _listener(key=key, data={"events": list(callbacks), "channel": channel}, on_events_change=call_callbacks)


def show_marks(
    *,
    channel: str,
    selected_slot: int | None,
    selected_point: MapPoint | None = None,
    suggested_point: MapPoint | None = None,
    neighbors: Sequence[MapPoint] = (),
    outliers: Sequence[MapPoint] = (),
    paths: Sequence[EpisodePath] = (),
    steps_per_mark: int = 10,
    path_moves_player: bool = False,
) -> None:
    """Draw rings around points of a map, and the paths of episodes.

    Args:
        channel: The map.
        selected_slot: Slot of the selected node.
        selected_point: Point of the selected node.
        suggested_point: Point of a node that the tour asks the user to select.
        neighbors: Points of the neighbors of the selected node.
        outliers: Points of nodes whose return differs from that of their neighbors.
        paths: Paths of episodes.
        steps_per_mark: Number of steps between two marks on a path.
        path_moves_player: A click on the first path moves the cursor of the player instead of selecting a node.
    """
    data = {  # the keys are the names in atlas.js
        "channel": channel,
        "selected": selected_slot,
        "selectedPoint": selected_point,
        "suggestedPoint": suggested_point,
        "neighbors": list(neighbors),
        "outliers": list(outliers),
        "paths": list(paths),
        "stepsPerMark": steps_per_mark,
        "pathMovesPlayer": path_moves_player,
    }
    _marker(key=f"{channel}-marker", data=data)


def _describe_column(key: str, color_limits: tuple[float, float]) -> dict[str, object]:
    """Describe a quantity of the nodes for the browser: its names, its values and its color scale."""
    quantity = NODE_QUANTITIES[key]
    low, high = color_limits
    description: dict[str, object] = {
        "key": key,
        "name": quantity.name,
        "unit": quantity.unit,
        "meaning": quantity.meaning,
        "binary": quantity.is_binary,
        "whole": quantity.is_integer or quantity.is_binary,
        "colored": True,
        "low": low,
        "high": high,
        "noEffect": quantity.no_effect,  # value of ordinary nodes, which are drawn gray
        "ends": describe_color_limits(quantity),
        "log": quantity.is_log,
    }
    if quantity.value_names:
        description["words"] = list(quantity.value_names)
    return description
