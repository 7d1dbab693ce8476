"""The table of runs with their live status; a chosen row offers what can be done with that run."""

from collections.abc import Mapping
from typing import Any

import pandas as pd
import streamlit as st

from app import data, messages
from app.components import run_picker
from app.format import count, duration, escape_markdown
from app.theme import ENDED
from emtc_core.errors import EmtcError
from storage import lifecycle
from storage.lifecycle import Event, State
from storage.queries.gate_state import GateState
from storage.removal import list_belongings, remove_run

_COLUMNS = [
    *("status", "name", "algo", "map", "seed", "progress"),
    *("win_rate", "return_mean", "gate", "duration", "id", "created_at"),
]
_SYMBOLS = {
    "queued": "◷ queued",
    "running": "▶ running",
    "paused": "❚❚ paused",
    "finished": "✔ finished",
    "stopped": "■ stopped",
    "failed": "✖ failed",
    "lost": "⚠ lost",
}


_GATES = {"active": "● active", "idle": "○ idle"}


def show() -> None:
    """Draw the table; it refreshes itself, faster while a run is alive."""
    active = not set(data.run_list()["status"]) <= ENDED
    st.fragment(_table, run_every=2 if active else 5)()


def _table() -> None:
    frame = data.run_list()
    gates = data.gate_states(list(zip(frame["id"], frame["status"], frame["env_steps"], strict=True)))
    picked = st.dataframe(
        make_rows(frame, gates),
        key="run_table",
        hide_index=True,
        on_select="rerun",
        selection_mode="single-row",
        column_order=_COLUMNS,
        column_config=_column_config(),
        alt="Table of runs with status, progress and last evaluation. Choose a row to open, resume or delete the run.",
    )
    rows = picked["selection"]["rows"]
    if rows and rows[0] < len(frame):
        _actions(data.rows_of(frame.iloc[rows[0] : rows[0] + 1])[0], gates)
    else:
        st.caption("Choose a row to open, resume or delete the run.")


def make_rows(frame: pd.DataFrame, gates: Mapping[str, GateState]) -> pd.DataFrame:
    """Turn the list of runs into what the table shows; without a judged gate its cell is empty."""
    rows = frame.copy()
    rows["status"] = [_SYMBOLS.get(status, status) for status in frame["status"]]
    rows["progress"] = (frame["env_steps"] / frame["target_steps"].clip(lower=1)).clip(upper=1.0)
    ended = frame["ended_at"].fillna(frame["heartbeat_at"])
    seconds = (ended - frame["started_at"]).dt.total_seconds()
    rows["duration"] = [duration(None if pd.isna(value) else float(value)) for value in seconds]
    rows["gate"] = [_GATES[gates[run_id].state] if run_id in gates else "" for run_id in frame["id"]]
    return rows


def _column_config() -> dict[str, Any]:
    column = st.column_config
    return {
        "status": column.TextColumn("Status", width="small"),
        "name": column.TextColumn("Run", width="medium"),
        "algo": column.TextColumn("Algorithm", width="small"),
        "map": column.TextColumn("Map", width="small"),
        "seed": column.NumberColumn("Seed", width="small"),
        "progress": column.ProgressColumn("Progress", format="percent", min_value=0, max_value=1, width="small"),
        "win_rate": column.NumberColumn("Win rate", format="percent", width="small", help="Last greedy evaluation"),
        "return_mean": column.NumberColumn("Return", format="%.2f", help="Last greedy evaluation, mean [env return]"),
        "gate": column.TextColumn("Gate", width="small", help="Does it remove incentive? Choose the row for why."),
        "duration": column.TextColumn("Duration", width="small"),
        "created_at": column.DatetimeColumn("Created (UTC)", format="YYYY-MM-DD HH:mm", timezone="UTC"),
        "id": column.TextColumn("Id", width="small"),
    }


def _actions(run: dict[str, Any], gates: Mapping[str, GateState]) -> None:
    run_id = str(run["id"])
    with st.container(horizontal=True, vertical_alignment="center"):
        run_picker.links(run_id, str(run["name"]))
        can_go = lifecycle.allows(State(str(run["state"])), Event.DELETE)
        with st.popover("Delete", icon=":material/delete:", disabled=not can_go, key=f"delete-{run_id}"):
            if can_go:
                _say_what_goes(run_id)
            if st.button("Delete for good", type="primary", key=f"delete-now-{run_id}"):
                _delete(run_id)
    run_picker.gate_badge(gates.get(run_id))
    if run["status"] in ("failed", "lost") and run["error"]:
        st.error(escape_markdown(str(run["error"])))
    if run["status"] == "lost":
        st.warning("The trainer of this run is gone without a word. Open *Live* to see what it can go on from.")


def _say_what_goes(run_id: str) -> None:
    with messages.guarded():
        belongings = list_belongings(data.database(), run_id)
        st.markdown(f"For good, this removes run `{run_id}`: {escape_markdown(str(belongings))}.")
        if belongings.entries or belongings.children:
            kept = f"{count(belongings.entries)} notebook entries and {count(belongings.children)} later runs"
            st.caption(f"{kept} that name it stay.")


def _delete(run_id: str) -> None:
    try:
        remove_run(data.database(), run_id)
    except EmtcError as exc:
        messages.error(exc)
        return
    run_picker.forget(run_id)
    st.cache_data.clear()
    st.rerun()
