"""Sweeps: which studies are under way, what do they say, and what does the paper say?"""

import streamlit as st

from app import data, messages
from app.components import sweep_detail, sweep_list, sweep_start, sweep_study

st.title("Sweeps")
st.markdown(
    "A sweep trains every combination of some settings over some seeds, a few runs at once. "
    "It goes on when this page is closed, and after a restart where it was interrupted."
)
with messages.guarded():
    sweeps = data.sweep_list()
    sweep_start.show(expanded=not sweeps)
    if sweeps:
        chosen = sweep_list.show(sweeps)
        sweep_detail.show(chosen)
        sweep_study.show(chosen)
    else:
        messages.empty(
            "There is no sweep yet.", "Choose a template above, look at its runs, and press *Start the sweep*."
        )
