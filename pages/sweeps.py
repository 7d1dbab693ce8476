"""Sweeps: which studies are under way, what do they say, and what does the paper say?"""

import streamlit as st

from app.ui import data, messages
from app.ui.sweeps import detail, start, study

st.title("Sweeps")
st.markdown(
    "A sweep trains every combination of some settings over some seeds, a few runs at once. "
    "It goes on when this page is closed, and after a restart where it was interrupted."
)
with messages.guarded():
    sweeps = data.sweep_list()
    start.show(expanded=not sweeps)
    if sweeps:
        chosen = start.show_overview(sweeps)
        detail.show(chosen)
        study.show(chosen)
    else:
        messages.empty(
            "There is no sweep yet.", "Choose a template above, look at its runs, and press *Start the sweep*."
        )
