"""Session state of the runs table: the selected rows, and the runs that were listed when they were selected."""

from collections.abc import Sequence

import streamlit as st

_LISTED = "run_table_shown"
_N_CLEARED = "run_table_forgotten"


def table_key() -> str:
    """Return the widget key of the table. It changes when the selection is cleared, because a new widget has none."""
    n_cleared = st.session_state.get(_N_CLEARED, 0)
    return f"run_table-{n_cleared}" if n_cleared else "run_table"


def get_selected_rows() -> Sequence[int]:
    """Return the row numbers of the selected rows."""
    table = st.session_state.get(table_key())
    return table["selection"]["rows"] if table else ()


def clear_selection() -> None:
    """Deselect all rows."""
    st.session_state[_N_CLEARED] = st.session_state.get(_N_CLEARED, 0) + 1


def get_listed_ids(listing: str) -> list[str]:
    """Return the ids of the runs that were listed last with this filter, order and page; empty if others were drawn."""
    last_listing, ids = st.session_state.get(_LISTED, ("", []))
    return ids if last_listing == listing else []


def set_listed_ids(listing: str, ids: list[str]) -> None:
    """Store the ids of the runs that are listed now, for this filter, order and page."""
    st.session_state[_LISTED] = (listing, ids)
