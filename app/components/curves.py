"""Stacked line panels that keep the reader's window and hidden lines when new points arrive."""

from collections.abc import Callable

import streamlit as st
from streamlit.components.v2 import component

from app.components.assets import read_asset, read_script
from app.figures.chart import Chart

_curves = component(
    "emtc_lab_curves",
    html='<div class="curves" tabindex="0" role="img"><canvas></canvas><div class="tip" hidden></div></div>',
    css=read_asset("curves.css"),
    js=read_script("curves.js"),
)


def show(
    chart: Chart,
    *,
    key: str,
    window: tuple[float, float] | None = None,
    panel_height: int = 130,
    on_window: Callable[[list[float]], None] | None = None,
    x_name: str = "env step",
    legend: bool = True,
) -> None:
    """Draw a chart; `on_window` hears which x window the reader chose, an empty list for all of it.

    Without `legend` the lines' names stand in the tooltip alone: for charts that share one legend.
    """

    def heard() -> None:
        state = st.session_state.get(key)
        chosen = state.get("window") if state else None
        if on_window is not None and chosen is not None:
            on_window(list(chosen))

    data = chart.to_component() | {
        "window": list(window) if window else None,
        "panelHeight": panel_height,
        "xName": x_name,
        "legend": legend,
    }
    _curves(key=key, data=data, on_window_change=heard)
