"""What lies beside a run's rows, for a page: its checkpoints and the end of its log, wherever the run says they lie.

What lies on this machine is read as it is; what a network brings is at most FAR_S old, and so is a place that did not
answer: a page must not wait for it at every refresh.

Start the compilation of what a first run needs, once per server, as soon as somebody opens the app.
"""

import socket

import streamlit as st

from app.jobs.launch import LOG_NAME, start_warmup
from app.jobs.resume import CheckpointStatus, look
from app.ui import data
from emtc_core.errors import StorageError
from storage.files.places import run_folder, run_place
from storage.files.remote import Remote
from storage.guards import hide_passwords
from storage.private_files import read_tail
from storage.runs.rows import RunRow, find_run


def compile_ahead() -> None:
    """Start it unless this server has done so."""
    _start(data.own_url())


@st.cache_resource(show_spinner=False)
def _start(url: str) -> bool:
    db = data.open_url(url)
    folder = db.path.with_name(f"{db.path.stem}.files") if db.path else None
    return start_warmup(folder / "warm-up.txt") if folder else False


FAR_S = 10
LOG_TAIL_BYTES = 20_000


@st.cache_data(ttl=FAR_S, show_spinner=False)
def _far_status(url: str, run_id: str, state: str, _row: RunRow) -> CheckpointStatus:
    return look(data.database(), _row)


def checkpoint_status(row: RunRow) -> CheckpointStatus:
    """Examine a run's checkpoints."""
    if row.files and "://" in row.files:
        return _far_status(data.database_url(), row.id, row.state.value, row)
    return look(data.database(), row)


@st.cache_data(ttl=FAR_S, show_spinner=False)
def _far_log(url: str, run_id: str) -> bytes | str:
    try:
        return Remote(url).files_of(run_id).read_tail(LOG_NAME, LOG_TAIL_BYTES)
    except StorageError as exc:
        return str(exc)


def log_tail(run_id: str) -> str:
    """Read the end of a run's log, or an empty text."""
    db = data.database()
    try:
        place, row = run_place(db, run_id), find_run(db, run_id)
        if place.remote is not None and row.started_at is not None and row.host != socket.gethostname():
            said = _far_log(place.remote.url, run_id)
        else:
            said = read_tail(run_folder(db, run_id) / LOG_NAME, LOG_TAIL_BYTES)
    except StorageError as exc:
        return str(exc)
    text = hide_passwords(said if isinstance(said, str) else said.decode(errors="replace"))
    return "\n".join(line.rsplit("\r", 1)[-1] for line in text.splitlines()[-60:])
