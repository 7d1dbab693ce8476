"""Widgets whose choice stands in the URL under a name of its own, whatever the widget shows for it.

Streamlit's own binding writes what is shown, so that a label with a count in it makes no lasting link, and it ties the
name in the URL to the widget's key, so that two pages cannot share a name. A widget is seeded from the URL when its
page is opened; afterwards it writes what is chosen.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypedDict

import streamlit as st

from app.ui import state

LONGEST_TEXT = 500


class Bound(TypedDict):
    """What binds a widget."""

    key: str
    on_change: Callable[[], None]


class BoundChoice(Bound):
    """What binds a widget that chooses among options."""

    options: list[Any]


def text(page: str, parameter: str, on_change: Callable[[], None] | None = None) -> Bound:
    """Bind a field of text."""
    key = f"{page}-{parameter}"
    if key not in st.session_state:
        st.session_state[key] = (st.query_params.get(parameter) or "")[:LONGEST_TEXT]

    def changed() -> None:
        state.write(parameter, st.session_state[key] or None)
        if on_change:
            on_change()

    return Bound(key=key, on_change=changed)


def flag(page: str, parameter: str) -> Bound:
    """Bind a toggle that is usually off."""
    key = f"{page}-{parameter}"
    if key not in st.session_state:
        st.session_state[key] = st.query_params.get(parameter) == "true"

    def changed() -> None:
        state.write(parameter, "true" if st.session_state[key] else None)

    return Bound(key=key, on_change=changed)


def several(
    page: str, parameter: str, options: Sequence[str], on_change: Callable[[], None] | None = None
) -> BoundChoice:
    """Bind a choice of several; what is chosen stays among the options, and what the URL names beyond them goes."""
    key = f"{page}-{parameter}"
    if key not in st.session_state:
        given = state.read_list(parameter)
        st.session_state[key] = [each for each in options if each in given]
    kept = [each for each in st.session_state[key] or () if each not in options]

    def changed() -> None:
        state.write_list(parameter, st.session_state[key] or [])
        if on_change:
            on_change()

    return BoundChoice(key=key, on_change=changed, options=[*options, *kept])


def one(
    page: str,
    parameter: str,
    options: Sequence[str],
    on_change: Callable[[], None] | None = None,
    *,
    usual: str | None = None,
) -> BoundChoice:
    """Bind a choice of one; the usual option, the first unless told, leaves the URL bare."""
    key = f"{page}-{parameter}"
    bare = options[0] if usual is None else usual
    if st.session_state.get(key) not in options:
        given = state.read_text(parameter)
        st.session_state[key] = given if given in options else bare

    def changed() -> None:
        value = st.session_state[key]
        state.write(parameter, None if value == bare else value)
        if on_change:
            on_change()

    return BoundChoice(key=key, on_change=changed, options=list(options))


def key_of(page: str, parameter: str, options: Sequence[str]) -> dict[str, Any]:
    """Bind a widget that takes its options by itself: at every run the URL decides, by the option's own key."""
    key, given = f"{page}_{parameter}", state.read_text(parameter)
    st.session_state[key] = given if given in options else options[0]

    def changed() -> None:
        chosen = st.session_state[key]
        state.write(parameter, None if chosen == options[0] else chosen)

    return {"key": key, "on_change": changed}
