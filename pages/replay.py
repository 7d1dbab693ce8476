"""Replay: what did the team do, and when did the gate trust the memory?"""

import streamlit as st

from app import messages
from app.components import replay_panel, run_picker

st.title("Replay")
run = run_picker.require_run()
run_picker.header(run)
with messages.guarded():
    replay_panel.show(run)
