"""Storage: what takes how much room, and what may go?"""

import streamlit as st

from app.ui import data, disk, messages

st.title("Storage")
st.markdown(
    "Everything that a run records is kept until you decide otherwise. Thinning removes what is big and keeps the "
    "curves; deleting a run removes all of it, on Home."
)
with messages.guarded():
    measured = data.sizes()
    disk.show(measured)
    if measured.runs:
        disk.show_thinning(disk.show_sizes(measured))
    else:
        messages.empty(messages.NO_RUNS, messages.START_DEMO_HINT, page="../pages/home.py", label="Go to Home")
