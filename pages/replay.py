"""Replay: what did the team do, and when did the gate trust the memory?"""

import streamlit as st

from app import messages
from app.components import run_picker
from app.components.replay import panel

bar = st.container(key="page_bar", horizontal=True, vertical_alignment="center", gap="medium")
bar.title("Replay", width="content")
run = run_picker.require_run()
with bar:
    run_picker.header(run)
with messages.guarded():
    panel.show(run)
