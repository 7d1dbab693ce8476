"""Compare: which variant learns faster and reaches a higher win rate over seeds, and by how much?"""

import streamlit as st

from app.ui import messages
from app.ui.compare import panels, run_choice

bar = st.container(key="compare_bar", horizontal=True, vertical_alignment="bottom", gap="small")
bar.title("Compare", width="content")
with messages.guarded():
    run_ids = run_choice.choose_runs(bar)
    if run_ids:
        panels.show(run_ids)
    else:
        messages.empty("No run matches.", "Remove a filter, or start a run on the Launch page.")
