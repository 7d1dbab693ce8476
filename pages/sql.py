"""Ask in SQL: what else does the database know?"""

import streamlit as st

from app.ui import messages, sql

st.title("Ask in SQL")
st.markdown(
    "Everything that runs record stands in one database. A question here only reads: whatever is asked, nothing is "
    "written, and rows and time are limited."
)
with messages.guarded():
    left, right = st.columns(2, gap="large")
    with right:
        sql.show_schema()
    with left:
        sql.show()
    sql.show_answer()
