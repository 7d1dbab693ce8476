"""Launch: configure a run, check the configuration, and estimate duration and disk use."""

import streamlit as st

from app.ui import messages
from app.ui.launch import form

st.title("Launch")
with messages.guarded():
    form.show()
