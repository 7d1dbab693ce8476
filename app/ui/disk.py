"""The database as a whole: its size, its disk, a copy of it, and the room that a vacuum gives back.

What may go of the chosen runs: counted first, removed when that is confirmed.

The table of runs with what each takes, by kind; chosen rows are what can be thinned.
"""

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd
import streamlit as st

from app.analysis.format import MISSING, escape_markdown, format_count, format_size
from app.ui import data, messages
from app.ui.widgets import config_form
from emtc_core.errors import EmtcError
from storage.maintenance.backup import back_up_database, vacuum
from storage.maintenance.sizes import KINDS, RunSize, Sizes
from storage.maintenance.thin import RemovedData, Thinning, count_thinning, thin_run

_MEGABYTES = "%.1f MB"
_MEANING = {
    "transitions": "Rows of single steps",
    "trajectories": "States and actions of training episodes, for Replay; estimated from 200 episodes",
    "curves": "Metrics, evaluations, gate statistics and sums",
    "playbacks": "Greedy episodes kept for Replay",
    "snapshots": "The memory over time, with its projections",
    "checkpoints": "Files that a resume needs",
    "other_files": "Log and whatever else is in the run's folder",
}


def show_sizes(sizes: Sizes) -> list[RunSize]:
    """Draw the table and return the chosen runs."""
    st.subheader("Runs")
    picked = st.dataframe(
        make_rows(sizes.runs),
        key=table_key(sizes.runs),
        hide_index=True,
        on_select="rerun",
        selection_mode="multi-row",
        column_config=_columns(),
        placeholder="–",
        alt="Table of runs with the room that each takes, in all and by kind. Choose rows to thin those runs.",
    )
    st.caption("Close, not exact: rows are counted and taken at their usual size. Choose rows to thin those runs.")
    return [sizes.runs[place] for place in picked["selection"]["rows"] if place < len(sizes.runs)]


def table_key(runs: Sequence[RunSize]) -> str:
    """The table's key, of the runs in its rows: a choice, which is of rows, ends when other runs stand in them."""
    return f"size_table-{zlib.crc32(','.join(run.run_id for run in runs).encode()):08x}"


def make_rows(runs: Sequence[RunSize]) -> pd.DataFrame:
    """Turn sizes into what the table shows; what takes nothing is empty."""
    return pd.DataFrame(
        {
            "name": [run.name for run in runs],
            "id": [run.run_id for run in runs],
            "status": [run.status for run in runs],
            "total": [run.total / 1e6 for run in runs],
            **{kind: pd.Series([getattr(run, kind) / 1e6 or None for run in runs], dtype="Float64") for kind in KINDS},
        }
    )


def _columns() -> dict[str, Any]:
    column = st.column_config
    named: dict[str, Any] = {
        "name": column.TextColumn("Run", width="medium"),
        "id": column.TextColumn("Id", width="small"),
        "status": column.TextColumn("Status", width="small", help="The word that its process wrote last"),
        "total": column.NumberColumn("In all", format=_MEGABYTES, width="small"),
    }
    return named | {
        kind: column.NumberColumn(kind.replace("_", " ").capitalize(), format=_MEGABYTES, width="small", help=meaning)
        for kind, meaning in _MEANING.items()
    }


def show_thinning(runs: Sequence[RunSize]) -> None:
    """Draw the choice for the chosen runs, what it comes to, and the button that does it."""
    if not runs:
        return
    st.subheader(f"Thin {format_count(len(runs))} run{'s' if len(runs) > 1 else ''}")
    what = _choose()
    if what is None:
        return
    if what.is_empty:
        st.caption("Choose what shall go; it is counted before anything is removed.")
        return
    free, refused = _count(runs, what)
    for sentence in refused:
        st.warning(escape_markdown(sentence), icon=":material/block:")
    total = sum(free.values(), RemovedData())
    lost = " They cannot be resumed afterwards." if what.transitions or what.checkpoints else ""
    st.markdown(f"For good, this removes of {format_count(len(free))} runs: **{escape_markdown(str(total))}**.{lost}")
    can = messages.may_act() and total != RemovedData()
    if st.button("Thin for good", type="primary", icon=":material/delete_sweep:", key="thin", disabled=not can):
        act(lambda: _thin(list(free), what), "Thinning …")


def _choose() -> Thinning | None:
    with st.container(horizontal=True, vertical_alignment="bottom"):
        every = config_form.ask(
            "Keep every n-th snapshot", key="thin_snapshots", usual=1, low=1, high=1000, width=200,
            about="Counted from the last one, which always stays; 1 keeps all.",
        )  # fmt: skip
        trajectories = st.checkbox(
            "Trajectories", key="thin_trajectories", help="Replays of training episodes and of single memories end."
        )
        transitions = st.checkbox(
            "Transitions", key="thin_transitions", help="Sums over 1,000 steps stay, and so the curves of Live."
        )
        checkpoints = st.checkbox("Checkpoints", key="thin_checkpoints", help="What a resume goes on from.")
    return None if every is None else Thinning(trajectories, transitions, checkpoints, every)


def _count(runs: Sequence[RunSize], what: Thinning) -> tuple[dict[str, RemovedData], list[str]]:
    """Count what goes of each run that is free, and say why others are not."""
    free: dict[str, RemovedData] = {}
    refused: list[str] = []
    for run in runs:
        try:
            free[run.run_id] = count_thinning(data.database(), run.run_id, what)
        except EmtcError as exc:
            refused.append(str(exc))
    return free, refused


def _thin(run_ids: Sequence[str], what: Thinning) -> str:
    gone = sum((thin_run(data.database(), run_id, what) for run_id in run_ids), RemovedData())
    return f"Removed {gone}. A vacuum gives the room back to the disk."


_DONE = "storage_done"
_SCARCE = 0.1
"""Of the database's size: less is free, and the next runs may fill the disk."""


def show(sizes: Sizes) -> None:
    """Draw the figures and what can be done."""
    st.caption(escape_markdown(sizes.url))
    with st.container(horizontal=True):
        st.metric("Database", format_size(sizes.database), border=True)
        st.metric("A vacuum gives back", format_size(sizes.reusable), border=True)
        free = MISSING if sizes.disk_free is None else format_size(sizes.disk_free)
        st.metric("Free on its disk", free, border=True)
        st.metric(
            "Checkpoints and logs",
            format_size(sum(run.checkpoints + run.other_files for run in sizes.runs)),
            border=True,
        )
    if sizes.left_behind:
        st.caption(f"Folders of runs that are no more take {format_size(sizes.left_behind)} beside it.")
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
    place = back_up_database(data.database())
    return f"Copied to {place} ({format_size(place.stat().st_size)})."


def _vacuum() -> str:
    return f"Vacuumed: {vacuum(data.database())}."
