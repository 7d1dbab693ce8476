"""A silent component: when the database has something newer than what is drawn, it asks for one redraw."""

from collections.abc import Callable

from streamlit.components.v2 import component

from app.figures.assets import read_asset

_pulse = component("emtc_lab_pulse", js=read_asset("pulse.js"))


def show(*, key: str, version: str, drawn: str, on_news: Callable[[], None]) -> None:
    """Call `on_news` once for each version that differs from the drawn one."""
    _pulse(key=key, data={"version": version, "drawn": drawn}, on_news_change=on_news)
