"""Sweeps: which studies are under way, what do they say, and what does the paper say?"""

import streamlit as st

from app.ui import data, messages
from app.ui.sweeps import detail, start, study

st.title("Sweeps")
st.markdown(
    "A sweep trains every combination of some settings over some seeds, a few runs at once. "
    "It goes on when this page is closed, and after a restart where it was interrupted."
)
TICK_S = 3


def _board() -> None:
    """Everything on one state of the database, so that no table disagrees with a figure."""
    with messages.guarded(), data.use_one_snapshot():
        sweeps = data.sweep_list()
        if start.is_working(sweeps) != st.session_state["sweeps_ticking"]:
            st.rerun()
        chosen = start.show_overview(sweeps)
        detail.show(chosen)
        study.show_search(chosen)
        study.show(chosen)


with messages.guarded():
    known = data.sweep_list()
    start.show(expanded=not known)
    if known:
        ticking = st.session_state["sweeps_ticking"] = start.is_working(known)
        st.fragment(_board, run_every=TICK_S if ticking else None)()
    else:
        messages.empty(
            "There is no sweep yet.", "Choose a template above, look at its runs, and press *Start the sweep*."
        )
