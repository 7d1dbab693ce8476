"""The question: a box, examples to begin with, limits, and the button that asks."""

import threading
from typing import Final

import streamlit as st

from app.ui import data, messages
from app.ui.sql import answer
from emtc_core.errors import EmtcError, StorageError
from storage.sql_console.glossary import EXAMPLES
from storage.sql_console.question import LONGEST_QUESTION, ask

_KEY: Final = "q"
_LIMITS: Final = (100, 1000, 10_000, 100_000)
_SECONDS: Final = 10.0
_AT_ONCE: Final = threading.BoundedSemaphore(2)
"""So many questions of all visitors at the same time: each is a process of its own."""


def show() -> None:
    """Draw the box; it stands in the address, and is asked by its button alone."""
    st.selectbox("Begin with", list(EXAMPLES), index=None, key="example", on_change=_take, placeholder="An example")
    query = st.text_area(
        "Question", key=_KEY, height=240, max_chars=LONGEST_QUESTION, bind="query-params",
        placeholder="select name, win_rate from runs", help="One statement that reads; the link carries it.",
    )  # fmt: skip
    with st.container(horizontal=True, vertical_alignment="bottom"):
        limit = st.selectbox("Rows at most", _LIMITS, index=1, key="rows", format_func=lambda n: f"{n:,}", width=160)
        if st.button("Ask", type="primary", icon=":material/play_arrow:", key="ask"):
            _ask(query or "", int(limit or _LIMITS[1]))
    st.caption(f"Ended after {_SECONDS:.0f} s. The same on the command line, with more time: `emtc sql`.")


def _take() -> None:
    chosen = st.session_state.get("example")
    if chosen in EXAMPLES:
        st.session_state[_KEY] = EXAMPLES[chosen]


def _ask(query: str, limit: int) -> None:
    answer.forget()
    try:
        if not _AT_ONCE.acquire(blocking=False):
            raise StorageError("Others are asking just now. Ask again in a few seconds.")
        try:
            with st.spinner("Asking …"):
                answer.keep(ask(data.database(), query, most_rows=limit, seconds=_SECONDS))
        finally:
            _AT_ONCE.release()
    except EmtcError as exc:
        messages.error(exc)
