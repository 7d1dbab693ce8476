"""Launch: which run do I want, is it valid, what will it cost?"""

import streamlit as st

from app.ui import messages
from app.ui.launch import form

st.title("Launch")
st.markdown("Choose what to train. Nothing starts before the whole configuration is valid.")
with messages.guarded():
    form.show()
