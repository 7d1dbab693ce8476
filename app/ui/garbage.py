"""Keeps short the search for garbage that Streamlit makes after every run of a page and every tick of a fragment.

It looks through all objects there are. With the libraries of a few pages these are 270,000, and no thread does anything
else for 150 to 250 ms: a tick of Live took that long after it was drawn, and a click on another page that arrived
meanwhile could be lost, as the ended run and the new one went on at the same moment.
"""

import gc
import sys
from typing import Any

import streamlit as st
from streamlit.runtime import Runtime, exists, get_instance


@st.cache_resource(show_spinner=False)
def spare_libraries() -> None:
    """Set aside, whenever modules were loaded, what a whole search has just found alive: none goes through it again.

    Objects set aside are freed as before once nothing refers to them; only a circle of them is kept for good. That
    happens as often as modules are loaded, which comes to an end. Without a server, as in tests, nothing is done.
    """
    if exists() and type(get_instance()) is Runtime:
        gc.callbacks.append(_Sparing())


class _Sparing:
    def __init__(self) -> None:
        self._modules = 0

    def __call__(self, phase: str, info: dict[str, Any]) -> None:
        if phase == "stop" and info["generation"] == 2 and len(sys.modules) > self._modules:
            self._modules = len(sys.modules)
            gc.freeze()
