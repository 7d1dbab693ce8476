"""What a map says, heard by one part of a page: that part is drawn anew, and no other."""

import json
from collections.abc import Callable, Mapping
from typing import Any, Literal

import streamlit as st
from streamlit.components.v2 import component

from app.figures.assets import read_asset

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
