"""The map of the memory: a canvas fed with raw float32 bytes, one click out.

The cloud is sent only when it changes; which point is selected, and the path of its trajectory, go through a
small component beside it.
"""

from collections.abc import Callable, Sequence

import numpy as np
import streamlit as st
from streamlit.components.v2 import component

from app.components.assets import read_asset, read_script
from app.components.packing import pack_payload
from app.figures.cloud import QUANTITIES, Cloud

Place = list[float]
"""x and y on the map."""

_atlas = component(
    "emtc_lab_atlas", html=read_asset("atlas.html"), css=read_asset("atlas.css"), js=read_script("atlas.js")
)
_marker = component("emtc_lab_marker", js=read_asset("marker.js"))


def show(cloud: Cloud, *, key: str, view_key: str, on_point: Callable[[int], None]) -> None:
    """Draw the cloud; `on_point` hears the slot of a clicked point. The same `view_key` keeps the view."""

    def heard() -> None:
        state = st.session_state.get(key)
        slot = state.get("point") if state else None
        if slot is not None:
            on_point(int(slot))

    meta = {
        "n": len(cloud.slot),
        "xLabel": cloud.x_label,
        "yLabel": cloud.y_label,
        "valueName": cloud.quantity.name,
        "valueLabel": cloud.value_label,
        "fields": [{"name": QUANTITIES[name].name, "array": f"field-{name}"} for name, _ in cloud.fields],
        "binary": cloud.quantity.binary,
        "lut": list(cloud.colors),
        "low": cloud.low,
        "high": cloud.high,
        "equal": not cloud.x_label.startswith("embedding"),
        "viewKey": view_key,
        "channel": key,
        "alt": cloud.description + " Arrow keys pan, plus and minus zoom, n and p step through the points.",
    }
    arrays = {"x": cloud.x, "y": cloud.y, "value": cloud.value, "slot": cloud.slot.astype(np.int32)}
    for name, values in cloud.fields:
        arrays[f"field-{name}"] = values
    _atlas(key=key, data=pack_payload(meta, arrays), on_point_change=heard)


def mark(*, channel: str, selected: int | None, at: Place | None = None, trace: Sequence[Place | None] = ()) -> None:
    """Ring the selected point of the map `channel` and draw the path of its trajectory, one place per step."""
    _marker(
        key=f"{channel}-marker",
        data={"channel": channel, "selected": selected, "at": at, "trace": list(trace)},
    )
