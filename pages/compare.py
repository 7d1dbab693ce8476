"""Compare: which variant learns faster and reaches a higher win rate over seeds, and by how much?"""

import streamlit as st

from app.ui import data, messages
from app.ui.compare import panels, run_choice, run_groups

bar = st.container(key="compare_bar", horizontal=True, vertical_alignment="bottom", gap="small")
bar.title("Compare", width="content")
with messages.guarded():
    if not data.has_runs():
        messages.empty(messages.NO_RUNS, messages.START_DEMO_HINT, page="../pages/home.py", label="Go to Home")
        st.stop()
    note = st.container(key="compare_note", horizontal=True, vertical_alignment="center", gap="small")
    note.toggle("List of runs", **run_groups.IS_OPEN.bind(), width="content")
    run_ids = run_choice.choose_runs(bar, note)
    if run_ids:
        panels.show(run_ids, bar)
    elif run_choice.has_conditions():
        messages.empty("No run matches.", "Remove a filter or the search.")
    else:
        messages.empty("No run was evaluated yet.", "The first evaluation follows the first training round.")
