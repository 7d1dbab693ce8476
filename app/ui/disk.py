"""The Storage page: size of the database, backup and vacuum, the data size of each run, and thinning of runs.

Thinning a run deletes its large data, for example its transitions, and keeps its curves.
"""

import zlib
from collections.abc import Callable, Sequence
from typing import Any, Final

import pandas as pd
import streamlit as st

from app.analysis.format import MISSING, escape_markdown, format_run_count, format_size
from app.ui import data, messages
from app.ui.widgets import config_form
from emtc_core.errors import EmtcError
from storage.maintenance.backup import back_up_database, vacuum
from storage.maintenance.sizes import KINDS, RunSize, Sizes
from storage.maintenance.thin import RemovedData, Thinning, count_thinning, thin_run

_MEGABYTES: Final = "%.3g MB"
_KIND_HELP: Final = {
    "transitions": "Rows of single env steps",
    "trajectories": "States and actions of training episodes, for Replay; estimated from 200 episodes",
    "curves": "Metrics, evaluations, gate statistics and sums",
    "playbacks": "Stored evaluation episodes, for Replay",
    "snapshots": "Snapshots of the memory and their projections",
    "checkpoints": "Files from which a run can be resumed",
    "other_files": "Log and other files in the folder of the run",
}
_SUCCESS_MESSAGE: Final = "storage_success_message"
"""Key of Streamlit's session state: the message of the action that has just ended."""
_MIN_FREE_FRACTION: Final = 0.1
"""The page warns if less than this fraction of the database's size is free on the disk."""


def show(sizes: Sizes) -> None:
    """Draw the size of the database and of its disk, and the buttons for backup and vacuum."""
    st.caption(escape_markdown(sizes.url))
    with st.container(horizontal=True):
        st.metric("Database", format_size(sizes.database), border=True)
        for label, size in (("Freed by a vacuum", sizes.reusable), ("Free on its disk", sizes.disk_free)):
            st.metric(label, MISSING if size is None else format_size(size), border=True)
        st.metric(
            "Checkpoints and logs",
            format_size(sum(run.checkpoints + run.other_files for run in sizes.runs)),
            border=True,
        )
    if sizes.left_behind:
        st.caption(f"Folders of deleted runs use another {format_size(sizes.left_behind)}.")
    if sizes.unmeasured:
        st.warning(escape_markdown(sizes.unmeasured), icon=":material/cloud_off:")
    if sizes.disk_free is not None and sizes.disk_free < _MIN_FREE_FRACTION * sizes.database:
        st.warning("The disk is almost full. Thin runs below and vacuum the database, or free disk space.")
    may_act = messages.may_act()
    with st.container(horizontal=True, vertical_alignment="center"):
        is_file = data.database().path is not None  # the server of PostgreSQL copies its databases itself
        if is_file and st.button("Back up", icon=":material/content_copy:", key="backup", disabled=not may_act):
            _run_and_redraw(_back_up, "Copying the database …")
        if st.button("Vacuum", icon=":material/compress:", key="vacuum", disabled=not may_act):
            _run_and_redraw(lambda: f"Vacuumed: {vacuum(data.database())}.", "Rewriting the database …")
        backup = (
            "A backup is a copy of the database in the same folder, without logs and checkpoints."
            if is_file
            else "Back up this database with `pg_dump --format=custom`."
        )
        st.caption(
            f"{backup} A vacuum returns the space of removed data to the disk. It requires that no run is active."
        )
    if message := st.session_state.pop(_SUCCESS_MESSAGE, None):
        st.success(escape_markdown(str(message)), icon=":material/check:")


def show_size_table(sizes: Sizes) -> list[RunSize]:
    """Draw the table of data sizes by run; return the runs that are selected in it."""
    st.subheader("Runs")
    column = st.column_config
    general_columns: dict[str, Any] = {
        "name": column.TextColumn("Run", width=330),
        "id": column.TextColumn("Id", width="small"),
        "status": column.TextColumn("Status", width="small", help="The status last written by the trainer"),
        "total": column.NumberColumn("Total", format=_MEGABYTES, width="small"),
    }
    size_columns = {
        kind: column.NumberColumn(kind.replace("_", " ").capitalize(), format=_MEGABYTES, width="small", help=text)
        for kind, text in _KIND_HELP.items()
    }
    table = st.dataframe(
        make_rows(sizes.runs),
        key=table_key(sizes.runs),
        hide_index=True,
        on_select="rerun",
        selection_mode="multi-row",
        column_config=general_columns | size_columns,
        placeholder="–",
        alt="Table of runs with the size of their data, in total and by kind. Select rows to thin these runs.",
    )
    st.caption("Sizes are estimates: number of rows × usual row size. Select rows to thin these runs.")
    return [sizes.runs[row] for row in table["selection"]["rows"] if row < len(sizes.runs)]


def table_key(runs: Sequence[RunSize]) -> str:
    """Return a widget key that depends on the runs.

    Streamlit stores the selection as row numbers. If the runs change, the new key clears the selection.
    """
    run_ids = ",".join(run.run_id for run in runs)
    return f"size_table-{zlib.crc32(run_ids.encode()):08x}"


def make_rows(runs: Sequence[RunSize]) -> pd.DataFrame:
    """Make the rows of the table [MB]; a size of 0 is shown as an empty cell."""
    return pd.DataFrame(
        {
            "name": [run.name for run in runs],
            "id": [run.run_id for run in runs],
            "status": [run.status for run in runs],
            "total": [run.total / 1e6 for run in runs],
            **{kind: pd.Series([getattr(run, kind) / 1e6 or None for run in runs], dtype="Float64") for kind in KINDS},
        }
    )


def show_thinning(runs: Sequence[RunSize]) -> None:
    """Draw the options for thinning the selected runs, the data that would be removed, and the button."""
    if not runs:
        return
    st.subheader(f"Thin {format_run_count(len(runs))}")
    thinning = _select_thinning()
    if thinning is None:
        return
    if thinning.is_empty:
        st.caption("Select the data to remove. You see its amount before anything is removed.")
        return
    removable, errors = _count_removable(runs, thinning)
    for error in errors:
        st.warning(escape_markdown(error), icon=":material/block:")
    total = sum(removable.values(), RemovedData())
    note = " These runs cannot be resumed afterwards." if thinning.transitions or thinning.checkpoints else ""
    runs_text = format_run_count(len(removable))
    st.markdown(f"Permanently removes from {runs_text}: **{escape_markdown(str(total))}**.{note}")
    can_act = messages.may_act() and total != RemovedData()
    if st.button("Thin runs", type="primary", icon=":material/delete_sweep:", key="thin", disabled=not can_act):
        _run_and_redraw(lambda: _thin(list(removable), thinning), "Thinning …")


def _select_thinning() -> Thinning | None:
    """Draw the options; return the data to remove, or None if the number of a snapshot is invalid."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        snapshot_interval = config_form.integer_field(
            "Keep every n-th snapshot", key="thin_snapshots", default=1, low=1, high=1000, width=200,
            help_text="Counted backwards from the last snapshot, which is always kept. 1 keeps all.",
        )  # fmt: skip
        trajectories = st.checkbox(
            "Trajectories",
            key="thin_trajectories",
            help="Training episodes and episodes of memory nodes can then not be replayed.",
        )
        transitions = st.checkbox(
            "Transitions", key="thin_transitions", help="Sums over 1,000 steps are kept, so the curves of Live remain."
        )
        checkpoints = st.checkbox("Checkpoints", key="thin_checkpoints", help="Needed to resume a run.")
    if snapshot_interval is None:
        return None
    return Thinning(trajectories, transitions, checkpoints, snapshot_interval)


def _count_removable(runs: Sequence[RunSize], thinning: Thinning) -> tuple[dict[str, RemovedData], list[str]]:
    """Return the removable data of each run that can be thinned, and an error for each other run."""
    removable: dict[str, RemovedData] = {}
    errors: list[str] = []
    for run in runs:
        try:
            removable[run.run_id] = count_thinning(data.database(), run.run_id, thinning)
        except EmtcError as exc:
            errors.append(str(exc))
    return removable, errors


def _thin(run_ids: Sequence[str], thinning: Thinning) -> str:
    removed = sum((thin_run(data.database(), run_id, thinning) for run_id in run_ids), RemovedData())
    return f"Removed {removed}. Vacuum the database to return the space to the disk."


def _back_up() -> str:
    path = back_up_database(data.database())
    return f"Copied to {path} ({format_size(path.stat().st_size)})."


def _run_and_redraw(action: Callable[[], str], progress_text: str) -> None:
    """Run an action, then draw the page again with its message and new sizes."""
    try:
        with st.spinner(progress_text):
            st.session_state[_SUCCESS_MESSAGE] = action()
    except EmtcError as exc:
        messages.error(exc)
        return
    st.cache_data.clear()
    st.rerun()
