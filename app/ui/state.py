"""What a link carries: the run and every choice of view, typed, in the URL's query string.

Widgets bind to these names (`bind="query-params"`), and values that no widget owns are read and written
here. A value from a URL is a stranger's: whatever cannot be read is dropped.
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

_LONGEST = 64
_LONGEST_IN_LIST = 256
_MOST_IN_LIST = 500


def read_text(name: str) -> str | None:
    """Read a short text, or None."""
    value = st.query_params.get(name)
    return value if value and len(value) <= _LONGEST else None


def read_long(name: str, longest: int) -> str:
    """Read a text of bounded length; empty when there is none."""
    value = st.query_params.get(name) or ""
    return value if len(value) <= longest else ""


def read_int(name: str) -> int | None:
    """Read a whole number of at most 18 digits, or None."""
    text = read_text(name)
    digits = text.removeprefix("-") if text else ""
    return int(text) if text and digits.isdecimal() and digits.isascii() and len(digits) <= 18 else None


def bind_int(name: str) -> Literal["query-params"] | None:
    """Bind a widget that counts to the URL, unless this page was opened with a value that is no whole number.

    Streamlit seeds a bound widget from the address as it was opened, whatever was taken out of it since, and
    fails on "1e999"; such a widget stays unbound for the session.
    """
    unreadable = f"{name} was unreadable"
    if name in st.query_params and read_int(name) is None:
        st.query_params.pop(name, None)
        st.session_state[unreadable] = True
    return None if st.session_state.get(unreadable) else "query-params"


def read_list(name: str, separator: str = ",") -> list[str]:
    """Read several short texts: "a,b,c", the parameter repeated, or both; without a separator only repeated."""
    given = st.query_params.get_all(name)
    parts = [part.strip() for text in given for part in (text.split(separator) if separator else [text])]
    return list(dict.fromkeys(part for part in parts if part and len(part) <= _LONGEST_IN_LIST))[:_MOST_IN_LIST]


def write_list(name: str, values: Sequence[str], separator: str = ",") -> None:
    """Put several texts into the URL, joined, or repeated when there is no separator; none take it out."""
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
    """Put a value into the URL; None takes it out. The same value again changes nothing."""
    if value is None:
        st.query_params.pop(name, None)
    elif st.query_params.get(name) != str(value):
        st.query_params[name] = str(value)


def write_window(window: list[float] | None) -> None:
    """Put an x window into the URL; None or an empty one takes it out."""
    write(WINDOW, f"{window[0]:.0f}-{window[1]:.0f}" if window and window[0] >= 0 else None)
