"""The selection of a sweep, and the table of all sweeps."""

from collections.abc import Sequence
from typing import Final

import pandas as pd
import streamlit as st

from app.analysis.format import format_duration
from app.ui.page_state import SWEEP
from app.ui.widgets import result_table
from storage.runs.sweeps import Sweep

STATE_LABELS: Final = {
    "running": "▶ running",
    "paused": "❚❚ paused",
    "finished": "✔ finished",
    "stopped": "■ stopped",
    "failed": "✖ some failed",
    "waiting": "⚠ waiting",  # runs are left, and no worker starts them
}


def is_active(sweeps: Sequence[Sweep]) -> bool:
    """Return whether the page must refresh: a sweep is running or paused, or waits until a worker claims its runs."""
    return any(sweep.state in ("running", "paused", "waiting") for sweep in sweeps)


def select(sweeps: Sequence[Sweep]) -> Sweep:
    """Draw the select box; return the selected sweep."""
    by_id = {sweep.id: sweep for sweep in sweeps}
    names = {sweep.id: f"{sweep.name} · {sweep.id}" for sweep in sweeps}
    selected = st.selectbox("Sweep", **SWEEP.bind(list(names), names.__getitem__), label_visibility="collapsed")
    return by_id[str(selected)]


def show_table(sweeps: Sequence[Sweep]) -> None:
    """Draw the table of all sweeps, folded; nothing if there is only one."""
    if len(sweeps) < 2:
        return
    with st.expander(f"All sweeps ({len(sweeps)})", icon=":material/grid_on:"):
        st.dataframe(
            make_rows(sweeps),
            hide_index=True,
            key="sweep_table",
            column_config={
                "Sweep": st.column_config.TextColumn(width="medium"),
                "Progress": st.column_config.ProgressColumn(
                    format=result_table.PERCENT, min_value=0, max_value=100, width="small"
                ),
                "Created (UTC)": st.column_config.DatetimeColumn(format="YYYY-MM-DD HH:mm", timezone="UTC"),
            },
            alt="Table of sweeps: state, progress, time left, and the number of finished, running, queued and failed "
            "runs.",
        )


def make_rows(sweeps: Sequence[Sweep]) -> pd.DataFrame:
    """Make the rows of the table."""
    rows = [
        {
            "State": STATE_LABELS[sweep.state],
            "Sweep": sweep.name,
            "Progress": 100 * sweep.progress,
            "Time left": _describe_time_left(sweep),
            "Runs": len(sweep.runs),
            **{status.capitalize(): sweep.counts[status] for status in ("finished", "running", "queued", "failed")},
            "Id": sweep.id,
            "Created (UTC)": sweep.created_at,
        }
        for sweep in sweeps
    ]
    return pd.DataFrame(rows)


def _describe_time_left(sweep: Sweep) -> str:
    if sweep.is_over:
        return "ended"
    if sweep.state == "paused":
        return "paused"
    seconds = sweep.seconds_left()
    return "–" if seconds is None else f"≈ {format_duration(seconds)}"
