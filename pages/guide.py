"""Guide: how do I use the program, and what does a term mean?"""

import streamlit as st

from app.ui import guide, messages

st.title("Guide")
with messages.guarded():
    guide.show()
