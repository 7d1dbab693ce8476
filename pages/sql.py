"""SQL: query the database with read-only SQL."""

import streamlit as st

from app.ui import messages, sql

st.title("SQL")
st.markdown(
    "Query all recorded data. Queries are read-only, and the number of rows and the time of a query are limited."
)
with messages.guarded():
    left, right = st.columns(2, gap="medium")
    with right:
        sql.show_schema()
    with left:
        sql.show()
    sql.show_result()
