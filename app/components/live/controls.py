"""Stop, pause and resume a run, with what was asked and when the trainer obeyed."""

import time
from collections.abc import Callable
from datetime import UTC, datetime

import pandas as pd
import streamlit as st

from app import data, messages
from app.format import aware, duration
from app.runs.launch import kill_run, resume_run
from emtc_core.control import Command
from emtc_core.errors import EmtcError
from storage.control import command_log, send_command
from storage.runs import RunRow

SILENCE_S = 10.0
STARTING_S = 60.0
_RESUMING = "resuming"


def show(run: RunRow) -> None:
    """Draw the buttons that fit the run's state."""
    status = run.live_status
    with st.container(horizontal=True):
        if not messages.may_act():
            return
        if status in ("running", "queued"):
            _command(run, "pause", "Pause", ":material/pause:")
            _command(run, "stop", "Stop", ":material/stop:")
        elif status == "paused":
            _command(run, "resume", "Go on", ":material/play_arrow:")
            _command(run, "stop", "Stop", ":material/stop:")
        elif is_resuming(run.id):
            st.caption("A new trainer is starting from the last checkpoint …")
        elif status in ("stopped", "failed", "lost") and st.button(
            "Resume from the last checkpoint", icon=":material/replay:", type="primary", key="resume-ended"
        ):
            _try(lambda: _resume(run.id))


def is_resuming(run_id: str) -> bool:
    """Tell whether this session has asked for the run to go on and its new trainer may still be starting."""
    known, asked_at = st.session_state.get(_RESUMING, ("", 0.0))
    return known == run_id and time.monotonic() - asked_at < STARTING_S


def _resume(run_id: str) -> None:
    resume_run(data.database(), run_id)
    st.session_state[_RESUMING] = (run_id, time.monotonic())
    st.rerun()


def show_log(run: RunRow) -> None:
    """Say what was asked of the trainer and how fast it obeyed; offer the hard way after a long silence."""
    log = command_log(data.database(), run.id).tail(3)
    rows = data.rows_of(log)
    for row in reversed(rows):
        st.caption(describe_command(row["command"], row["requested_at"], row["acknowledged_at"]))
    waiting = [row["requested_at"] for row in rows if pd.isna(row["acknowledged_at"])]
    if waiting and run.live_status in ("running", "paused"):
        silent = (datetime.now(UTC) - aware(waiting[0])).total_seconds()
        if (
            silent > SILENCE_S
            and messages.may_act()
            and st.button(
                "End the process now", icon=":material/dangerous:", help="Loses the steps after the last checkpoint."
            )
        ):
            _try(lambda: kill_run(data.database(), run.id))


def describe_command(command: str, requested_at: datetime, acknowledged_at: datetime | None) -> str:
    """Say in one line when something was asked and when the trainer obeyed."""
    asked = f"{command}: requested {aware(requested_at):%H:%M:%S} UTC"
    if acknowledged_at is None or pd.isna(acknowledged_at):
        return f"{asked}, not acknowledged yet"
    waited = (aware(acknowledged_at) - aware(requested_at)).total_seconds()
    text = f"{waited:.1f} s" if waited < 10 else duration(waited)
    return f"{asked} → acknowledged {aware(acknowledged_at):%H:%M:%S}, after {text}"


def _command(run: RunRow, command: Command, label: str, icon: str) -> None:
    if st.button(label, icon=icon, key=f"command-{command}"):
        _try(lambda: send_command(data.database(), run.id, command))


def _try(act: Callable[[], object]) -> None:
    try:
        act()
    except EmtcError as exc:
        messages.error(exc)
