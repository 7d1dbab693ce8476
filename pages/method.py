"""Method: what does EMTC compute, what did we choose where the paper is silent, and do its propositions hold?"""

import streamlit as st

from app.ui import messages
from app.ui.method import check, equations, measured, options

st.title("Method")
on_equations, on_settings, on_presets, on_differences, on_metrics, on_intervals, on_check = st.tabs(
    ["Equations", "Settings", "Presets", "Published code", "Metrics", "Intervals", "Numerical check"],
    key="part",
    on_change="rerun",
    bind="query-params",
)
with on_equations, messages.guarded():
    equations.show()
with on_settings, messages.guarded():
    options.show_settings()
with on_presets, messages.guarded():
    options.show_presets()
with on_differences, messages.guarded():
    measured.show_differences()
with on_metrics, messages.guarded():
    options.show_metrics()
with on_intervals, messages.guarded():
    measured.show_intervals()
with on_check, messages.guarded():
    check.show()
