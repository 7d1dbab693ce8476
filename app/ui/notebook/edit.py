"""The form for a new entry and the editor of an entry. Saving fails if another user has changed the entry meanwhile.

Texts that are not saved yet stay in the session while the user opens other pages. The fields are not in an `st.form`,
because the browser sends the texts of such a form only when it is submitted.
"""

import time
from typing import Final
from uuid import uuid4

import streamlit as st

from app.analysis.format import escape_markdown
from app.notebook.markdown import sanitize
from app.ui import data, messages
from emtc_core.errors import EmtcError, EntryChangedError
from storage.notebook import EntryRow, create_entry, edit_entry

_MAX_TITLE_LENGTH: Final = 200
_DOUBLE_CLICK_S: Final = 2.0
"""Time after the creation of an entry in which a click on an empty form is ignored."""
_PLACEHOLDER: Final = "Markdown; formulas between dollars, such as $\\beta = e^{-\\Delta^2/2\\tau^2}$"
# Keys of the session state:
_EDITED_ID: Final = "notebook_editing"
_UPDATED_AT_WHEN_OPENED: Final = "notebook_updated_at_when_opened"
_EDIT_ERROR: Final = "notebook_edit_error"
_NEW_TOKEN: Final = "notebook_new"
_NEW_ERROR: Final = "notebook_new_error"
_CREATED_AT: Final = "notebook_created_at"


def show_new_entry_form() -> None:
    """Draw the popover with the form for a new entry without a figure.

    The token identifies the new entry. Two saves with one token create one entry, and a new token empties the form.
    """
    token = str(st.session_state.setdefault(_NEW_TOKEN, uuid4().hex))
    is_disabled = not messages.may_act()
    with st.popover("New entry", icon=":material/add:", key="notebook_new_entry", disabled=is_disabled):
        st.text_input("Title", max_chars=_MAX_TITLE_LENGTH, key=f"new-title-{token}", persist_state="session")
        st.text_area("Text", height=200, key=f"new-body-{token}", placeholder=_PLACEHOLDER, persist_state="session")
        st.button("Create entry", type="primary", key=f"new-save-{token}", on_click=_create, args=(token,))
        _show_error(_NEW_ERROR)


def is_editing(entry_id: int) -> bool:
    """Return whether this session is editing the entry."""
    return st.session_state.get(_EDITED_ID) == entry_id


def open_editor(row: EntryRow) -> None:
    """Open the editor with the current text of the entry."""
    st.session_state[_EDITED_ID] = row.id
    st.session_state[_UPDATED_AT_WHEN_OPENED] = row.updated_at
    st.session_state[f"edit-title-{row.id}"] = row.title
    st.session_state[f"edit-body-{row.id}"] = row.body
    st.session_state.pop(_EDIT_ERROR, None)


def show_editor(row: EntryRow) -> None:
    """Draw the editor with its preview."""
    st.text_input("Title", max_chars=_MAX_TITLE_LENGTH, key=f"edit-title-{row.id}", persist_state="session")
    left, right = st.columns(2, gap="medium")
    with left:
        body = st.text_area(
            "Text", height=260, key=f"edit-body-{row.id}", placeholder=_PLACEHOLDER, persist_state="session"
        )
    with right:
        st.caption("Preview, updated when you leave the text field")
        st.markdown(sanitize(body or "") or "*No text*")
    is_conflict = isinstance(st.session_state.get(_EDIT_ERROR), EntryChangedError)
    _show_error(_EDIT_ERROR)
    if is_conflict:
        with st.expander("Current version", expanded=True):
            st.markdown(f"**{escape_markdown(row.title)}**")
            st.markdown(sanitize(row.body))
    with st.container(horizontal=True):
        label = "Overwrite with mine" if is_conflict else "Save"
        st.button(label, type="primary", key=f"edit-save-{row.id}", on_click=_save, args=(row.id, is_conflict))
        st.button("Discard mine" if is_conflict else "Cancel", key=f"edit-cancel-{row.id}", on_click=_close)


def _save(entry_id: int, overwrite: bool) -> None:
    title = str(st.session_state[f"edit-title-{entry_id}"] or "").strip() or "Untitled"
    body = str(st.session_state[f"edit-body-{entry_id}"] or "")
    updated_at_when_opened = None if overwrite else st.session_state[_UPDATED_AT_WHEN_OPENED]
    try:
        edit_entry(data.database(), entry_id, title=title, body=body, base_updated_at=updated_at_when_opened)
    except EmtcError as exc:
        st.session_state[_EDIT_ERROR] = exc
        return
    _close()


def _close() -> None:
    for key in (_EDITED_ID, _UPDATED_AT_WHEN_OPENED, _EDIT_ERROR):
        st.session_state.pop(key, None)


def _create(token: str) -> None:
    title = str(st.session_state.get(f"new-title-{token}") or "").strip()
    body = str(st.session_state.get(f"new-body-{token}") or "")
    if not title and not body.strip():
        if time.monotonic() - st.session_state.get(_CREATED_AT, 0.0) < _DOUBLE_CLICK_S:
            return  # the second click of a double click, on the form that the first click has emptied
        st.session_state[_NEW_ERROR] = "An entry needs a title or a text."
        return
    try:
        create_entry(data.database(), title=title or "Untitled", body=body, token=token)
    except EmtcError as exc:
        st.session_state[_NEW_ERROR] = exc
        return
    st.session_state[_NEW_TOKEN] = uuid4().hex
    st.session_state[_CREATED_AT] = time.monotonic()
    st.session_state.pop(_NEW_ERROR, None)


def _show_error(key: str) -> None:
    error = st.session_state.get(key)
    if error is not None:
        st.error(escape_markdown(str(error)), icon=":material/error:")
