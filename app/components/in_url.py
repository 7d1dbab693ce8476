"""Choices that stand in the URL by their own names, whatever the widget shows for them.

Streamlit's own binding writes what is shown: a label with a count in it, or one in words, makes no lasting link.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypedDict

import streamlit as st

from app import state


class Bound(TypedDict):
    """Arguments of a widget that chooses among options."""

    options: list[Any]
    key: str
    on_change: Callable[[], None]


def several(parameter: str, options: Sequence[str], on_change: Callable[[], None] | None = None) -> Bound:
    """Bind a choice of several; what is chosen stays among the options, and what the URL names beyond them goes."""
    key = f"choose-{parameter}"
    if key not in st.session_state:
        st.session_state[key] = [each for each in options if each in state.read_list(parameter)]
    chosen = [each for each in st.session_state[key] or () if each not in options]

    def changed() -> None:
        state.write_list(parameter, st.session_state[key] or [])
        if on_change:
            on_change()

    return Bound(options=[*options, *chosen], key=key, on_change=changed)


def one(parameter: str, options: Sequence[str], on_change: Callable[[], None] | None = None) -> Bound:
    """Bind a choice of one; the first option is the usual one and leaves the URL bare."""
    key = f"choose-{parameter}"
    if st.session_state.get(key) not in options:
        given = state.read_text(parameter)
        st.session_state[key] = given if given in options else options[0]

    def changed() -> None:
        value = st.session_state[key]
        state.write(parameter, None if value == options[0] else value)
        if on_change:
            on_change()

    return Bound(options=list(options), key=key, on_change=changed)
