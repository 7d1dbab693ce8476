"""The database as a whole: its size, its disk, a copy of it, and the room that a vacuum gives back."""

from collections.abc import Callable

import streamlit as st

from app.analysis.format import MISSING, escape_markdown, size
from app.ui import data, messages
from emtc_core.errors import EmtcError
from storage.maintenance.sizes import Sizes
from storage.maintenance.upkeep import back_up_now, vacuum

_DONE = "storage_done"
_SCARCE = 0.1
"""Of the database's size: less is free, and the next runs may fill the disk."""


def show(sizes: Sizes) -> None:
    """Draw the figures and what can be done."""
    st.caption(escape_markdown(sizes.shown))
    with st.container(horizontal=True):
        st.metric("Database", size(sizes.database), border=True)
        st.metric("A vacuum gives back", size(sizes.reusable), border=True)
        free = MISSING if sizes.disk_free is None else size(sizes.disk_free)
        st.metric("Free on its disk", free, border=True)
        st.metric(
            "Checkpoints and logs", size(sum(run.checkpoints + run.other_files for run in sizes.runs)), border=True
        )
    if sizes.left_behind:
        st.caption(f"Folders of runs that are no more take {size(sizes.left_behind)} beside it.")
    if sizes.unmeasured:
        st.warning(escape_markdown(sizes.unmeasured), icon=":material/cloud_off:")
    if sizes.disk_free is not None and sizes.disk_free < _SCARCE * sizes.database:
        st.warning("The disk is nearly full: thin runs below, then vacuum, or make room elsewhere.")
    _acts()


def _acts() -> None:
    may_act = messages.may_act()
    with st.container(horizontal=True, vertical_alignment="center"):
        if st.button("Back up", icon=":material/content_copy:", key="backup", disabled=not may_act):
            act(_back_up, "Copying …")
        if st.button("Vacuum", icon=":material/compress:", key="vacuum", disabled=not may_act):
            act(_vacuum, "Rewriting the database …")
        st.caption(
            "A backup is a copy beside the database, without logs and checkpoints. A vacuum gives the room of what was "
            "removed back to the disk, and waits until no run is at work."
        )
    if done := st.session_state.pop(_DONE, None):
        st.success(escape_markdown(str(done)), icon=":material/check:")


def act(do: Callable[[], str], meanwhile: str) -> None:
    """Do something to the database, then show what was done beside new figures."""
    try:
        with st.spinner(meanwhile):
            st.session_state[_DONE] = do()
    except EmtcError as exc:
        messages.error(exc)
        return
    st.cache_data.clear()
    st.rerun()


def _back_up() -> str:
    place = back_up_now(data.database())
    return f"Copied to {place} ({size(place.stat().st_size)})."


def _vacuum() -> str:
    return f"Vacuumed: {vacuum(data.database())}."
