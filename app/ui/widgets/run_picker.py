"""The run that the pages show: the picker in the sidebar, and links and badges of a run.

The URL parameter `run` contains its id, and the session stores it for pages without the parameter. The picker writes
both.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import pandas as pd
import streamlit as st

from app.analysis.format import escape_markdown, format_count, format_final_rate, format_percent, format_run_count
from app.figures.theme import ENDED_STATUSES, GATE_COLOR, GATE_ICON, STATUS_COLOR, STATUS_ICON
from app.ui import data, messages, page_url, view
from app.ui.page_state import RUN
from app.ui.widgets import box, run_filters, run_list
from app.ui.widgets.run_list import ListedRun, RunGroup
from emtc_core.errors import EmtcError, RunNotFoundError
from storage.notebook import list_entries
from storage.queries.episode_search import list_replayable_runs
from storage.queries.final_rates import FinalRate, read_final_rates
from storage.queries.gate_state import GateState
from storage.queries.run_search import RunFilter, run_names, run_page
from storage.queries.runs import find_run_names
from storage.runs.rows import RunRow, find_run, shown_status

MAX_LISTED = 200
"""Maximum number of runs in the list: the newest of those that match."""
MAX_LINKS = 10
"""Maximum number of links that `show_run_links` draws."""
RUN_PAGES = frozenset({"run", "live", "memory", "replay"})
"""Names of the pages of one run."""
_PAGE_LINKS = (
    ("live", "Live", ":material/monitoring:"),
    ("memory", "Memory", ":material/bubble_chart:"),
    ("replay", "Replay", ":material/smart_display:"),
)
_MAX_UNFOLDED = 12
"""Maximum number of listed runs of which all groups are open."""
_UPDATE_S = 2.0
"""Time between two updates of the picker while the run trains [s]."""
# Keys of widgets, and of values in Streamlit's session state:
_SEARCH = "run_search"
_BOX = "run_picker_box"
_SESSION_RUN = "run_of_session"
"""Id of the run that was shown last."""
_MISSING_RUN = "run_picker_missing_run"
"""Name of the page that showed an error because the URL names a run that does not exist, and this name."""
_N_PICKED = "runs_picked"
"""Number of runs that were picked in this session. The key of the box contains it."""
_HAS_PICKED = "run_picker_has_picked"
"""Whether a run was picked and the whole page must be drawn again."""


def show(page: str) -> None:
    """Draw the picker in the sidebar and write the session's run into the URL.

    A page of one run gets a default run if neither the URL nor the session has one. `page` is the name of the page.
    """
    session_run: str | None = st.session_state.get(_SESSION_RUN)
    if not data.has_runs():
        if session_run is not None:
            clear_deleted_run(session_run)
        return
    prefix = RUN.read() or session_run
    if prefix is None and page in RUN_PAGES:
        prefix = _find_default_run(page)
    run = None
    if prefix:
        try:
            run = find_run(data.database(), prefix)
        except RunNotFoundError:
            run = _replace_missing(prefix, page)
        except EmtcError:
            pass  # the page itself shows the error (`require_run`)
    if run is not None:
        st.session_state[_SESSION_RUN] = run.id
        RUN.write(run.id)
    with st.sidebar:
        has_ended = run is None or run.live_status in ENDED_STATUSES
        st.fragment(_show_picker, run_every=None if has_ended else _UPDATE_S)(page, run)


def _replace_missing(prefix: str, page: str) -> RunRow | None:
    """Return the newest run instead of a run that was deleted elsewhere, and show a notice.

    Return None for a run that the session has not shown, which the URL names: the page shows the error (`require_run`).
    If that page was left, the next page shows the newest run.
    """
    session_run: str = st.session_state.get(_SESSION_RUN, "")
    was_shown = session_run.startswith(prefix.lower())
    page_of_error, prefix_of_error = st.session_state.get(_MISSING_RUN, ("", ""))
    if not was_shown and (prefix != prefix_of_error or page == page_of_error):
        st.session_state[_MISSING_RUN] = (page, prefix)
        return None
    st.session_state.pop(_SESSION_RUN, None)
    RUN.write(None)
    newest_id = _find_newest_run()
    if newest_id is None:
        return None
    newest = find_run(data.database(), newest_id)
    if was_shown:
        page_url.report_missing(RUN.name, prefix, newest.name)
    return newest


def _show_picker(page: str, run: RunRow | None) -> None:
    """Draw a button with the name of the run, and the list of runs after the button was pressed.

    A fragment, so that the list opens without a rerun of the page, and so that the progress of the run is updated.
    """
    if st.session_state.pop(_HAS_PICKED, False):
        st.rerun()
    with messages.guarded(), st.container(key="run_picker_bar", gap="xxsmall"):
        label = "Find a run"
        if run is not None:
            with suppress(RunNotFoundError):  # it was deleted: keep the last values
                run = data.cached(find_run, ttl=1)(run.id)
            label = _name_with_status(run.name, shown_status(run.live_status, run.tags))
        key = f"{_BOX}-{st.session_state.get(_N_PICKED, 0)}"  # a new key closes the box
        list_box = box.show(label, key=key, width="stretch", wrap=True)
        if run is not None:
            final = data.cached(read_final_rates, ttl=1)([run.id]).get(run.id)
            progress = _describe_progress(run.map, run.env_steps / max(1, run.target_steps), final)
            st.caption(escape_markdown(f"{progress} · {run.id}"))
        if list_box.is_opened:
            with list_box.container:
                _show_list(page, run.id if run else "")


def _show_list(page: str, current_id: str) -> None:
    """Draw the search and the newest matching runs, grouped by sweep."""
    text = st.text_input(
        "Search runs",
        key=_SEARCH,
        type="search",
        placeholder="corridor tag=paper",
        help=run_filters.HELP,
        on_change=_on_searched,
        args=(page,),
    )
    matching = data.cached(run_page, ttl=1)(RunFilter(text=text or ""), sort="-created", limit=MAX_LISTED)
    n_listed = len(matching.frame)
    is_shortened = matching.total > n_listed
    if text or is_shortened:
        count = format_count(matching.total)
        if is_shortened:
            count = f"{format_count(n_listed)} of {count}"
        st.caption(f"{count} {'match' if text else 'runs are listed, the newest'}.")
    rows = data.rows_of(matching.frame)
    groups: list[RunGroup] = []
    for key, title, members in run_list.group_by_sweep(rows):
        is_open = bool(text) or n_listed <= _MAX_UNFOLDED or any(row["id"] == current_id for row in members)
        runs = tuple(_describe_run(row, title) for row in members)
        groups.append(RunGroup(key, title, runs, is_open=is_open))
    run_list.show(
        groups, key="run_picker_list", on_pick=partial(_pick, page), current_id=current_id,
        height="min(420px, calc(100vh - 260px))",
    )  # fmt: skip


def _describe_run(row: Mapping[str, Any], group_title: str) -> ListedRun:
    """Describe a run for the list. Its name is shown without the name of its sweep."""
    status = shown_status(str(row["status"]), row["tags"])
    short_name = str(row["name"]).removeprefix(f"{group_title} · ")
    has_rate = pd.notna(row["final_rate"])
    final = FinalRate(row["final_rate"], row["final_rate_episodes"]) if has_rate else None
    progress = _describe_progress(row["map"], row["env_steps"] / max(1, row["target_steps"]), final)
    tip = f"{row['name']} · {row['id']} · {progress} · {status}"
    return ListedRun(str(row["id"]), short_name, status, final.rate if final else None, tip=tip)


def _name_with_status(name: str, status: str) -> str:
    icon, color = STATUS_ICON.get(status, ":material/help:"), STATUS_COLOR.get(status, "gray")
    return f":{color}[{icon}] {escape_markdown(name)}"


def _describe_progress(map_name: str, progress: float, final: FinalRate | None) -> str:
    """Write the map of a run, its progress (fraction) until it is 1, and its final win rate."""
    parts = [map_name]
    if progress < 1:
        parts.append(format_percent(progress))
    if final is not None:
        parts.append(f"win rate {format_final_rate(final.rate, final.episodes)}")
    return " · ".join(parts)


def require_run(title: str) -> RunRow:
    """Return the run of the page. If there is none, draw the title of the page and what to do, and end the page."""
    prefix = RUN.read() or st.session_state.get(_SESSION_RUN)
    try:
        prefix = prefix or _find_newest_run()
        if prefix is None:
            st.title(title)
            messages.empty(messages.NO_RUNS, messages.START_DEMO_HINT, page="../pages/home.py", label="Go to Home")
            st.stop()
        return find_run(data.database(), prefix)
    except EmtcError as exc:
        st.title(title)
        messages.error(exc)
        st.page_link("../pages/home.py", label="Show all runs", icon=":material/arrow_forward:")
        st.stop()


def show_page_links(run_id: str, name: str) -> None:
    """Draw the name of a run as the link to its overview, and the links to Live, Memory and Replay.

    Call this inside a horizontal container.
    """
    parameters = view.add_bundle({RUN.name: run_id})
    st.page_link(
        "../pages/run.py", label=f"**{escape_markdown(name)}**", query_params=parameters,
        width="content", help="Settings, code and machine of this run, and a button that clones it",
    )  # fmt: skip
    for page, label, icon in _PAGE_LINKS:
        st.page_link(f"../pages/{page}.py", label=label, icon=icon, query_params=parameters)


def show_run_links(page: str, run_ids: Sequence[str]) -> None:
    """Draw a link to this page for each of the first `MAX_LINKS` runs, and the number of the other runs."""
    icons = {name: icon for name, _, icon in _PAGE_LINKS}
    linked = run_ids[:MAX_LINKS]
    names = data.cached(find_run_names, ttl=5)(linked)
    for run_id in linked:
        st.page_link(
            f"../pages/{page}.py", label=escape_markdown(names.get(run_id, run_id)), icon=icons[page],
            query_params=view.add_bundle({RUN.name: run_id}),
        )  # fmt: skip
    if n_more := len(run_ids) - len(linked):
        st.caption(f"{format_run_count(n_more)} more. Find them in the list of runs in the sidebar.")


def show_status_badge(status: str) -> None:
    """Draw a status with its icon and color."""
    st.badge(status, icon=STATUS_ICON.get(status), color=STATUS_COLOR.get(status, "gray"))  # type: ignore[arg-type]


def show_gate(state: GateState | None) -> None:
    """Draw the state of a gate, its reason, and what to try; draw nothing for a run without a gate.

    A gate is active if it removes a part of the episodic incentive, else idle.
    """
    if state is None:
        return
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        show_gate_badge(state)
        st.caption(escape_markdown(state.sentence), width="content")


def show_gate_badge(state: GateState) -> None:
    """Draw the state of a gate, with its reason as the tooltip."""
    st.badge(
        f"gate {state.state}", icon=GATE_ICON[state.state], color=GATE_COLOR[state.state],
        help=escape_markdown(state.sentence),
    )  # fmt: skip


def clear_deleted_run(run_id: str) -> None:
    """Remove a deleted run from the session and the URL."""
    if st.session_state.get(_SESSION_RUN) == run_id:
        st.session_state.pop(_SESSION_RUN)
    if RUN.read() == run_id:
        RUN.write(None)


def _find_default_run(page: str) -> str | None:
    """Return the id of the run that a page shows if none was selected; None if there is no run.

    It is the newest run. In a bundle (a file with runs), it is the run of the newest notebook entry; on the page Replay
    it is a run that can be replayed.
    """
    if view.get_bundle() is None:
        return _find_newest_run()
    entries = data.cached(list_entries, ttl=60)()
    entry_run = next((entry.run_id for entry in entries if entry.run_id), None)
    if page == "replay":
        replayable_runs = data.cached(list_replayable_runs, ttl=60)()
        if replayable_runs and entry_run not in replayable_runs:
            return replayable_runs[0]
    return entry_run or _find_newest_run()


def _find_newest_run() -> str | None:
    """Return the id of the newest run that is not archived, else of the newest run."""
    for run_filter in (RunFilter(), RunFilter(visibility="all")):
        names, _ = data.cached(run_names, ttl=2)(run_filter, limit=1)
        if names:
            return next(iter(names))
    return None


def _on_searched(page: str) -> None:
    """Pick the run if only one matches the search."""
    try:
        run_filter = RunFilter(text=st.session_state.get(_SEARCH) or "")
        names, total = data.cached(run_names, ttl=2)(run_filter, limit=MAX_LISTED)
    except EmtcError:
        return
    if total == 1:
        _pick(page, next(iter(names)))


def _pick(page: str, run_id: str) -> None:
    """Show a run on all pages, and close the list."""
    st.session_state[_SESSION_RUN] = run_id
    if page in RUN_PAGES:
        page_url.clear()  # the other parameters describe a view of the former run
    RUN.write(run_id)
    st.session_state[_N_PICKED] = st.session_state.get(_N_PICKED, 0) + 1
    st.session_state[_HAS_PICKED] = True
