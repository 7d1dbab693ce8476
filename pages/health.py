"""Health: what happened that somebody should know, and what does this machine lack?"""

import streamlit as st

from app.ui import messages
from app.ui.health import panel

st.title("Health")
with messages.guarded():
    panel.show()
with messages.guarded():
    panel.show_machine()
