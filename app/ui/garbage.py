"""Keeps full garbage collections short. Streamlit collects after every run of a page and every fragment update.

A full collection visits every object. With the imported modules of a few pages these are 270,000 objects, and all
threads stop for 150 to 250 ms. A fragment update on the page Live took that much longer, and a click on another page
during this time could be lost.
"""

import gc
import sys
from typing import Any

import streamlit as st
from streamlit.runtime import Runtime, exists, get_instance


@st.cache_resource(show_spinner=False)
def freeze_imported_modules() -> None:
    """Exclude the objects of imported modules from full collections, again after each later import.

    Reference counting still frees frozen objects; only unreachable cycles among them stay in memory. Does nothing
    without a Streamlit server, as in tests.
    """
    if exists() and type(get_instance()) is Runtime:
        gc.callbacks.append(_FreezeAfterImports())


class _FreezeAfterImports:
    """A callback of `gc` that freezes the surviving objects if modules were imported since the last freeze."""

    def __init__(self) -> None:
        self._n_modules = 0

    def __call__(self, phase: str, info: dict[str, Any]) -> None:
        if phase == "stop" and info["generation"] == 2 and len(sys.modules) > self._n_modules:
            self._n_modules = len(sys.modules)
            gc.freeze()
