"""Memory: what does this run remember, and which episode wrote it?"""

import streamlit as st

from app import messages
from app.components import memory_map, point_panel, run_picker

st.title("Memory")
run = run_picker.require_run()
run_picker.header(run)
with messages.guarded():
    shown = memory_map.show(run)
    if shown is not None:
        point_panel.show(run, shown)
