"""Storage: what takes how much room, and what may go?"""

import streamlit as st

from app.ui import data, messages
from app.ui.disk import whole

st.title("Storage")
st.markdown(
    "Everything that a run records is kept until you decide otherwise. Thinning removes what is big and keeps the "
    "curves; deleting a run removes all of it, on Home."
)
with messages.guarded():
    measured = data.sizes()
    whole.show(measured)
    if measured.runs:
        whole.show_thinning(whole.show_sizes(measured))
    else:
        messages.empty(messages.NO_RUNS, messages.START_DEMO_HINT, page="../pages/home.py", label="Go to Home")
