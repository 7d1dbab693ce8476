"""Guide: how do I do a task, and what does a term mean?"""

import streamlit as st

from app.ui import guide, messages

st.title("Guide")
with messages.guarded():
    guide.show()
