"""Memory: what does this run remember, and which episode wrote it?"""

import streamlit as st

from app import messages
from app.components import run_picker
from app.components.memory import point_panel, snapshot_map, what_if

run = run_picker.open_page("Memory")
with messages.guarded():
    chosen = snapshot_map.choose(run)
    if chosen is not None:
        left, right = st.columns([11, 9], gap="medium")
        with left:
            shown = snapshot_map.show(run, chosen)
        with right:
            point_panel.show(run, shown)
        what_if.show(run, chosen.snapshot, None)
