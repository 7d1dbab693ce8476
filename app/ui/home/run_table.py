"""The table of all runs, page by page: searched, filtered and sorted by the database, all of it in the URL."""

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from app.analysis.format import format_count, format_duration, format_run_count
from app.analysis.settings import name_algo_with_origin
from app.figures.theme import ENDED_STATUSES
from app.ui import data, in_url, messages, state, view
from app.ui.home import chosen_runs
from app.ui.home.run_columns import COLUMN_ORDER, SORT_LABELS, column_config
from app.ui.widgets import run_picker
from emtc_core.config.base import IMPORTED
from storage.queries.runs import RunFilter, RunPage
from storage.runs.rows import PRUNED, shown_status

ROWS = 50
PAGE = "home"
_NUMBER, _DOWN = "page", "down"
_SYMBOLS = {
    "queued": "◷ queued",
    "running": "▶ running",
    "paused": "❚❚ paused",
    "finished": "✔ finished",
    "stopped": "■ stopped",
    "failed": "✖ failed",
    "lost": "⚠ lost",
    IMPORTED: "⇣ imported",
    PRUNED: "✂ pruned",
}
_GATES = {"active": "● active", "idle": "○ idle"}


def show() -> None:
    """Draw the table; it refreshes itself, faster while a run is alive."""
    active = not set(data.run_choices().statuses) <= ENDED_STATUSES
    st.fragment(_board, run_every=2 if active else 5)()


def _board() -> None:
    with messages.guarded():  # here, too: what a fragment raises reaches no border outside it
        wanted, sort = _ask()
        page = _read_page(wanted, sort)
        if not page.total:
            _say_nothing_matches(wanted)
            return
        ids, frame = _stand_still(page, wanted, sort)
        rows = _draw(frame)
        _turn_pages(page.total)
        chosen_runs.show([ids[row] for row in rows if row < len(ids)], wanted, sort, page.total)


def _ask() -> tuple[RunFilter, str]:
    """Draw search, filters and order; return them."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        text = run_picker.search(PAGE, _to_first_page)
        shelf = run_picker.shelf(PAGE, _to_first_page)
        column = st.selectbox(
            "Sort by",
            **in_url.one(PAGE, "sort", list(SORT_LABELS), _to_first_page),
            format_func=SORT_LABELS.__getitem__,
            help="All runs that match are sorted; a click on the head of a column sorts this page alone.",
        )
        down = st.toggle(
            "Downwards", value=True, key=_DOWN, bind="query-params", on_change=_to_first_page, disabled=not column
        )
    with st.expander("Filters", icon=":material/filter_list:", expanded=_is_filtered()):
        statuses = run_picker.statuses(PAGE, data.run_choices(shelf).statuses, _to_first_page)
        wanted = run_picker.lists(PAGE, RunFilter(text=text, shelf=shelf, statuses=statuses), _to_first_page)
    return wanted, f"-{column}" if column and down else column or ""


def _is_filtered() -> bool:
    """Whether this page was opened with a filter in its address, so that what hides runs is in sight."""
    asked = any(name in st.query_params for name in ("states", "envs", "maps", "algos", "presets", "tags"))
    return bool(st.session_state.setdefault("run_filters_open", asked))


def _to_first_page() -> None:
    st.session_state[_NUMBER] = 1


def _read_page(wanted: RunFilter, sort: str) -> RunPage:
    """Read the page that is asked for, or the last one there is."""
    number = st.session_state.get(_NUMBER) or state.read_int(_NUMBER) or 1
    number = max(1, min(number, 10**9))
    page = data.run_page(wanted, sort=sort, limit=ROWS, offset=(number - 1) * ROWS)
    last = max(1, -(-page.total // ROWS))
    if number > last:
        st.session_state[_NUMBER] = last
        state.write(_NUMBER, last)
        return data.run_page(wanted, sort=sort, limit=ROWS, offset=(last - 1) * ROWS)
    return page


def _say_nothing_matches(wanted: RunFilter) -> None:
    if not run_picker.is_asking(wanted):
        where = "archived" if wanted.shelf == "archived" else "hidden" if wanted.shelf == "hidden" else "listed"
        st.info(f"No run is {where}.")
        return
    st.info("No run matches. Take a filter away, or look among the archived ones under *Show*.")


def _stand_still(page: RunPage, wanted: RunFilter, sort: str) -> tuple[list[str], pd.DataFrame]:
    """Keep the rows in their places while some are chosen: what is chosen must not become another run.

    A table that ticks gets new runs on top. As long as its view is the same and rows are chosen, the runs that were
    shown when they were are shown, as they are now; another view, or a run that is gone, takes the choice away.
    """
    view = repr((wanted, sort, st.session_state.get(_NUMBER, 1)))
    if chosen_runs.chosen_rows():
        known = chosen_runs.shown(view)
        frame = data.runs_by_id(known)
        if known and len(frame) == len(known):
            return known, frame
        chosen_runs.forget_choice()
    ids = page.frame["id"].tolist()
    chosen_runs.remember_shown(view, ids)
    return ids, page.frame


def _draw(frame: pd.DataFrame) -> Sequence[int]:
    picked = st.dataframe(
        make_rows(frame),
        key=chosen_runs.key(),
        hide_index=True,
        height=36 * min(len(frame), 15) + 38,
        on_select="rerun",
        selection_mode="multi-row",
        column_order=COLUMN_ORDER,
        column_config=column_config(),
        alt="Table of runs with status, progress and last evaluation. Choose rows to act on runs.",
    )
    return picked["selection"]["rows"]


def make_rows(frame: pd.DataFrame) -> pd.DataFrame:
    """Turn runs into what the table shows; without a judged gate its cell is empty."""
    rows = frame.copy()
    columns = (frame[name].tolist() for name in ("status", "device", "tags"))
    shown = [
        IMPORTED if device == IMPORTED else shown_status(status, tags)
        for status, device, tags in zip(*columns, strict=True)
    ]
    rows["status"] = [_SYMBOLS.get(status, status) for status in shown]
    rows["algo"] = [name_algo_with_origin(*each) for each in zip(frame["algo"], frame["plugins"], strict=True)]
    hidden = frame["hidden_at"].notna()
    rows["name"] = [f"{name} (hidden)" if aside else name for name, aside in zip(frame["name"], hidden, strict=True)]
    rows["name"] = [view.named_link(run_id, name) for run_id, name in zip(rows["id"], rows["name"], strict=True)]
    rows["progress"] = 100 * (frame["env_steps"] / frame["target_steps"].clip(lower=1)).clip(upper=1.0)
    rows["win_rate"] = 100 * frame["win_rate"]
    ended = frame["ended_at"].fillna(frame["heartbeat_at"])
    seconds = (ended - frame["started_at"]).dt.total_seconds()
    rows["duration"] = [format_duration(None if pd.isna(value) else float(value)) for value in seconds]
    rows["gate"] = [_GATES.get(gate, "") for gate in frame["gate"]]
    return rows


def _turn_pages(total: int) -> None:
    pages = max(1, -(-total // ROWS))
    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="center"):
        number = 1
        if pages > 1:
            number = st.pagination(pages, key=_NUMBER, bind=state.bind_int(_NUMBER), width=420)
        first = (number - 1) * ROWS + 1
        shown = f"{format_count(first)}–{format_count(min(total, first + ROWS - 1))} of " if pages > 1 else ""
        st.caption(f"{shown}{format_run_count(total)}", width="content")
