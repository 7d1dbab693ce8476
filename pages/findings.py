"""Findings: what do the runs of a study show about the claims of the paper?

A study is a file with a question, the names of its sweeps, and the compared variants.
"""

import streamlit as st

from app.ui import messages
from app.ui.findings import panels

st.title("Findings")
with messages.guarded():
    panels.show()
