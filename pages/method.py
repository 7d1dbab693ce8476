"""Method: what does EMTC compute, what did we choose where the paper is silent, and do its propositions hold?"""

import streamlit as st

from app import messages
from app.components import method_check, method_equations, method_options

st.title("Method")
equations, options, presets, metrics, check = st.tabs(
    ["Equations", "Settings", "Presets", "Metrics", "Numerical check"],
    key="part",
    on_change="rerun",
    bind="query-params",
)
with equations, messages.guarded():
    method_equations.show()
with options, messages.guarded():
    method_options.show_settings()
with presets, messages.guarded():
    method_options.show_presets()
with metrics, messages.guarded():
    method_options.show_metrics()
with check, messages.guarded():
    method_check.show()
