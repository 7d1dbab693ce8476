"""One entry of the notebook: its text, its frozen figure, where it came from, and what can be done with it."""

import streamlit as st
from streamlit.errors import StreamlitAPIException

from app.analysis.format import clock, escape_markdown
from app.notebook.markdown import tame
from app.notebook.view import View, describe_cited, read_view
from app.ui import data, messages, state
from app.ui.compared import names_beside
from app.ui.notebook import download, edit, figure
from emtc_core.errors import EmtcError
from storage.notebook import DeletedEntry, EntryRow, delete_entry, restore_entry

ENTRY = "entry"
"""The URL parameter that names one entry."""
_DELETED = "notebook_deleted"
_MOST_CITED = 6


def show(row: EntryRow) -> None:
    """Draw an entry, or its editor."""
    with st.container(border=True, key=f"entry-{row.id}"):
        if edit.is_editing(row.id):
            edit.show(row)
        else:
            st.markdown(f"#### {escape_markdown(row.title) or 'Untitled'}")
            st.caption(_dates(row))
            if row.body.strip():
                st.markdown(tame(row.body))
        if row.has_figure:
            figure.show(row.id)
        missing = _missing(row)
        _origin(row, missing)
        _actions(row, linked=not missing)


def show_undo() -> None:
    """Offer to bring back the entry that was just deleted."""
    deleted: DeletedEntry | None = st.session_state.get(_DELETED)
    if deleted is None:
        return
    with st.container(horizontal=True, vertical_alignment="center", border=True):
        st.markdown(f"Deleted entry {deleted.row.id}, *{escape_markdown(deleted.row.title)}*.")
        st.button("Undo", icon=":material/undo:", key="notebook_undo", on_click=_restore, args=(deleted,))


def _dates(row: EntryRow) -> str:
    made = f"Entry {row.id} · {clock(row.created_at)}"
    return made if row.updated_at == row.created_at else f"{made} · edited {clock(row.updated_at)}"


def _origin(row: EntryRow, missing: list[str]) -> None:
    for run in row.cited[:_MOST_CITED]:
        st.caption(f":material/science: {escape_markdown(describe_cited(run))}")
    if len(row.cited) > _MOST_CITED:
        st.caption(f"… and {len(row.cited) - _MOST_CITED} more runs")
    if missing:
        names = " and ".join(f"Run {escape_markdown(run_id)}" for run_id in missing[:_MOST_CITED])
        st.caption(
            f":material/link_off: {names} {'is' if len(missing) == 1 else 'are'} no longer in this database. "
            "The figure and the note stand as they were."
        )


def _missing(row: EntryRow) -> list[str]:
    cited = [str(run.get("id", "")) for run in row.cited]
    known = data.known_runs(cited) | names_beside(cited).keys()
    return [run_id for run_id in cited if run_id not in known]


def _actions(row: EntryRow, *, linked: bool) -> None:
    view = read_view(row.view)
    with st.container(horizontal=True, vertical_alignment="center"):
        if view is not None and linked:
            _link(view)
        idle = not messages.may_act()
        if not edit.is_editing(row.id) and not idle:
            st.button("Edit", icon=":material/edit:", key=f"entry-{row.id}-edit", on_click=edit.begin, args=(row,))
        download.show([row.id], key=f"entry-{row.id}")
        with st.popover("Delete", icon=":material/delete:", key=f"entry-{row.id}-delete", disabled=idle):
            st.markdown("Delete this entry with its figure?")
            st.button(
                "Delete entry", type="primary", key=f"entry-{row.id}-delete-now", on_click=_delete, args=(row.id,)
            )
        if state.read_int(ENTRY) != row.id:
            st.button(
                "Alone",
                icon=":material/link:",
                key=f"entry-{row.id}-alone",
                on_click=state.write,
                args=(ENTRY, row.id),
                help="Show this entry alone; the address then leads to it.",
            )


def _link(view: View) -> None:
    try:
        st.page_link(
            f"../pages/{view.page}.py",
            label="Open this view",
            icon=":material/open_in_new:",
            query_params=view.query,
            help=escape_markdown(view.address),
        )
    except StreamlitAPIException:  # pinned on a page that this version does not have
        st.caption(escape_markdown(view.address))


def _delete(entry_id: int) -> None:
    try:
        st.session_state[_DELETED] = delete_entry(data.database(), entry_id)
    except EmtcError as exc:
        messages.error(exc)
    if state.read_int(ENTRY) == entry_id:
        state.write(ENTRY, None)


def _restore(deleted: DeletedEntry) -> None:
    try:
        restore_entry(data.database(), deleted)
    except EmtcError as exc:
        messages.error(exc)
        return
    st.session_state.pop(_DELETED, None)
