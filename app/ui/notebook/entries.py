"""The Notebook page: search and filter, the list of entries, one entry by its URL, and exports.

An entry has a text, a stored figure, the runs of the figure, and the view (page and URL parameters) in which it was
pinned. A stored line chart is drawn with the same canvas as on the other pages; any other figure is drawn as an image.
Exports are Markdown with images, one HTML page, or a Jupyter notebook that makes the figures again.
"""

from collections.abc import Sequence
from functools import partial
from math import ceil
from typing import Final
from urllib.parse import urlsplit

import streamlit as st
from streamlit.errors import StreamlitAPIException

from app.analysis.format import escape_markdown, format_time
from app.figures.kinds.chart import Chart
from app.figures.render.export import export_figure
from app.figures.theme import Mode
from app.notebook.export import MIME, NOTEBOOK_FORMATS, SUFFIX, NotebookFormat, export_entries
from app.notebook.markdown import sanitize
from app.notebook.view import Figure, PinnedView, describe_cited_run, get_note, read_view, thaw
from app.ui import data, messages
from app.ui.compared import get_bundle_run_names
from app.ui.notebook import edit
from app.ui.page_state import Choice, Integer, Text
from app.ui.view import add_bundle
from app.ui.widgets import canvas, files
from emtc_core.errors import EmtcError
from storage.notebook import DeletedEntry, EntryRow, delete_entry, get_entry, get_figure, list_entries, restore_entry
from storage.queries.runs import run_configs

ENTRY: Final = Integer("entry", "notebook", low=1)
"""Number of the entry that is shown alone."""
_SEARCH: Final = Text("q", "notebook")
_RUN: Final = Choice("about", "notebook")
"""Id of a run: only entries that cite this run are listed. `_ALL_RUNS`: no filter."""
_ALL_RUNS: Final = "every"
_PAGE_NUMBER: Final = Integer("sheet", "notebook", default=1, low=1)
ENTRIES_PER_PAGE: Final = 8
_MAX_CITED_RUNS: Final = 6
"""Maximum number of cited runs that are listed below an entry."""
_DELETED_ENTRY: Final = "notebook_deleted"
"""Key of the session state: the entry that was just deleted, for the button *Undo*."""
_FORMAT_LABELS: Final[dict[NotebookFormat, str]] = {
    "md": "Markdown, zip with images and data",
    "html": "HTML, one page, works offline",
    "ipynb": "Jupyter notebook, makes the figures again",
}


def show() -> None:
    """Draw the entry in the URL, or the list of entries."""
    entry_id = ENTRY.read()
    if entry_id is not None:
        _show_single_entry(entry_id)
        return
    entries = list_entries(data.database())
    with st.container(horizontal=True, vertical_alignment="bottom"):
        matching = _select_matching_entries(entries) if entries else []
        edit.show_new_entry_form()
        if entries:
            show_download([row.id for row in matching], all_ids=[row.id for row in entries], key="notebook")
    show_undo()
    if not entries:
        messages.empty(
            "The notebook is empty.",
            "Press *Pin* next to a figure on any page to save the figure, a note and its view here, or write a "
            "*New entry*.",
            page="../pages/live.py",
            label="Open Live",
        )
        return
    if not matching:
        messages.empty("No entry matches.", "Use fewer words, or select all runs.")
        return
    _show_entries(matching, len(entries))


def show_entry(row: EntryRow) -> None:
    """Draw an entry, or its editor."""
    with st.container(border=True, key=f"entry-{row.id}"):
        if edit.is_editing(row.id):
            edit.show_editor(row)
        else:
            st.markdown(f"#### {escape_markdown(row.title) or 'Untitled'}")
            created = f"Entry {row.id} · {format_time(row.created_at)}"
            is_edited = row.updated_at != row.created_at
            st.caption(f"{created} · edited {format_time(row.updated_at)}" if is_edited else created)
            if row.body.strip():
                st.markdown(sanitize(row.body))
        if row.has_figure:
            show_figure(row.id)
        missing = _find_missing_runs(row)
        _show_cited_runs(row, missing)
        _show_buttons(row, has_all_runs=not missing)


def show_figure(entry_id: int) -> None:
    """Draw the figure with its caption; show an error if this version cannot read the figure."""
    try:
        figure, note = _read_figure(data.database_url(), entry_id)
        if isinstance(figure, Chart):
            height = 130 if len(figure.panels) > 2 else 220
            x_name = "env step" if "env step" in figure.x_label else figure.x_label.partition(",")[0]
            canvas.show(figure, key=f"entry-{entry_id}-figure", x_name=x_name, panel_height=height)
        else:
            mode: Mode = "dark" if st.context.theme.type == "dark" else "light"
            st.image(_render_image(data.database_url(), entry_id, mode), width=760, alt=figure.description)
    except EmtcError as exc:
        messages.error(exc)
        return
    st.caption(" ".join(escape_markdown(part) for part in (figure.caption, note) if part))


def show_undo() -> None:
    """Draw the button that restores the entry that was just deleted."""
    deleted: DeletedEntry | None = st.session_state.get(_DELETED_ENTRY)
    if deleted is None:
        return
    with st.container(horizontal=True, vertical_alignment="center", border=True):
        st.markdown(f"Deleted entry {deleted.row.id}, *{escape_markdown(deleted.row.title)}*.")
        st.button("Undo", icon=":material/undo:", key="notebook_undo", on_click=_restore, args=(deleted,))


def show_download(ids: Sequence[int], *, key: str, all_ids: Sequence[int] = ()) -> None:
    """Draw the export buttons; a file is made when its button is pressed.

    Args:
        ids: Entries to export.
        key: Prefix of the widget keys.
        all_ids: All entries. If they are more than `ids`, the user can export them instead.
    """
    with st.popover("Export", icon=":material/download:", key=f"{key}-export"):
        selected = ids
        if len(all_ids) > len(ids):
            options = [f"the {len(ids)} matching", f"all {len(all_ids)}"]
            scope = st.radio("Entries", options, key=f"{key}-export-scope")
            selected = all_ids if scope == options[1] else ids
        stem = f"notebook-entry-{selected[0]}" if len(selected) == 1 else "notebook"
        app_url = find_app_url(st.context.url)
        bundle_parameters = add_bundle({})
        for format in NOTEBOOK_FORMATS:
            files.button(
                _FORMAT_LABELS[format],
                partial(
                    export_entries,
                    data.database(),
                    tuple(selected),
                    format,
                    address=app_url,
                    link_parameters=bundle_parameters,
                ),
                file_name=f"{stem}.{SUFFIX[format]}",
                mime=MIME[format],
                key=f"{key}-export-{format}",
                width="stretch",
                disabled=not selected,
            )


def find_app_url(page_url: str | None) -> str | None:
    """Return the URL of the app, given the URL of the Notebook page; None if this is not a web address."""
    parts = urlsplit(page_url or "")
    if parts.scheme not in ("http", "https"):
        return None
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/notebook')}"


def _show_single_entry(entry_id: int) -> None:
    try:
        row = get_entry(data.database(), entry_id)
    except EmtcError as exc:
        messages.error(exc)
        row = None
    st.button("Show all entries", icon=":material/arrow_back:", on_click=ENTRY.write, args=(None,))
    show_undo()
    if row is not None:
        show_entry(row)


def _select_matching_entries(entries: list[EntryRow]) -> list[EntryRow]:
    """Draw the search and the filter by run; return the matching entries."""
    text = st.text_input("Search", **_SEARCH.bind(), type="search", placeholder="Words in title or text", width=320)
    label_by_run: dict[str, str] = {}
    for row in reversed(entries):  # oldest first, so that the newest name of a run is used
        for run in row.cited_runs:
            label_by_run[str(run.get("id"))] = f"{run.get('name', '')} · {run.get('id')}"
    options = _RUN.bind([_ALL_RUNS, *label_by_run], lambda run_id: label_by_run.get(run_id, "All runs"))
    run_id = st.selectbox("Run", **options, width=320)
    if run_id in (None, _ALL_RUNS):
        run_id = None
    if not text and run_id is None:
        return entries
    return list_entries(data.database(), text=text or "", run_id=run_id)


def _show_entries(entries: list[EntryRow], n_all: int) -> None:
    """Draw one page of the matching entries. `n_all` is the number of all entries."""
    if n_all == 1:
        count = "1 entry"
    elif len(entries) < n_all:
        count = f"{len(entries)} of {n_all} entries"
    else:
        count = f"{n_all} entries"
    st.caption(f"{count}, newest first")
    n_pages = ceil(len(entries) / ENTRIES_PER_PAGE)
    list_container = st.container()  # above the page numbers
    page = st.pagination(**_PAGE_NUMBER.bind_page_number(n_pages)) if n_pages > 1 else 1
    with list_container:
        for row in entries[(page - 1) * ENTRIES_PER_PAGE : page * ENTRIES_PER_PAGE]:
            show_entry(row)


@st.cache_data(max_entries=32, show_spinner=False)
def _read_figure(url: str, entry_id: int) -> tuple[Figure, str]:
    """Read a figure and its note about omitted points. `url`, the URL of the database, is part of the cache key.

    The cache never expires, because a stored figure does not change and ids of entries are not used again.
    """
    frozen = get_figure(data.database(), entry_id) or {}
    return thaw(frozen), get_note(frozen)


@st.cache_data(max_entries=64, show_spinner="Drawing …")
def _render_image(url: str, entry_id: int, mode: Mode) -> bytes:
    return export_figure(_read_figure(url, entry_id)[0], "png", mode=mode)


def _find_missing_runs(row: EntryRow) -> list[str]:
    """List the cited runs that are neither in this database nor in an open bundle (a file with exported runs)."""
    cited = [str(run.get("id", "")) for run in row.cited_runs]
    existing = data.cached(run_configs, ttl=2)(cited).keys() | get_bundle_run_names(cited).keys()
    return [run_id for run_id in cited if run_id not in existing]


def _show_cited_runs(row: EntryRow, missing: list[str]) -> None:
    for run in row.cited_runs[:_MAX_CITED_RUNS]:
        st.caption(f":material/science: {escape_markdown(describe_cited_run(run))}")
    if len(row.cited_runs) > _MAX_CITED_RUNS:
        st.caption(f"… and {len(row.cited_runs) - _MAX_CITED_RUNS} more runs")
    if missing:
        names = " and ".join(f"Run {escape_markdown(run_id)}" for run_id in missing[:_MAX_CITED_RUNS])
        verb = "is" if len(missing) == 1 else "are"
        st.caption(f":material/link_off: {names} {verb} no longer in this database. Figure and note are unchanged.")


def _show_buttons(row: EntryRow, *, has_all_runs: bool) -> None:
    view = read_view(row.view)
    with st.container(horizontal=True, vertical_alignment="center"):
        if view is not None and has_all_runs:
            _show_view_link(view)
        may_act = messages.may_act()
        if may_act and not edit.is_editing(row.id):
            st.button(
                "Edit", icon=":material/edit:", key=f"entry-{row.id}-edit", on_click=edit.open_editor, args=(row,)
            )
        show_download([row.id], key=f"entry-{row.id}")
        with st.popover("Delete", icon=":material/delete:", key=f"entry-{row.id}-delete", disabled=not may_act):
            st.markdown("Delete this entry and its figure?")
            st.button(
                "Delete entry", type="primary", key=f"entry-{row.id}-delete-now", on_click=_delete, args=(row.id,)
            )
        is_shown_alone = ENTRY.read() == row.id
        if not is_shown_alone:
            st.button(
                "Link",
                icon=":material/link:",
                key=f"entry-{row.id}-alone",
                on_click=ENTRY.write,
                args=(row.id,),
                help="Show only this entry. The URL of the page is then a link to it.",
            )


def _show_view_link(view: PinnedView) -> None:
    try:
        st.page_link(
            f"../pages/{view.page}.py",
            label="Open this view",
            icon=":material/open_in_new:",
            query_params={**view.query, **add_bundle({})},
            help=escape_markdown(view.relative_url),
        )
    except StreamlitAPIException:  # this version has no such page
        st.caption(escape_markdown(view.relative_url))


def _delete(entry_id: int) -> None:
    try:
        st.session_state[_DELETED_ENTRY] = delete_entry(data.database(), entry_id)
    except EmtcError as exc:
        messages.error(exc)
    if ENTRY.read() == entry_id:
        ENTRY.write(None)


def _restore(deleted: DeletedEntry) -> None:
    try:
        restore_entry(data.database(), deleted)
    except EmtcError as exc:
        messages.error(exc)
        return
    st.session_state.pop(_DELETED_ENTRY, None)
