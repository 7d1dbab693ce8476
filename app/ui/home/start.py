"""The buttons that start: a new run on Launch, the demo run, and the example study, which is a read-only bundle.

Home offers the demo run and the example study until there is a run, and *Guide* offers them always. A bundle is a file
of exported runs.
"""

import secrets

import streamlit as st

from app.jobs.launch import EXAMPLE_BUNDLE, launch_demo
from app.ui import data, messages, view
from app.ui.page_state import RUN, TOUR
from app.ui.widgets import tour
from emtc_core.errors import EmtcError
from storage.bundles.bundle_cache import cache_bundle
from storage.engine import is_read_only

_TOKEN = "demo_token"
"""Key of the session state: token of the next demo run. A second launch with the same token creates no run."""


def show_first_steps() -> None:
    """Draw the buttons with which a new user starts: the demo run, the example study and the tour of a run."""
    with st.container(horizontal=True, gap="small"):
        show_demo_button(primary=False)
        show_example_button(small=True)
        tour.show_start_button()


def show_new_run_button() -> None:
    """Draw the button that opens Launch."""
    if st.button("New run", icon=":material/add:", type="primary", key="new_run", help="Opens the form of Launch"):
        st.switch_page("../pages/launch.py", query_params=view.add_bundle({}))


def show_demo_button(*, primary: bool) -> None:
    """Draw the button that starts the demo run. A double click starts only one run.

    Args:
        primary: Whether it is the main button of the page. It is not once there are runs.
    """
    token = st.session_state.setdefault(_TOKEN, secrets.token_hex(8))
    is_pressed = st.button(
        "Start the demo run",
        icon=":material/play_arrow:",
        type="primary" if primary else "tertiary",
        key="start_demo",
        disabled=not messages.may_act(),
        help="EMTC(QPLEX) on the map 3m of the embedded simulator. Takes about two minutes on two CPU cores.",
    )
    if not is_pressed:
        return
    try:
        run_id = launch_demo(data.database(), launch_token=token)
    except EmtcError as exc:
        messages.error(exc)
        return
    st.session_state[_TOKEN] = secrets.token_hex(8)
    st.cache_data.clear()
    st.switch_page("../pages/live.py", query_params={RUN.name: run_id, TOUR.name: "1"})


def show_example_button(*, small: bool) -> None:
    """Draw the button that opens the example study. A read-only server has no such button: it opens no bundles."""
    if is_read_only() or not EXAMPLE_BUNDLE.is_file():
        return
    is_pressed = st.button(
        "Open the example study",
        icon=":material/science:",
        key="open_example",
        type="tertiary" if small else "secondary",
        help="A study that is part of EMTC Lab: its question, learning curves, claims and some episodes.",
    )
    if not is_pressed:
        return
    try:
        with st.spinner("Unpacking the study …"):
            bundle = cache_bundle(EXAMPLE_BUNDLE)
    except EmtcError as exc:
        messages.error(exc)
        return
    data.open_url.clear(bundle.url)
    view.switch_to_bundle(bundle)
    st.switch_page("../pages/findings.py", query_params=view.add_bundle({}))
