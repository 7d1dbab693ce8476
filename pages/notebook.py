"""Notebook: what did I find out, on which figure, and where can I see it again?"""

import streamlit as st

from app.ui import messages
from app.ui.notebook import entries

st.title("Notebook")
with messages.guarded():
    entries.show()
