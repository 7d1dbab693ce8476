"""Health: what happened that somebody should know, and what does this machine lack?"""

import streamlit as st

from app.ui import health, messages

st.title("Health")
with messages.guarded():
    health.show()
with messages.guarded():
    health.show_machine()
with messages.guarded():
    health.show_gpu()
