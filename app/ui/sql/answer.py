"""The answer: a table, how much it is, and its files."""

from functools import partial
from typing import Final

import streamlit as st

from app.analysis.format import count, escape_markdown
from app.analysis.tables import NO_PARQUET, TABLE_MIME, TABLE_SUFFIX, TableFormat, export_table, writes_parquet
from storage.sql_console.question import Answer

_KEPT: Final = "answer"
_FORMATS: Final[dict[TableFormat, str]] = {"csv": "CSV", "parquet": "Parquet"}


def keep(answer: Answer) -> None:
    """Show this answer until there is another one."""
    st.session_state[_KEPT] = answer


def forget() -> None:
    """Show no answer."""
    st.session_state.pop(_KEPT, None)


def show() -> None:
    """Draw the last answer, if there is one."""
    answer = st.session_state.get(_KEPT)
    if not isinstance(answer, Answer):
        return
    st.subheader("Answer")
    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="center"):
        told = answer.cut or f"{count(len(answer.rows))} row{'' if len(answer.rows) == 1 else 's'}."
        st.caption(escape_markdown(f"{told} {answer.seconds:.1f} s"), width="stretch")
        _offer(answer)
    if answer.rows:
        st.dataframe(answer.frame(), hide_index=True, key="answer_table", alt="The rows that answer the question.")
    else:
        st.markdown("No row answers this. Look at the columns beside the box, or loosen the condition.")


def _offer(answer: Answer) -> None:
    """Offer the rows as files, which are made when they are asked for."""
    for format, label in _FORMATS.items():
        can = format != "parquet" or writes_parquet()
        st.download_button(
            label,
            data=partial(export_table, answer.frame(), format) if can else b"",
            file_name=f"answer.{TABLE_SUFFIX[format]}",
            mime=TABLE_MIME[format],
            icon=":material/download:",
            key=f"answer-{format}",
            on_click="ignore",
            disabled=not can,
            help=None if can else NO_PARQUET,
        )
