"""A select box whose choice stands in the URL by its id, whatever its label is called today."""

from collections.abc import Mapping

import streamlit as st

from app.ui import state


def show(label: str, names: Mapping[str, str], *, key: str, text: str) -> str:
    """Draw the box and return the chosen id; `key` is the URL's parameter, `text` the help."""
    widget, ids = f"{key}_chosen", list(names)
    wanted = state.read_text(key)
    st.session_state[widget] = wanted if wanted in names else ids[0]

    def heard() -> None:
        chosen = st.session_state[widget]
        state.write(key, None if chosen == ids[0] else chosen)

    return st.selectbox(
        label, ids, format_func=lambda each: names.get(each, str(each)), key=widget, on_change=heard, help=text
    )
