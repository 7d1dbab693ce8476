"""The notebook: search, filter, the entries page by page, or one entry that the URL names.

An entry has its text, its frozen figure (curves on the canvas of the pages, everything else as an image), where it
came from, what can be done with it, and its export: Markdown with images, one self-contained page, or a Jupyter
notebook that rebuilds the figures.
"""

from collections.abc import Callable, Sequence
from functools import partial
from urllib.parse import urlsplit

import streamlit as st
from streamlit.errors import StreamlitAPIException

from app.analysis.format import escape_markdown, format_time
from app.figures.kinds.chart import Chart
from app.figures.render.export import export_figure
from app.figures.theme import Mode
from app.notebook.export import MIME, NOTEBOOK_FORMATS, SUFFIX, NotebookFormat, export_entries
from app.notebook.markdown import sanitize
from app.notebook.view import Figure, View, describe_cited_run, get_note, read_view, thaw
from app.ui import data, messages, state
from app.ui.compared import names_beside
from app.ui.notebook import edit
from app.ui.view import link
from app.ui.widgets import canvas
from emtc_core.errors import EmtcError
from storage.notebook import DeletedEntry, EntryRow, delete_entry, get_entry, get_figure, list_entries, restore_entry

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
            show_download([row.id for row in shown], every=[row.id for row in every], key="notebook")
    show_undo()
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
    show_undo()
    if row is not None:
        show_entry(row)


def _choose(every: list[EntryRow]) -> tuple[str, str | None]:
    text = st.text_input(
        "Search", key="q", bind="query-params", type="search", placeholder="words of title or text", width=320
    )
    names = {
        str(run.get("id")): f"{run.get('name', '')} · {run.get('id')}"
        for row in reversed(every)
        for run in row.cited_runs
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
            show_entry(row)


def show_figure(entry_id: int) -> None:
    """Draw the figure with its caption; one that this version cannot read says so in its place."""
    try:
        figure, note = _frozen(data.database_url(), entry_id)
        if isinstance(figure, Chart):
            height = 130 if len(figure.panels) > 2 else 220
            canvas.show(figure, key=f"entry-{entry_id}-figure", x_name=_short(figure.x_label), panel_height=height)
        else:
            st.image(_picture(data.database_url(), entry_id, _mode()), width=760, alt=figure.description)
    except EmtcError as exc:
        messages.error(exc)
        return
    st.caption(" ".join(escape_markdown(part) for part in (figure.caption, note) if part))


@st.cache_data(max_entries=32, show_spinner=False)
def _frozen(url: str, entry_id: int) -> tuple[Figure, str]:
    """An entry's figure never changes, and its id is never given again."""
    frozen = get_figure(data.database(), entry_id) or {}
    return thaw(frozen), get_note(frozen)


@st.cache_data(max_entries=64, show_spinner="Drawing …")
def _picture(url: str, entry_id: int, mode: Mode) -> bytes:
    return export_figure(_frozen(url, entry_id)[0], "png", mode=mode)


def _mode() -> Mode:
    return "dark" if st.context.theme.type == "dark" else "light"


def _short(x_label: str) -> str:
    return "env step" if "env step" in x_label else x_label.partition(",")[0]


_LABELS: dict[NotebookFormat, str] = {
    "md": "Markdown, zip with images and data",
    "html": "HTML, one page, no network",
    "ipynb": "Jupyter notebook, rebuilds the figures",
}


def show_download(ids: Sequence[int], *, key: str, every: Sequence[int] = ()) -> None:
    """Offer the entries `ids`, or `every` one, in each format; a file is made only when it is asked for."""
    with st.popover("Export", icon=":material/download:", key=f"{key}-export"):
        chosen = ids
        if len(every) > len(ids):
            scope = st.radio("Entries", [f"the {len(ids)} shown", f"all {len(every)}"], key=f"{key}-export-scope")
            chosen = every if str(scope).startswith("all") else ids
        stem = f"notebook-entry-{chosen[0]}" if len(chosen) == 1 else "notebook"
        for format in NOTEBOOK_FORMATS:
            st.download_button(
                _LABELS[format],
                data=_writer(chosen, format, app_address(st.context.url)),
                file_name=f"{stem}.{SUFFIX[format]}",
                mime=MIME[format],
                key=f"{key}-export-{format}",
                on_click="ignore",
                width="stretch",
                disabled=not chosen,
            )


def app_address(url: str | None) -> str | None:
    """Find where the app answers from the address of this page."""
    parts = urlsplit(url or "")
    if parts.scheme not in ("http", "https"):
        return None
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/notebook')}"


def _writer(ids: Sequence[int], format: NotebookFormat, address: str | None) -> Callable[[], bytes]:
    return partial(export_entries, data.database(), tuple(ids), format, address=address)


ENTRY = "entry"
"""The URL parameter that names one entry."""
_DELETED = "notebook_deleted"
_MOST_CITED = 6


def show_entry(row: EntryRow) -> None:
    """Draw an entry, or its editor."""
    with st.container(border=True, key=f"entry-{row.id}"):
        if edit.is_editing(row.id):
            edit.show(row)
        else:
            st.markdown(f"#### {escape_markdown(row.title) or 'Untitled'}")
            st.caption(_dates(row))
            if row.body.strip():
                st.markdown(sanitize(row.body))
        if row.has_figure:
            show_figure(row.id)
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
    made = f"Entry {row.id} · {format_time(row.created_at)}"
    return made if row.updated_at == row.created_at else f"{made} · edited {format_time(row.updated_at)}"


def _origin(row: EntryRow, missing: list[str]) -> None:
    for run in row.cited_runs[:_MOST_CITED]:
        st.caption(f":material/science: {escape_markdown(describe_cited_run(run))}")
    if len(row.cited_runs) > _MOST_CITED:
        st.caption(f"… and {len(row.cited_runs) - _MOST_CITED} more runs")
    if missing:
        names = " and ".join(f"Run {escape_markdown(run_id)}" for run_id in missing[:_MOST_CITED])
        st.caption(
            f":material/link_off: {names} {'is' if len(missing) == 1 else 'are'} no longer in this database. "
            "The figure and the note stand as they were."
        )


def _missing(row: EntryRow) -> list[str]:
    cited = [str(run.get("id", "")) for run in row.cited_runs]
    known = data.existing_runs(cited) | names_beside(cited).keys()
    return [run_id for run_id in cited if run_id not in known]


def _actions(row: EntryRow, *, linked: bool) -> None:
    view = read_view(row.view)
    with st.container(horizontal=True, vertical_alignment="center"):
        if view is not None and linked:
            _link(view)
        idle = not messages.may_act()
        if not edit.is_editing(row.id) and not idle:
            st.button("Edit", icon=":material/edit:", key=f"entry-{row.id}-edit", on_click=edit.begin, args=(row,))
        show_download([row.id], key=f"entry-{row.id}")
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
            query_params={**view.query, **link({})},
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
