"""A select box whose URL parameter is the id of the selected option, independent of its label."""

from collections.abc import Mapping
from typing import Final

import streamlit as st

from app.ui import state

SWEEP: Final = "sweep"
"""URL parameter of the selected sweep."""


def select_by_id(label: str, names: Mapping[str, str], *, parameter: str, help: str) -> str:
    """Draw the box and return the id of the selected option.

    Args:
        label: Label of the box.
        names: Id → label of each option. The first option is the default; it is not written to the URL.
        parameter: URL parameter. Its value decides the selection at every run of the page.
        help: Tooltip.
    """
    key, ids = f"{parameter}_chosen", list(names)
    id_in_url = state.read_text(parameter)
    st.session_state[key] = id_in_url if id_in_url in names else ids[0]

    def write_url() -> None:
        selected = st.session_state[key]
        state.write(parameter, None if selected == ids[0] else selected)

    return st.selectbox(
        label, ids, format_func=lambda option: names.get(option, str(option)), key=key, on_change=write_url, help=help
    )
