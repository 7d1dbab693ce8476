"""Typed values in the URL's query string: the run and the view of a page.

Widgets with `bind="query-params"` read and write their parameter themselves. The functions here read and write the
other parameters. A URL may contain anything, so a value that cannot be parsed is ignored.
"""

from collections.abc import Sequence
from math import isfinite
from typing import Literal

import streamlit as st

RUN = "run"
RUNS = "runs"
SNAPSHOT = "snap"
POINT = "point"
EPISODE = "episode"
START = "t"
TOUR = "tour"
BESIDE_RUN = "beside_run"
WINDOW = "x"
_MAX_CHARACTERS = 64
_MAX_CHARACTERS_IN_LIST = 256
_MAX_VALUES_IN_LIST = 500


def read_text(name: str) -> str | None:
    """Read a short text, or None."""
    value = st.query_params.get(name)
    return value if value and len(value) <= _MAX_CHARACTERS else None


def read_long(name: str, max_characters: int) -> str:
    """Read a text of limited length; an empty text if there is none."""
    value = st.query_params.get(name) or ""
    return value if len(value) <= max_characters else ""


def read_int(name: str) -> int | None:
    """Read an integer of at most 18 digits, or None."""
    text = read_text(name)
    digits = text.removeprefix("-") if text else ""
    return int(text) if text and digits.isdecimal() and digits.isascii() and len(digits) <= 18 else None


def bind_int(name: str) -> Literal["query-params"] | None:
    """Return the `bind` of an integer widget: None if the page was opened with a value that is not an integer.

    Streamlit sets a bound widget from the URL with which the page was opened, even if the parameter was removed since,
    and fails on "1e999". Such a widget is not bound for the rest of the session.
    """
    unreadable = f"{name} was unreadable"
    if name in st.query_params and read_int(name) is None:
        st.query_params.pop(name, None)
        st.session_state[unreadable] = True
    return None if st.session_state.get(unreadable) else "query-params"


def read_list(name: str, separator: str = ",") -> list[str]:
    """Read several short texts: "a,b,c", a repeated parameter, or both. Without a separator: only repeated."""
    values = st.query_params.get_all(name)
    parts = [part.strip() for text in values for part in (text.split(separator) if separator else [text])]
    parts = [part for part in parts if part and len(part) <= _MAX_CHARACTERS_IN_LIST]
    return list(dict.fromkeys(parts))[:_MAX_VALUES_IN_LIST]


def write_list(name: str, values: Sequence[str], separator: str = ",") -> None:
    """Write several texts into the URL, joined, or repeated without a separator. An empty list removes the name."""
    if not values:
        st.query_params.pop(name, None)
    elif separator:
        write(name, separator.join(values))
    else:
        st.query_params[name] = list(values)


def read_window(name: str = WINDOW) -> tuple[float, float] | None:
    """Read "from-to" as an x window, or None."""
    low, _, high = (read_text(name) or "").partition("-")
    try:
        window = float(low), float(high)
    except ValueError:
        return None
    return window if all(map(isfinite, window)) and window[0] < window[1] else None


def write(name: str, value: object | None) -> None:
    """Write a value into the URL; None removes the name. Writing the same value again has no effect."""
    if value is None:
        st.query_params.pop(name, None)
    elif st.query_params.get(name) != str(value):
        st.query_params[name] = str(value)


def write_window(window: list[float] | None) -> None:
    """Write an x window into the URL; None or an empty list removes it."""
    write(WINDOW, f"{window[0]:.0f}-{window[1]:.0f}" if window and window[0] >= 0 else None)
