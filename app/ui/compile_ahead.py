"""Start the compilation of what a first run needs, once per server, as soon as somebody opens the app."""

import streamlit as st

from app.jobs.launch import start_warmup
from app.ui import data


def start_once() -> None:
    """Start it unless this server has done so."""
    _start(data.own_url())


@st.cache_resource(show_spinner=False)
def _start(url: str) -> bool:
    db = data.open_url(url)
    folder = db.path.with_name(f"{db.path.stem}.files") if db.path else None
    return start_warmup(folder / "warm-up.txt") if folder else False
