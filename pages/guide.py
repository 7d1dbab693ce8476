"""Guide: how is something done here, and what does a word mean?"""

import streamlit as st

from app.ui import guide, messages

st.title("Guide")
with messages.guarded():
    guide.show()
