"""The notebook: search, filter, the entries page by page, or one entry that the URL names."""

import streamlit as st

from app.ui import data, messages, state
from app.ui.notebook import edit, entry
from app.ui.notebook.entry import ENTRY
from emtc_core.errors import EmtcError
from storage.notebook import EntryRow, get_entry, list_entries

PER_PAGE = 8
SHEET = "sheet"
_EVERY = "every"


def show() -> None:
    """Draw the one entry that the URL names, or all of them."""
    wanted = state.read_int(ENTRY)
    if wanted is not None:
        _show_one(wanted)
        return
    every = list_entries(data.database())
    with st.container(horizontal=True, vertical_alignment="bottom"):
        text, run_id = _choose(every) if every else ("", None)
        edit.show_new()
        shown = list_entries(data.database(), text=text, run_id=run_id) if text or run_id else every
        if every:
            entry.show_download([row.id for row in shown], every=[row.id for row in every], key="notebook")
    entry.show_undo()
    if not every:
        messages.empty(
            "The notebook is empty.",
            "Press *Pin* beside a figure of any page to keep it here with a note and the exact view that it came from, "
            "or write a *New entry*.",
            page="../pages/live.py",
            label="Open Live",
        )
        return
    if not shown:
        messages.empty("No entry matches.", "Search for fewer words, or choose every run.")
        return
    _show_page(shown, len(every))


def _show_one(entry_id: int) -> None:
    try:
        row = get_entry(data.database(), entry_id)
    except EmtcError as exc:
        messages.error(exc)
        row = None
    st.button("Show every entry", icon=":material/arrow_back:", on_click=state.write, args=(ENTRY, None))
    entry.show_undo()
    if row is not None:
        entry.show(row)


def _choose(every: list[EntryRow]) -> tuple[str, str | None]:
    text = st.text_input(
        "Search", key="q", bind="query-params", type="search", placeholder="words of title or text", width=320
    )
    names = {
        str(run.get("id")): f"{run.get('name', '')} · {run.get('id')}" for row in reversed(every) for run in row.cited
    }
    chosen = st.selectbox(
        "About run", [_EVERY, *names], key="about", bind="query-params", width=320,
        format_func=lambda each: names.get(each, "every run"),
    )  # fmt: skip
    return text or "", None if chosen in (None, _EVERY) else str(chosen)


def _show_page(shown: list[EntryRow], n_every: int) -> None:
    found = f"{len(shown)} of {n_every} entries" if len(shown) < n_every else f"{n_every} entries"
    pages = -(-len(shown) // PER_PAGE)
    st.caption(f"{found if n_every > 1 else '1 entry'}, newest first")
    place = st.container()
    if st.session_state.get(SHEET, 1) > pages:  # the search has become narrower
        st.session_state[SHEET] = pages
    page = st.pagination(pages, key=SHEET, bind="query-params") if pages > 1 else 1
    with place:
        for row in shown[(page - 1) * PER_PAGE : page * PER_PAGE]:
            entry.show(row)
