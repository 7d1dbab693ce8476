"""Session state of the runs table: the selected rows, and the runs that were listed when they were selected."""

from collections.abc import Sequence

import streamlit as st

_LISTED = "run_table_listed"
_N_CLEARED = "run_table_n_cleared"


def table_key() -> str:
    """Return the widget key of the table. A cleared selection changes it, because a new widget has no selection."""
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
    """Return the ids that `set_listed_ids` has stored; an empty list if they belong to another listing.

    Args:
        listing: Text of the filter, the order and the page number.
    """
    last_listing, ids = st.session_state.get(_LISTED, ("", []))
    return ids if last_listing == listing else []


def set_listed_ids(listing: str, ids: list[str]) -> None:
    """Store the ids of the runs that are listed now, and their filter, order and page number as one text."""
    st.session_state[_LISTED] = (listing, ids)
