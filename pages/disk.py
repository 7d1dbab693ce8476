"""Storage: how much disk space does each run use, and what can be removed?"""

import streamlit as st

from app.ui import data, disk, messages
from app.ui.widgets import page_tabs
from storage.maintenance.sizes import measure_sizes

page_tabs.show()
st.markdown(
    "Recorded data is kept until you remove it. Thinning removes the large data of a run and keeps its curves. "
    "To delete a whole run, select it on Home."
)
with messages.guarded():
    sizes = data.cached(measure_sizes, ttl=60, spinner="Measuring …")()
    disk.show(sizes)
    if sizes.runs:
        selected_runs = disk.show_size_table(sizes)
        disk.show_thinning(selected_runs)
    else:
        messages.empty(messages.NO_RUNS, messages.START_DEMO_HINT, page="../pages/home.py", label="Go to Home")
