"""Health: what happened that somebody should know, and what does this machine lack?"""

import streamlit as st

from app.ui import messages
from app.ui.health import inbox, machine

st.title("Health")
with messages.guarded():
    inbox.show()
with messages.guarded():
    machine.show()
