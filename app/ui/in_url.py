"""Bind widgets to the URL under a chosen parameter name, independent of the widget's labels and key.

Streamlit's `bind="query-params"` writes the label of an option, so a label with a count makes a link that becomes
invalid. It also uses the widget's key as the parameter, so two pages cannot use the same name. The functions here set
a widget from the URL when its page is opened, and write the URL when the widget changes.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypedDict

import streamlit as st

from app.ui import state

LONGEST_TEXT = 500


class Bound(TypedDict):
    """Arguments that bind a widget."""

    key: str
    on_change: Callable[[], None]


class BoundChoice(Bound):
    """Arguments that bind a widget with options."""

    options: list[Any]


def text(page: str, parameter: str, on_change: Callable[[], None] | None = None) -> Bound:
    """Bind a text field."""
    key = f"{page}-{parameter}"
    if key not in st.session_state:
        st.session_state[key] = (st.query_params.get(parameter) or "")[:LONGEST_TEXT]

    def changed() -> None:
        state.write(parameter, st.session_state[key] or None)
        if on_change:
            on_change()

    return Bound(key=key, on_change=changed)


def flag(page: str, parameter: str) -> Bound:
    """Bind a toggle that is off by default."""
    key = f"{page}-{parameter}"
    if key not in st.session_state:
        st.session_state[key] = st.query_params.get(parameter) == "true"

    def changed() -> None:
        state.write(parameter, "true" if st.session_state[key] else None)

    return Bound(key=key, on_change=changed)


def several(
    page: str, parameter: str, options: Sequence[str], on_change: Callable[[], None] | None = None
) -> BoundChoice:
    """Bind a choice of several options.

    Values of the URL that are not options are ignored. A selected value remains an option if `options` changes.
    """
    key = f"{page}-{parameter}"
    if key not in st.session_state:
        url_values = state.read_list(parameter)
        st.session_state[key] = [option for option in options if option in url_values]
    former_options = [value for value in st.session_state[key] or () if value not in options]

    def changed() -> None:
        state.write_list(parameter, st.session_state[key] or [])
        if on_change:
            on_change()

    return BoundChoice(key=key, on_change=changed, options=[*options, *former_options])


def one(
    page: str,
    parameter: str,
    options: Sequence[str],
    on_change: Callable[[], None] | None = None,
    *,
    default: str | None = None,
) -> BoundChoice:
    """Bind a choice of one option. The default option, `default` or the first one, is not written into the URL."""
    key = f"{page}-{parameter}"
    default_option = options[0] if default is None else default
    if st.session_state.get(key) not in options:
        url_value = state.read_text(parameter)
        st.session_state[key] = url_value if url_value in options else default_option

    def changed() -> None:
        value = st.session_state[key]
        state.write(parameter, None if value == default_option else value)
        if on_change:
            on_change()

    return BoundChoice(key=key, on_change=changed, options=list(options))


def key_of(page: str, parameter: str, options: Sequence[str]) -> dict[str, Any]:
    """Bind a choice of one option whose widget gets its options elsewhere. The URL sets the widget at every rerun."""
    key, url_value = f"{page}_{parameter}", state.read_text(parameter)
    st.session_state[key] = url_value if url_value in options else options[0]

    def changed() -> None:
        value = st.session_state[key]
        state.write(parameter, None if value == options[0] else value)

    return {"key": key, "on_change": changed}
