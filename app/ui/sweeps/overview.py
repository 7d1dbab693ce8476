"""The sweeps with their progress, and the choice of one of them; the choice stands in the URL."""

from collections.abc import Sequence
from typing import Any

import pandas as pd
import streamlit as st

from app.analysis.format import duration
from app.ui import data, state
from app.ui.sweeps import select_by_id
from app.ui.sweeps.start import SWEEP
from storage.queries.sweeps import Sweep

WORDS = {
    "running": "▶ running",
    "paused": "❚❚ paused",
    "finished": "✔ finished",
    "stopped": "■ stopped",
    "failed": "✖ some failed",
    "lost": "⚠ waiting",
}


def show(sweeps: Sequence[Sweep]) -> Sweep:
    """Draw the table, refreshing itself while a sweep works, and return the chosen sweep."""
    st.subheader("All sweeps")
    st.fragment(_table, run_every=3 if any(sweep.state == "running" for sweep in sweeps) else None)()
    known = {sweep.id: sweep for sweep in sweeps}
    names = {sweep.id: f"{sweep.name} · {sweep.id}" for sweep in sweeps}
    text = "What is shown below; its id is in the address, so the link can be shared."
    chosen = select_by_id.show("Sweep", names, key=SWEEP, text=text)
    state.write(SWEEP, chosen)  # also the newest: tomorrow another one will be
    return known[chosen]


def make_rows(sweeps: Sequence[Sweep]) -> pd.DataFrame:
    """Turn sweeps into what the table shows."""
    rows = [
        {
            "State": WORDS[sweep.state],
            "Sweep": sweep.name,
            "Progress": round(sweep.done, 2),
            "Time left": _time_left(sweep),
            "Runs": len(sweep.runs),
            **{status.capitalize(): sweep.counts[status] for status in ("finished", "running", "queued", "failed")},
            "Id": sweep.id,
            "Created (UTC)": sweep.created_at,
        }
        for sweep in sweeps
    ]
    return pd.DataFrame(rows)


def _time_left(sweep: Sweep) -> str:
    if sweep.is_over:
        return "ended"
    left = sweep.seconds_left()
    return "–" if left is None else f"≈ {duration(left)}"


def _table() -> None:
    columns: dict[str, Any] = {
        "Sweep": st.column_config.TextColumn(width="medium"),
        "Progress": st.column_config.ProgressColumn(format="percent", min_value=0, max_value=1, width="small"),
        "Created (UTC)": st.column_config.DatetimeColumn(format="YYYY-MM-DD HH:mm", timezone="UTC"),
    }
    described = "Table of sweeps: state, progress, how many runs finished, run, wait or failed, and the time left."
    st.dataframe(make_rows(data.sweep_list()), hide_index=True, key="sweep_table", column_config=columns, alt=described)
