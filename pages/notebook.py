"""Notebook: what did I find, in which figure, and in which view?"""

import streamlit as st

from app.ui import messages
from app.ui.notebook import entries

st.title("Notebook")
with messages.guarded():
    entries.show()
