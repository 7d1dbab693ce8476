"""Memory: what does this run remember, and which episode wrote it?"""

import streamlit as st

from app import messages
from app.components import run_picker
from app.components.memory import point_panel, selection_panel, snapshot_map

run = run_picker.open_page("Memory")
with messages.guarded():
    chosen = snapshot_map.choose(run)
    if chosen is not None:
        left, right = st.columns([11, 9], gap="medium")
        with left:
            shown = snapshot_map.show(run, chosen)
        with right:
            point_panel.show(run, shown)
        selection_panel.show(run, shown)
