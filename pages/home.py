"""Home: what is this, which runs are there, and what to do next?"""

import streamlit as st

from app.ui import data, messages
from app.ui.home import bundle_list, run_table, start
from app.ui.widgets import tour

st.title("EMTC Lab")
st.markdown(
    "Watch *Episodic Memory Temporal Consistency* at work in cooperative multi-agent reinforcement learning: "
    "train a team, follow the gate that trusts or doubts its memories, and replay what it remembers. "
    "Runs train in processes of their own, so you may close this page at any time."
)
with messages.guarded():
    has_runs = data.has_runs()
    with st.container(horizontal=True, gap="small"):
        start.show_demo_button(primary=not has_runs)
        start.show()
        if has_runs:
            tour.offer()
        bundle_list.show_open()
    bundle_list.show(new=True)
    if has_runs:
        st.subheader("Runs")
        run_table.show()
        bundle_list.show(new=False)
        from app.ui.compare.view import show_newest  # loads scipy and the drawing, for which no first page waits

        show_newest()
    else:
        messages.empty(
            messages.NO_RUNS,
            "Press *Start the demo run* above for two minutes of EMTC(QPLEX) on the embedded simulator, "
            "or choose map, algorithm and settings yourself.",
            page="../pages/launch.py",
            label="Open Launch",
        )
        bundle_list.show(new=False)
