"""One button from nothing to a live curve: starts the demo run and opens its Live page."""

import secrets

import streamlit as st

from app.jobs.launch import launch_demo
from app.ui import data, messages, state
from emtc_core.errors import EmtcError

_TOKEN = "demo_token"


def show(*, primary: bool) -> None:
    """Draw the button; a double click starts one run only."""
    token = st.session_state.setdefault(_TOKEN, secrets.token_hex(8))
    pressed = st.button(
        "Start the demo run",
        icon=":material/play_arrow:",
        type="primary" if primary else "secondary",
        key="start_demo",
        disabled=not messages.may_act(),
        help="EMTC(QPLEX) on the embedded simulator's map 3m: about two minutes on two CPU cores.",
    )
    if not pressed:
        return
    try:
        run_id = launch_demo(data.database(), launch_token=token)
    except EmtcError as exc:
        messages.error(exc)
        return
    st.session_state[_TOKEN] = secrets.token_hex(8)
    st.cache_data.clear()
    st.switch_page("../pages/live.py", query_params={state.RUN: run_id, state.TOUR: "1"})
