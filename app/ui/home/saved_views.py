"""Saved views of Home: a name for the current search, filters, order and columns.

A saved view is an entry of the research notebook: its title is the name, and its stored view has the page `home` and
the URL parameters. So a view needs no other table. It is shared by the users of the database, as pinned figures
are, and it is renamed, opened and deleted in the notebook too. An entry cites no run here, because the view lists the
runs that match when it is opened.
"""

from typing import Final
from uuid import uuid4

import streamlit as st

from app.analysis.format import escape_markdown
from app.notebook.view import make_view, read_view
from app.ui import data, messages, page_state
from app.ui.view import add_bundle
from app.ui.widgets import box
from emtc_core.errors import EmtcError
from storage.notebook import create_entry, list_entries

_PAGE: Final = "home"
_MAX_NAME_LENGTH: Final = 80
# Keys of the session state:
_TOKEN: Final = "saved_view_token"
"""Identifies the next saved view, so that a double click saves one. A new token empties the field of the name."""
_ERROR: Final = "saved_view_error"


def show() -> None:
    """Draw the button that opens the list of saved views and the field that saves the current one."""
    opened = box.show("Views", icon=":material/bookmark:", key="saved_views")
    if not opened.is_opened:
        return
    with opened.container:
        for entry in data.cached(list_entries, ttl=2)():
            stored = read_view(entry.view)
            if stored is not None and stored.page == _PAGE:
                st.page_link(
                    "../pages/home.py",
                    label=escape_markdown(entry.title),
                    icon=":material/bookmark:",
                    query_params=stored.query | add_bundle({}),
                )
        token = str(st.session_state.setdefault(_TOKEN, uuid4().hex))
        is_disabled = not messages.may_act()
        with st.container(horizontal=True, vertical_alignment="bottom"):
            st.text_input(
                "Name of the current view", key=f"saved_view-{token}", max_chars=_MAX_NAME_LENGTH, disabled=is_disabled
            )
            st.button("Save", key="save_view", disabled=is_disabled, on_click=_save, args=(token,))
        error = st.session_state.pop(_ERROR, None)
        if error is not None:
            messages.error(error)


def _save(token: str) -> None:
    """Save the search, filters, order and columns in the URL under the typed name; do nothing without a name."""
    name = str(st.session_state.get(f"saved_view-{token}") or "").strip()
    if not name:
        return
    stored = make_view(page=_PAGE, figure="", query=page_state.read_pinned(), runs=[], facts={})
    try:
        create_entry(data.database(), title=name, view=stored, token=token)
    except EmtcError as exc:
        st.session_state[_ERROR] = exc
        return
    st.session_state[_TOKEN] = uuid4().hex
    st.cache_data.clear()
