"""Home: what is EMTC Lab, which runs exist, and what is the next step?"""

import streamlit as st

from app.ui import data, messages
from app.ui.home import open_bundle, run_table, start

ABOUT = (
    "Train and inspect *Episodic Memory Temporal Consistency* (EMTC) for cooperative multi-agent reinforcement "
    "learning: learning curves, the gate, the episodic memory, and replays. Each run trains in a separate process "
    "and continues when you close this page."
)

with messages.guarded():
    has_runs = data.has_runs()
    with st.container(key="page_bar", horizontal=True, vertical_alignment="center", gap="small"):
        st.title("EMTC Lab", width="content", help=ABOUT if has_runs else None)
        if has_runs:
            start.show_new_run_button()
            open_bundle.show()
    if has_runs:
        run_table.show()
    else:
        st.markdown(ABOUT)
        with st.container(horizontal=True, gap="small"):
            start.show_demo_button(primary=True)
            start.show_example_button(small=False)
            open_bundle.show()
        messages.empty(
            messages.NO_RUNS,
            "*Start the demo run* trains EMTC(QPLEX) on the embedded simulator for about two minutes. "
            "To choose map, algorithm and settings, open Launch.",
            page="../pages/launch.py",
            label="Open Launch",
        )
