"""Live: how does this run go, and what does its gate do?"""

import streamlit as st

from app import messages
from app.components import run_picker
from app.components.live import panels

st.title("Live")
run = run_picker.require_run()
run_picker.header(run, gate=False)  # its status line has the badge and ticks
with messages.guarded():
    panels.show(run)
