"""The run that the pages show: the picker in the sidebar, and links and badges of a run.

The URL parameter `run` names the run; the picker writes it.
"""

import streamlit as st

from app.analysis.format import escape_markdown, format_count
from app.figures.theme import GATE_COLOR, GATE_ICON, STATUS_COLOR, STATUS_ICON
from app.ui import data, messages, page_state, view
from app.ui.page_state import RUN
from app.ui.widgets import run_filters
from emtc_core.errors import ConfigError, EmtcError
from storage.queries.gate_state import GateState
from storage.queries.run_search import RunFilter
from storage.runs.rows import RunRow

LISTED = 100
"""Maximum number of runs in the picker: the newest of those that match."""
RUN_PAGES = frozenset({"run", "live", "memory", "replay"})
_KEY = "run_picker"
_SESSION_RUN = "run_kept"
_SEARCH = "run_search"


def show(page: str) -> None:
    """Draw the picker in the sidebar and write the session's run into the URL. Pages of one run get a default run."""
    matches, total = _search()
    prefix = RUN.read() or st.session_state.get(_SESSION_RUN)
    if prefix is None and page in RUN_PAGES:
        prefix = _find_default_run(page)
    run_id = None
    if prefix:
        try:
            run_id = data.get_run(prefix).id
        except EmtcError:
            run_id = None
    if run_id:
        st.session_state[_SESSION_RUN] = run_id
        RUN.write(run_id)
    names = matches | (data.names_of([run_id]) if run_id and run_id not in matches else {})
    if not names:
        return
    st.session_state[_KEY] = run_id
    st.sidebar.selectbox(
        "Run",
        list(names),
        index=None if run_id is None else 0,  # a box without a default could be cleared
        format_func=lambda run_id: f"{names.get(run_id, '')} · {run_id}",
        key=_KEY,
        on_change=_on_picked,
        args=(page,),
        placeholder="Select a run",
        help="The run that the pages show. The URL contains its id, so you can share the link.",
    )
    is_searching = bool(st.session_state.get(_SEARCH))
    if is_searching or total > len(matches):
        count = f"{format_count(len(matches))} of " if total > len(matches) else ""
        st.sidebar.caption(
            f"{count}{format_count(total)} {'match' if is_searching else 'runs are listed, the newest'}."
        )


def require_run(title: str) -> RunRow:
    """Return the run of the page. If there is none, draw the title of the page and what to do, and end the page."""
    prefix = RUN.read() or st.session_state.get(_SESSION_RUN)
    try:
        prefix = prefix or data.newest_run()
        if prefix is None:
            st.title(title)
            messages.empty(messages.NO_RUNS, messages.START_DEMO_HINT, page="../pages/home.py", label="Go to Home")
            st.stop()
        return data.get_run(prefix)
    except EmtcError as exc:
        st.title(title)
        messages.error(exc)
        st.page_link("../pages/home.py", label="Show all runs", icon=":material/arrow_forward:")
        st.stop()


def links(run_id: str, name: str) -> None:
    """Draw the name of a run and the links to its pages. Call this inside a horizontal container."""
    name_link(run_id, name)
    page_links(run_id)


def name_link(run_id: str, name: str) -> None:
    """Draw the name of a run as the link to its overview. Call this inside a horizontal container."""
    st.page_link(
        "../pages/run.py", label=f"**{escape_markdown(name)}**", query_params=view.link({RUN.name: run_id}),
        width="content", help="Settings, code and machine of this run, and a button that clones it",
    )  # fmt: skip


def page_links(run_id: str) -> None:
    """Draw the links to Live, Memory and Replay of a run. Call this inside a horizontal container."""
    for page, label, icon in (
        ("live", "Live", ":material/monitoring:"),
        ("memory", "Memory", ":material/bubble_chart:"),
        ("replay", "Replay", ":material/smart_display:"),
    ):
        st.page_link(f"../pages/{page}.py", label=label, icon=icon, query_params=view.link({RUN.name: run_id}))


def status_badge(status: str) -> None:
    """Draw a status with its icon and color."""
    st.badge(status, icon=STATUS_ICON.get(status), color=STATUS_COLOR.get(status, "gray"))  # type: ignore[arg-type]


def show_gate(state: GateState | None) -> None:
    """Draw the state of a gate, its reason, and what to try. Nothing is drawn for a run without a gate."""
    if state is None:
        return
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        gate_badge(state)
        st.caption(escape_markdown(state.sentence), width="content")


def gate_badge(state: GateState) -> None:
    """Draw the state of a gate, with its reason as the tooltip."""
    st.badge(
        f"gate {state.state}", icon=GATE_ICON[state.state], color=GATE_COLOR[state.state],
        help=escape_markdown(state.sentence),
    )  # fmt: skip


def forget(run_id: str) -> None:
    """Remove a deleted run from the session and the URL."""
    if st.session_state.get(_SESSION_RUN) == run_id:
        st.session_state.pop(_SESSION_RUN)
    if RUN.read() == run_id:
        RUN.write(None)


def _find_default_run(page: str) -> str | None:
    """Return the newest run; in a bundle, the run of the newest notebook entry, for Replay one that can be replayed."""
    if view.bundle() is None:
        return data.newest_run()
    entry_run = data.newest_entry_run()
    replayable_runs = data.runs_with_states() if page == "replay" else []
    if entry_run is not None and (not replayable_runs or entry_run in replayable_runs):
        return entry_run
    return replayable_runs[0] if replayable_runs else data.newest_run()


def _search() -> tuple[dict[str, str], int]:
    """Draw the search above the picker; return the names of the newest matching runs, and the number of matches."""
    if not data.has_runs():
        return {}, 0
    text = st.sidebar.text_input(
        "Find a run",
        key=_SEARCH,
        type="search",
        placeholder="corridor tag=paper",
        help=run_filters.HELP,
        on_change=_on_searched,
    )
    try:
        return data.run_names(RunFilter(text=text or ""), LISTED)
    except ConfigError as exc:
        st.sidebar.caption(escape_markdown(str(exc)))
        return {}, 0


def _on_searched() -> None:
    """Select the run if only one matches."""
    try:
        names, total = data.run_names(RunFilter(text=st.session_state.get(_SEARCH) or ""), LISTED)
    except EmtcError:
        return
    if total == 1:
        st.session_state[_SESSION_RUN] = next(iter(names))
        RUN.write(next(iter(names)))


def _on_picked(page: str) -> None:
    run_id = st.session_state.get(_KEY)
    if run_id is None:
        return
    st.session_state[_SESSION_RUN] = run_id
    if page in RUN_PAGES:  # the other parameters describe a view of the former run
        page_state.clear()
    RUN.write(run_id)
