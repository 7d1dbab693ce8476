"""Health: which runs need attention, and what is missing on this machine?"""

import streamlit as st

from app.ui import health, messages

st.title("Health")
with messages.guarded():
    health.show()
with messages.guarded():
    health.show_machine()
