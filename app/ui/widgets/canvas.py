"""Components that draw on a canvas in the browser: line charts in stacked panels, and the player of episodes.

A line chart keeps its visible x range (the window) and its hidden lines when new points are added. The player draws the
scene of an episode (the positions of its units) and its values over time. Its data are sent to the browser once. A
third component, the smoothing slider, sets the smoothing of line charts.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import streamlit as st
from streamlit.components.v2 import component

from app.analysis.format import escape_markdown
from app.analysis.x_axes import X_AXES
from app.figures.assets import read_asset, read_script
from app.figures.kinds.chart import Chart
from app.replay.payload import make_payload
from app.replay.replay import EpisodeView
from emtc_core.envs.scene import Scene

_curves = component(
    "emtc_lab_curves",
    html='<div class="curves" tabindex="0" role="img"><canvas></canvas><div class="tip" hidden></div>'
    '<button class="enlarge" type="button" title="Full screen" aria-label="Full screen">'
    '<svg viewBox="0 0 16 16" width="14" height="14" fill="none" stroke="currentColor" stroke-width="1.6">'
    '<path d="M2 6V2h4M10 2h4v4M14 10v4h-4M6 14H2v-4"/></svg></button></div>',
    css=read_asset("curves.css"),
    js=read_script("ends.js", "curves.js"),
)
_SHORT_NAMES = {axis.label: axis.short_name for axis in X_AXES.values()}
"""Label of an x axis → its name in the tooltip, for `show`."""
_POINTED_BAND_NOTE = "only the line under the pointer has its band"
_smoothing = component(
    "emtc_lab_smoothing",
    html='<div class="smoothing"><label>Smoothing <input type="range" min="0" step="0.01"></label><output></output>'
    '<svg viewBox="0 0 16 16" width="18" height="18" fill="none" stroke="currentColor"><circle cx="8" cy="8" r="6.5"/>'
    '<path d="M6.2 6.4a1.8 1.8 0 1 1 2.6 1.6c-.6.3-.8.6-.8 1.3M8 11v1"/></svg></div>',
    css=read_asset("smoothing.css"),
    js=read_asset("smoothing.js"),
)
_playback = component(
    "emtc_lab_playback",
    html=read_asset("replay.html"),
    css=read_asset("replay.css"),
    js=read_script("field.js", "replay.js"),
)


@dataclass(frozen=True)
class SharedAxis:
    """What a chart shares with other charts of the page: not only the x axis, also cursor, height and smoothing."""

    link: str
    """Charts with the same link have one x window and one cursor."""
    height: int | None = None
    """Height of the whole chart [pixels]. The chart is higher if its panels do not fit with their minimum height."""
    extent: tuple[float, float] | None = None
    """The x range if no window is selected."""
    smoothing: float = 0.0
    """Weight of the moving average until the slider of `show_smoothing` changes it."""


def share_axis(link: str, charts: Iterable[Chart], *, height: int, smoothing: float = 0.0) -> SharedAxis:
    """Make the x axis, cursor, height and smoothing that these charts share. Its range contains the lines of all."""
    # first and last x of each line; nothing for an empty line
    ends = [
        float(x)
        for chart in charts
        for panel in chart.panels
        for line in panel.lines
        for x in (*line.x[:1], *line.x[-1:])
    ]
    extent = None
    if ends and min(ends) < max(ends):
        extent = (min(ends), max(ends))
    return SharedAxis(link, height, extent, smoothing)


def show_smoothing(
    *, key: str, link: str, weight: float, highest: float, help: str, on_weight: Callable[[float], None]
) -> None:
    """Draw the slider that smooths the charts with this link. The browser smooths them, without a rerun.

    Args:
        key: Key of the component.
        link: The link of the charts.
        weight: Weight of the moving average.
        highest: Largest weight.
        help: Tooltip of the slider.
        on_weight: Called with the new weight when the user has released the slider.
    """

    def changed() -> None:
        state = st.session_state.get(key)
        if state and (new_weight := state.get("weight")) is not None:
            on_weight(float(new_weight))

    data = {"link": link, "weight": weight, "max": highest, "help": help}
    _smoothing(key=key, data=data, on_weight_change=changed, width="content")


def show(
    chart: Chart,
    *,
    key: str,
    window: tuple[float, float] | None = None,
    panel_height: int = 130,
    on_window: Callable[[list[float]], None] | None = None,
    x_name: str = "",
    legend: bool = True,
    titles: bool = True,
    x_title: bool = True,
    bands: Literal["all", "pointed"] = "all",
    shared_axis: SharedAxis | None = None,
    on_press: Callable[[], None] | None = None,
) -> None:
    """Draw a line chart.

    Args:
        chart: The chart.
        key: Key of the component.
        window: The visible x range; None for all.
        panel_height: Height of a panel [pixels].
        on_window: Called with the two limits of the x range that the user selects; with an empty list for all.
        x_name: Name of the x axis in the tooltip. Default: that of the axis, as in `app.analysis.x_axes`.
        legend: Whether to draw the legend. False for charts that share a legend; the tooltip always names the lines.
        titles: Whether to draw the titles of the panels. False if the page has the title.
        x_title: Whether to write the title of the x axis. False if a chart below it has the same x axis and its title.
        bands: The lines whose band is drawn: all, or only the line that is nearest to the pointer or that a legend
            highlights. The subtitle of the chart states this.
        shared_axis: What the chart shares with other charts.
        on_press: Called when the user presses the chart, or its button *Enlarge*. None: the button shows the chart on
            the whole screen.
    """

    def changed() -> None:
        state = st.session_state.get(key)
        new_window = state.get("window") if state else None
        if on_window is not None and new_window is not None:
            on_window(list(new_window))

    data = chart.to_component() | {
        "window": list(window) if window else None,
        "panelHeight": panel_height,
        "xName": x_name or _SHORT_NAMES.get(chart.x_label, "env step"),
        "legend": legend,
        "titles": titles,
        "opens": on_press is not None,
        "xTitle": x_title,
        "bands": bands,
        "link": shared_axis.link if shared_axis else None,
        "height": shared_axis.height if shared_axis else None,
        "smoothing": shared_axis.smoothing if shared_axis else 0,
        "extent": list(shared_axis.extent) if shared_axis and shared_axis.extent else None,
    }
    if bands == "pointed" and any(line.low is not None for _, line in chart.panel_lines):
        data["subtitle"] = "; ".join(filter(None, (chart.subtitle, _POINTED_BAND_NOTE)))
    _curves(key=key, data=data, on_window_change=changed, on_opened_change=on_press or (lambda: None))


def show_episode(scene: Scene, chart: Chart, *, key: str, start: int = 0, title: str = "") -> None:
    """Draw the player of one episode, from frame `start`. The curves of the teams' health are left out."""
    show_episodes([EpisodeView(scene, chart, title, hides_health=True)], key=key, start=start)


def show_episodes(episodes: Sequence[EpisodeView], *, key: str, start: int = 0) -> None:
    """Draw the player of one episode, or of two next to each other with one time cursor and one control bar."""
    # the note of a scene without units is the reason why its units cannot be drawn
    reasons = [episode.scene.note for episode in episodes if not episode.has_units and episode.scene.note]
    for reason in dict.fromkeys(reasons):  # each reason once
        st.info(escape_markdown(reason), icon=":material/visibility_off:")
    _playback(key=key, data=make_payload(episodes, start=start))
