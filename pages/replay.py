"""Replay: what did the team do, and when did the gate trust the memory?"""

import streamlit as st

from app import messages
from app.components import run_picker
from app.components.replay import panel

st.title("Replay")
run = run_picker.require_run()
run_picker.header(run)
with messages.guarded():
    panel.show(run)
