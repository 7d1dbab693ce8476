"""Live: how does this run go, and what does its gate do?"""

import streamlit as st

from app import messages
from app.components import live_panels, run_picker

st.title("Live")
run = run_picker.require_run()
run_picker.header(run)
with messages.guarded():
    live_panels.show(run)
