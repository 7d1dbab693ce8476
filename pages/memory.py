"""Memory: what does this run remember, and which episode wrote it?"""

import streamlit as st

from app import messages
from app.components import run_picker
from app.components.memory import point_panel, snapshot_map

st.title("Memory")
run = run_picker.require_run()
run_picker.header(run)
with messages.guarded():
    shown = snapshot_map.show(run)
    if shown is not None:
        point_panel.show(run, shown)
