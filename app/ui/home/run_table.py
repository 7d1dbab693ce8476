"""The paged table of all runs. The database searches, filters and sorts; all choices are in the URL.

The actions on selected runs are below the table and stay visible at the bottom of the window. The column *Gate* shows
whether the gate acts now. The gate is the weight β of the episodic incentive, the addition to the reward for states
that the memory recommends.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from typing import Final

import pandas as pd
import streamlit as st

from app.analysis.format import MISSING, format_count, format_duration, format_percent, format_run_count
from app.analysis.settings import name_algo
from app.figures.theme import ENDED_STATUSES
from app.ui import data, messages, view
from app.ui.home import run_actions, run_columns, saved_views, selection
from app.ui.home.run_columns import SORT_LABELS
from app.ui.page_state import Choice, Flag, Integer
from app.ui.widgets import box, run_filters
from emtc_core.config.base import IMPORTED
from storage.queries.curves import win_rate_sparklines
from storage.queries.run_search import RunFilter, RunPage, list_filter_options, run_page, runs_by_id
from storage.queries.runs import read_training_s
from storage.runs.rows import PRUNED, shown_status

ROWS_PER_PAGE: Final = 25
_ROW_HEIGHT: Final = 29
"""Height of a row [pixels]. All rows of a page are visible without scrolling in the table."""
_SORT: Final = Choice("sort", "home")
_DESCENDING: Final = Flag("down", "home", default=True)
_FILTERS: Final = "run_filters"
_PAGE_NUMBER: Final = Integer("page", "home", default=1, low=1, high=10**9, is_pinned=False)
_STATUS_LABELS: Final = {
    "queued": "◷ queued",
    "starting": "◔ starting",
    "running": "▶ running",
    "paused": "❚❚ paused",
    "stopping": "◕ stopping",
    "finished": "✔ finished",
    "stopped": "■ stopped",
    "failed": "✖ failed",
    "lost": "⚠ lost",
    IMPORTED: "⇣ imported",
    PRUNED: "✂ pruned",
}
_GATE_LABELS: Final = {"active": "● active", "idle": "○ idle"}


def show() -> None:
    """Draw the table, refreshed every 2 s while a run is active and every 5 s otherwise."""
    statuses = set(data.cached(list_filter_options, ttl=5)().statuses)
    is_active = bool(statuses - ENDED_STATUSES)
    st.fragment(_show_table, run_every=2 if is_active else 5)()


def make_rows(frame: pd.DataFrame) -> pd.DataFrame:
    """Make the rows of the table: texts of the status with the progress of an unfinished run, links, and percentages.

    The gate cell is – if the run has no gate or too few data about it.
    """
    rows = frame.copy()
    statuses: list[str] = []
    algos: list[str] = []
    links: list[str] = []
    for run in data.rows_of(frame):
        is_imported = run["device"] == IMPORTED  # stored instead of a device
        status = IMPORTED if is_imported else shown_status(run["status"], run["tags"])
        label = _STATUS_LABELS.get(status, status)
        has_progress = status not in ("finished", "queued", IMPORTED) and run["target_steps"] > 0
        progress = min(run["env_steps"] / run["target_steps"], 1.0) if has_progress else None
        statuses.append(label if progress is None else f"{label} {format_percent(progress)}")
        algos.append(run["algo"] if is_imported else name_algo(run["algo"]))
        is_hidden = not pd.isna(run["hidden_at"])
        links.append(view.link_run(run["id"], f"{run['name']} (hidden)" if is_hidden else run["name"]))
    rows["status"] = statuses
    rows["algo"] = algos
    rows["name"] = links
    rows["win_rate"] = 100 * frame["win_rate"]
    rows["final_rate"] = (100 * frame["final_rate"]).round()  # as `format_percent` rounds it on the other pages
    rows["gate"] = [_GATE_LABELS.get(gate, MISSING) for gate in frame["gate"]]
    rows["age"] = frame["created_at"]  # the browser shows a time of this column as "3 hours ago"
    return rows


def _show_table() -> None:
    with messages.guarded():  # needed inside a fragment, because its errors do not reach the page
        run_filter, sort = _select_filter()
        page = _read_page(run_filter, sort)
        if not page.total:
            _show_no_match(run_filter)
            run_actions.show([], run_filter, sort, 0)  # the result of the last action, for example of a deletion
            return
        ids, frame = _keep_selected_rows(page, run_filter, sort)
        rows = _draw_table(frame)
        _show_page_numbers(page.total)
        run_actions.show([ids[row] for row in rows if row < len(ids)], run_filter, sort, page.total)


def _select_filter() -> tuple[RunFilter, str]:
    """Draw search, order and filters; return the filter and the sort key."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        text = run_filters.search(_go_to_first_page)
        column = st.selectbox(
            "Sort by",
            **_SORT.bind(list(SORT_LABELS), SORT_LABELS.__getitem__, on_change=_go_to_first_page),
            help="Sorts all matching runs. A click on a column header sorts only the rows of this page.",
        )
        is_descending = bool(column) and st.toggle("Descending", **_DESCENDING.bind(_go_to_first_page))
        n_filters = run_filters.count_lists()
        label = f"Filters: {n_filters}" if n_filters else "Filters"
        filters = box.show(label, icon=":material/filter_list:", key=_FILTERS)
        run_columns.show_choice()
        saved_views.show()
    run_filter = RunFilter(text=text)
    if filters.is_opened or n_filters:  # its six lists are slow to draw, so a closed box without a filter is empty
        with filters.container:
            visibility = run_filters.visibility(_go_to_first_page)
            run_filter = run_filters.lists(replace(run_filter, visibility=visibility), _go_to_first_page)
    counts = data.cached(list_filter_options, ttl=5)(run_filter.visibility).statuses
    run_filter = replace(run_filter, statuses=run_filters.statuses(counts, _go_to_first_page))
    sort = column or ""
    if column and is_descending:
        sort = f"-{column}"
    return run_filter, sort


def _go_to_first_page() -> None:
    _PAGE_NUMBER.write(1)


def _read_page(run_filter: RunFilter, sort: str) -> RunPage:
    """Read the selected page of the table; the last page if the number is too large."""

    def read(number: int) -> RunPage:
        offset = (number - 1) * ROWS_PER_PAGE
        return data.cached(run_page, ttl=1)(run_filter, sort=sort, limit=ROWS_PER_PAGE, offset=offset)

    number = _PAGE_NUMBER.read() or 1
    page = read(number)
    last_number = _count_pages(page.total)
    if number > last_number:
        _PAGE_NUMBER.write(last_number)
        page = read(last_number)
    return page


def _count_pages(n_runs: int) -> int:
    return max(1, ceil(n_runs / ROWS_PER_PAGE))


def _show_no_match(run_filter: RunFilter) -> None:
    if not run_filters.has_conditions(run_filter):
        adjective = run_filter.visibility if run_filter.visibility in ("archived", "hidden") else "listed"
        st.info(f"No run is {adjective}.")
        return
    st.info("No run matches. Remove a filter, or select *Archived* in *Filters*.")


def _keep_selected_rows(page: RunPage, run_filter: RunFilter, sort: str) -> tuple[list[str], pd.DataFrame]:
    """Return the ids and the table of the runs to list. While rows are selected, the same runs stay in the same order.

    The selection stores row numbers. New runs appear on top of the refreshed table and would move the selection to
    other runs. A changed filter, order or page clears the selection, and so does the deletion of a listed run.
    """
    listing = repr((run_filter, sort, _PAGE_NUMBER.read()))
    if selection.get_selected_rows():
        ids = selection.get_listed_ids(listing)
        frame = runs_by_id(data.database(), ids)
        if ids and len(frame) == len(ids):
            return ids, frame
        selection.clear_selection()
    ids = page.frame["id"].tolist()
    selection.set_listed_ids(listing, ids)
    return ids, page.frame


def _draw_table(frame: pd.DataFrame) -> Sequence[int]:
    """Draw the table and return the selected row numbers."""
    ids = frame["id"].tolist()
    episodes = sorted(frame["final_rate_episodes"].dropna().unique())
    columns = run_columns.list_columns(episodes)
    rows = make_rows(frame)
    if "curve" in columns:
        curves = data.cached(win_rate_sparklines, ttl=5)(ids)
        rows["curve"] = [curves.get(run_id) for run_id in ids]
    if "duration" in columns:
        seconds = data.cached(read_training_s, ttl=2)(ids)
        rows["duration"] = [format_duration(seconds.get(run_id)) for run_id in ids]
    table = st.dataframe(
        rows,
        key=selection.table_key(),
        hide_index=True,
        height=_ROW_HEIGHT * len(frame) + 38,  # of the rows and the header [pixels]
        row_height=_ROW_HEIGHT,
        on_select="rerun",
        selection_mode="multi-row",
        column_order=columns,
        column_config=run_columns.column_config(episodes),
        placeholder=MISSING,
        alt="Table of runs with status, settings and final win rate. Select rows to act on runs.",
    )
    return table["selection"]["rows"]


def _show_page_numbers(total: int) -> None:
    n_pages = _count_pages(total)
    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="center"):
        listed = ""
        if n_pages > 1:
            number = st.pagination(**_PAGE_NUMBER.bind_page_number(n_pages), width=420)
            first = (number - 1) * ROWS_PER_PAGE + 1
            last = min(total, first + ROWS_PER_PAGE - 1)
            listed = f"{format_count(first)}–{format_count(last)} of "
        st.caption(f"{listed}{format_run_count(total)}", width="content")
