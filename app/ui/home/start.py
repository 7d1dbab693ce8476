"""What Home begins with: a button from nothing to a live curve, one to the example study, and the newest runs' curves.

The demo run opens its Live page; the study that ships with the program is opened read-only, beside one's own runs.
"""

import secrets

import streamlit as st

from app.analysis.example_study import EXAMPLE_STUDY
from app.analysis.format import escape_markdown
from app.analysis.provenance import describe_runs
from app.figures.named.curves import draw_comparison
from app.jobs.launch import launch_demo
from app.ui import data, messages, state, view
from app.ui.compared import read_compared
from app.ui.state import RUNS
from app.ui.widgets import canvas, pin
from emtc_core.errors import EmtcError
from storage.bundles.bundle_cache import cache_bundle
from storage.engine import is_read_only
from storage.queries.runs import RunFilter

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
        help="EMTC, EMU and their backbone on 3s_vs_5z: curves, memories and chosen episodes, to look at and compare.",
    )
    if not pressed:
        return
    try:
        with st.spinner("Unpacking the study …"):
            bundle = cache_bundle(EXAMPLE_STUDY, is_ours=True)
    except EmtcError as exc:
        messages.error(exc)
        return
    data.close_url(bundle.url)
    view.enter(bundle)
    st.switch_page("../pages/compare.py", query_params=view.link({}))


NEWEST = 10


def show_newest() -> None:
    """Draw the chart when at least one run was evaluated."""
    newest = list(data.run_names(RunFilter(shelf="drawn", evaluated=True), NEWEST)[0])
    compared = read_compared(newest, "win_rate")
    comparison = compared.curves(include_unfinished=False)
    chart = draw_comparison(comparison, per_seed=True, name="win-rates", title="Win rate of the last runs")
    if chart.is_empty:
        return
    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="bottom"):
        st.subheader("The last runs compared")
        with st.container(horizontal=True, width="content", gap="small", vertical_alignment="center"):
            st.page_link(
                "../pages/compare.py",
                label="Open in Compare",
                icon=":material/stacked_line_chart:",
                query_params=view.link({RUNS: ",".join(newest)}),
            )
            sources = describe_runs(compared.configs, {run_id: row.versions for run_id, row in compared.rows.items()})
            pin.show_export(chart, key="compare", stem="last-runs", sources=sources)
    canvas.show(chart, key="compare", panel_height=240)
    st.caption(escape_markdown(chart.caption))
