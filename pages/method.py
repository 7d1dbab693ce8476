"""Method: what does EMTC compute, which choices does the paper leave open, and are its propositions true?"""

import streamlit as st

from app.ui import messages
from app.ui.method import options, text
from app.ui.page_state import Choice
from app.ui.widgets import page_tabs

TAB = Choice("part", "method")

page_tabs.show()
(
    equations_tab,
    settings_tab,
    presets_tab,
    differences_tab,
    metrics_tab,
    intervals_tab,
    check_tab,
) = st.tabs(
    **TAB.bind_tabs(["Equations", "Settings", "Presets", "Published code", "Metrics", "Intervals", "Numerical check"])
)
with equations_tab, messages.guarded():
    text.show("equations")
    text.show("algorithms")
with settings_tab, messages.guarded():
    options.show_settings()
with presets_tab, messages.guarded():
    options.show_presets()
with differences_tab, messages.guarded():
    text.show("published_code")
with metrics_tab, messages.guarded():
    options.show_metrics()
with intervals_tab, messages.guarded():
    text.show("intervals")
with check_tab, messages.guarded():
    text.show("propositions")
