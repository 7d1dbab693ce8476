"""What is drawn on a canvas in the browser: stacked line panels, and episodes on their fields.

Panels keep the reader's window and hidden lines when new points arrive. Episodes have their values under the same time
cursor; their data are sent once.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import streamlit as st
from streamlit.components.v2 import component

from app.analysis.format import escape_markdown
from app.figures.assets import read_asset, read_script
from app.figures.kinds.chart import Chart
from app.replay.payload import make_payload
from app.replay.replay import EpisodeView
from emtc_core.envs.base import Scene

_curves = component(
    "emtc_lab_curves",
    html='<div class="curves" tabindex="0" role="img"><canvas></canvas><div class="tip" hidden></div></div>',
    css=read_asset("curves.css"),
    js=read_script("ends.js", "curves.js"),
)


@dataclass(frozen=True)
class Place:
    """Where a chart stands among those that show one x window and one cursor."""

    link: str
    height: int | None = None
    """All panels with their titles and the axis [pixels]; a chart of many panels grows beyond it."""
    extent: tuple[float, float] | None = None
    """What all of them show when no window is chosen."""


def place_together(link: str, charts: Iterable[Chart], *, height: int) -> Place:
    """Find the place of charts that stand beside each other."""
    ends = [
        float(x)
        for chart in charts
        for panel in chart.panels
        for line in panel.lines
        for x in (*line.x[:1], *line.x[-1:])
    ]
    return Place(link, height, (min(ends), max(ends)) if ends and min(ends) < max(ends) else None)


def show(
    chart: Chart,
    *,
    key: str,
    window: tuple[float, float] | None = None,
    panel_height: int = 130,
    on_window: Callable[[list[float]], None] | None = None,
    x_name: str = "env step",
    legend: bool = True,
    place: Place | None = None,
) -> None:
    """Draw a chart; `on_window` hears which x window the reader chose, an empty list for all of it.

    Without `legend` the lines' names stand in the tooltip alone: for charts that share one legend. With a `place`
    the chart is one of several that go together.
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
        "link": place.link if place else None,
        "height": place.height if place else None,
        "extent": list(place.extent) if place and place.extent else None,
    }
    _curves(key=key, data=data, on_window_change=heard)


_playback = component(
    "emtc_lab_playback",
    html=read_asset("replay.html"),
    css=read_asset("replay.css"),
    js=read_script("field.js", "replay.js"),
)


def show_playback(scene: Scene, chart: Chart, *, key: str, start: int = 0, title: str = "") -> None:
    """Draw the episode, first frame `start`; the lines of `chart` share its time axis, and nothing else does."""
    show_sides([EpisodeView(scene, chart, title, hides_health=True)], key=key, start=start)


def show_sides(sides: Sequence[EpisodeView], *, key: str, start: int = 0) -> None:
    """Draw one episode, or two side by side under one cursor and one bar."""
    for note in dict.fromkeys(side.scene.note for side in sides if side.has_no_drawing and side.scene.note):
        st.info(escape_markdown(note), icon=":material/visibility_off:")  # why nothing can be drawn
    _playback(key=key, data=make_payload(sides, start=start))
