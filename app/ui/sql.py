"""The question: a box, examples to begin with, limits, and the button that asks.

The tables with their columns and what they mean, beside the box.

The answer: a table, how much it is, and its files.
"""

import threading
from functools import partial
from typing import Final

import pandas as pd
import streamlit as st

from app.analysis.format import escape_markdown, format_count
from app.analysis.tables import (
    NO_PARQUET,
    TABLE_MIME,
    TABLE_SUFFIX,
    TableFormat,
    can_write_parquet,
    export_table,
    make_plain_table,
)
from app.ui import data, messages
from emtc_core.errors import EmtcError, StorageError
from storage.sql_console.glossary import EXAMPLES, describe_schema
from storage.sql_console.query import MAX_QUERY_LENGTH, QueryResult, run_query

_KEPT: Final = "answer"
_FORMATS: Final[dict[TableFormat, str]] = {"csv": "CSV", "parquet": "Parquet"}


def keep(answer: QueryResult) -> None:
    """Show this answer until there is another one."""
    st.session_state[_KEPT] = answer


def forget() -> None:
    """Show no answer."""
    st.session_state.pop(_KEPT, None)


def show_answer() -> None:
    """Draw the last answer, if there is one."""
    answer = st.session_state.get(_KEPT)
    if not isinstance(answer, QueryResult):
        return
    st.subheader("Answer")
    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="center"):
        told = answer.truncation or f"{format_count(len(answer.rows))} row{'' if len(answer.rows) == 1 else 's'}."
        st.caption(escape_markdown(f"{told} {answer.seconds:.1f} s"), width="stretch")
        _offer(answer)
    if answer.rows:
        st.dataframe(answer.frame(), hide_index=True, key="answer_table", alt="The rows that answer the question.")
    else:
        st.markdown("No row answers this. Look at the columns beside the box, or loosen the condition.")


def _offer(answer: QueryResult) -> None:
    """Offer the rows as files, which are made when they are asked for."""
    for format, label in _FORMATS.items():
        can = format != "parquet" or can_write_parquet()
        st.download_button(
            label,
            data=partial(export_table, make_plain_table(answer.frame()), format) if can else b"",
            file_name=f"answer.{TABLE_SUFFIX[format]}",
            mime=TABLE_MIME[format],
            icon=":material/download:",
            key=f"answer-{format}",
            on_click="ignore",
            disabled=not can,
            help=None if can else NO_PARQUET,
        )


def show_schema() -> None:
    """Draw the choice of a table and what its columns mean."""
    tables = {table.name: table for table in describe_schema()}
    chosen = st.selectbox(
        "Table", list(tables), key="table", bind="query-params",
        format_func=lambda name: f"{name}: {tables[name].meaning}", help="A blob is shown by its size.",
    )  # fmt: skip
    table = tables[chosen or "runs"]
    columns = [{"Column": each.name, "Type": each.kind, "Meaning": each.meaning} for each in table.columns]
    st.dataframe(
        pd.DataFrame(columns),
        hide_index=True,
        height=390,
        key="columns",
        column_config={name: st.column_config.TextColumn(width="small") for name in ("Column", "Type")},
        alt=f"Columns of the table {table.name}, their types and what they mean.",
    )
    if data.database().dialect == "sqlite":
        st.caption(escape_markdown("Times are text in UTC, as 2026-01-31 12:00:00; a boolean is 1 or 0."))


_KEY: Final = "q"
_LIMITS: Final = (100, 1000, 10_000, 100_000)
_SECONDS: Final = 10.0
_AT_ONCE: Final = threading.BoundedSemaphore(2)
"""So many questions of all visitors at the same time: each is a process of its own."""


def show() -> None:
    """Draw the box; it stands in the address, and is asked by its button alone."""
    st.selectbox("Begin with", list(EXAMPLES), index=None, key="example", on_change=_take, placeholder="An example")
    with st.form("sql", border=False):  # in a form Ctrl+Enter asks
        box = st.container()  # is filled last: in a form whose button has not arrived yet, Ctrl+Enter does nothing
        with st.container(horizontal=True, vertical_alignment="bottom"):
            limit = st.selectbox(
                "Rows at most", _LIMITS, index=1, key="rows", format_func=lambda n: f"{n:,}", width=160
            )
            asked = st.form_submit_button("Ask", type="primary", icon=":material/play_arrow:", key="ask")
        query = box.text_area(
            "Question", key=_KEY, height=240, max_chars=MAX_QUERY_LENGTH, bind="query-params",
            placeholder="select name, win_rate from runs", help="One statement that reads; the link carries it.",
        )  # fmt: skip
    if asked:
        _ask(query or "", int(limit or _LIMITS[1]))
    st.caption(
        f"Ctrl+Enter asks. A question that takes longer than {_SECONDS:.0f} s is ended. The same on the command line, "
        "with more time: `emtc sql`."
    )


def _take() -> None:
    chosen = st.session_state.get("example")
    if chosen in EXAMPLES:
        st.session_state[_KEY] = EXAMPLES[chosen]


def _ask(query: str, limit: int) -> None:
    forget()
    try:
        if not _AT_ONCE.acquire(blocking=False):
            raise StorageError("Others are asking just now. Ask again in a few seconds.")
        try:
            with st.spinner("Asking …"):
                keep(run_query(data.database(), query, max_rows=limit, seconds=_SECONDS))
        finally:
            _AT_ONCE.release()
    except EmtcError as exc:
        messages.error(exc)
