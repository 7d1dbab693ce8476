"""What Home begins with: a button from nothing to a live curve, and one to the example study.

The demo run opens its Live page; the study that ships with the program is opened read-only, beside one's own runs.
"""

import secrets

import streamlit as st

from app.jobs.launch import EXAMPLE_STUDY, launch_demo
from app.ui import data, messages, state, view
from emtc_core.errors import EmtcError
from storage.bundles.bundle_cache import cache_bundle
from storage.engine import is_read_only

_TOKEN = "demo_token"


def show_demo_button(*, primary: bool) -> None:
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


def show() -> None:
    """Draw the button, where there is a study and bundles may be opened."""
    if is_read_only() or not EXAMPLE_STUDY.is_file():
        return
    pressed = st.button(
        "Open the example study",
        icon=":material/science:",
        key="open_example",
        help="The study that comes with the program: its question, learning curves, claims and chosen episodes.",
    )
    if not pressed:
        return
    try:
        with st.spinner("Unpacking the study …"):
            bundle = cache_bundle(EXAMPLE_STUDY, is_trusted=True)
    except EmtcError as exc:
        messages.error(exc)
        return
    data.open_url.clear(bundle.url)
    view.enter(bundle)
    st.switch_page("../pages/findings.py", query_params=view.link({}))
