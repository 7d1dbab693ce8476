"""Episodes on their fields with their values under the same time cursor; the data are sent once."""

from collections.abc import Sequence

import streamlit as st
from streamlit.components.v2 import component

from app.analysis.format import escape_markdown
from app.figures.assets import read_asset, read_script
from app.figures.kinds.chart import Chart
from app.replay.payload import make_payload
from app.replay.replay import Side
from emtc_core.envs.base import Scene

_playback = component(
    "emtc_lab_playback",
    html=read_asset("playback.html"),
    css=read_asset("playback.css"),
    js=read_script("field.js", "playback.js"),
)


def show(scene: Scene, chart: Chart, *, key: str, start: int = 0, title: str = "") -> None:
    """Draw the episode, first frame `start`; the lines of `chart` share its time axis, and nothing else does."""
    show_sides([Side(scene, chart, title, brief=True)], key=key, start=start)


def show_sides(sides: Sequence[Side], *, key: str, start: int = 0) -> None:
    """Draw one episode, or two side by side under one cursor and one bar."""
    for note in dict.fromkeys(side.scene.note for side in sides if side.hides_field and side.scene.note):
        st.info(escape_markdown(note), icon=":material/visibility_off:")  # why nothing can be drawn
    _playback(key=key, data=make_payload(sides, start=start))
