"""Notebook: what did I find out, on which figure, and where can I see it again?"""

import streamlit as st

from app import messages
from app.components import notebook_list

st.title("Notebook")
with messages.guarded():
    notebook_list.show()
