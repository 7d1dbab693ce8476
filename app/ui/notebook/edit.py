"""Write a new entry, or edit one with a preview; whoever saves last is told what changed meanwhile."""

import time
from uuid import uuid4

import streamlit as st

from app.analysis.format import escape_markdown
from app.notebook.markdown import sanitize
from app.ui import data, messages
from emtc_core.errors import EmtcError, EntryChangedError
from storage.notebook import EntryRow, create_entry, edit_entry

LONGEST_TITLE = 200
_EDITING, _KNOWN, _TOLD, _NEW = "notebook_editing", "notebook_known", "notebook_told", "notebook_new"
_NEW_TOLD, _WRITTEN = "notebook_new_told", "notebook_written"
DOUBLE_PRESS_S = 2.0
_HINT = "Markdown; formulas between dollars, such as $\\beta = e^{-\\Delta^2/2\\tau^2}$"


def show_new() -> None:
    """Offer to write an entry without a figure."""
    token, idle = str(st.session_state.setdefault(_NEW, uuid4().hex)), not messages.may_act()
    with st.popover("New entry", icon=":material/add:", key="notebook_new_entry", disabled=idle):
        with st.form(f"new-{token}", border=False):
            st.text_input("Title", max_chars=LONGEST_TITLE, key=f"new-title-{token}")
            st.text_area("Text", height=200, key=f"new-body-{token}", placeholder=_HINT)
            key = f"new-save-{token}"
            st.form_submit_button("Write entry", type="primary", key=key, on_click=_create, args=(token,))
        _say(_NEW_TOLD)


def is_editing(entry_id: int) -> bool:
    """Whether this session is editing the entry."""
    return st.session_state.get(_EDITING) == entry_id


def begin(row: EntryRow) -> None:
    """Open the editor on an entry as it stands now."""
    st.session_state[_EDITING], st.session_state[_KNOWN] = row.id, row.updated_at
    st.session_state[f"edit-title-{row.id}"], st.session_state[f"edit-body-{row.id}"] = row.title, row.body
    st.session_state.pop(_TOLD, None)


def show(row: EntryRow) -> None:
    """Draw the editor with its preview."""
    st.text_input("Title", max_chars=LONGEST_TITLE, key=f"edit-title-{row.id}")
    written, preview = st.columns(2, gap="medium")
    with written:
        body = st.text_area("Text", height=260, key=f"edit-body-{row.id}", placeholder=_HINT)
    with preview:
        st.caption("Preview: leave the text field to refresh it")
        st.markdown(sanitize(body or "") or "*Nothing yet.*")
    conflict = isinstance(st.session_state.get(_TOLD), EntryChangedError)
    _say(_TOLD)
    if conflict:
        with st.expander("What stands there now", expanded=True):
            st.markdown(f"**{escape_markdown(row.title)}**")
            st.markdown(sanitize(row.body))
    with st.container(horizontal=True):
        label = "Save mine over it" if conflict else "Save"
        st.button(label, type="primary", key=f"edit-save-{row.id}", on_click=_save, args=(row.id, conflict))
        st.button("Take theirs" if conflict else "Cancel", key=f"edit-cancel-{row.id}", on_click=_end)


def _save(entry_id: int, overwrite: bool) -> None:
    title = str(st.session_state[f"edit-title-{entry_id}"] or "").strip() or "Untitled"
    body = str(st.session_state[f"edit-body-{entry_id}"] or "")
    known = None if overwrite else st.session_state[_KNOWN]
    try:
        edit_entry(data.database(), entry_id, title=title, body=body, base_updated_at=known)
    except EmtcError as exc:
        st.session_state[_TOLD] = exc
        return
    _end()


def _end() -> None:
    for key in (_EDITING, _KNOWN, _TOLD):
        st.session_state.pop(key, None)


def _create(token: str) -> None:
    title = str(st.session_state.get(f"new-title-{token}") or "").strip()
    body = str(st.session_state.get(f"new-body-{token}") or "")
    if not title and not body.strip():
        if time.monotonic() - st.session_state.get(_WRITTEN, 0.0) < DOUBLE_PRESS_S:
            return  # the second half of a double press, on the form that has just been emptied
        st.session_state[_NEW_TOLD] = "An entry needs a title or a text."
        return
    try:
        create_entry(data.database(), title=title or "Untitled", body=body, token=token)
    except EmtcError as exc:
        st.session_state[_NEW_TOLD] = exc
        return
    st.session_state[_NEW], st.session_state[_WRITTEN] = uuid4().hex, time.monotonic()
    st.session_state.pop(_NEW_TOLD, None)


def _say(key: str) -> None:
    told = st.session_state.get(key)
    if told is not None:
        st.error(escape_markdown(str(told)), icon=":material/error:")
