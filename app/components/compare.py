"""The win rates of the newest runs in one chart."""

import streamlit as st

from app import data
from app.components import curves, export
from app.figures.compare import draw_win_rates

NEWEST = 5


def show() -> None:
    """Draw the chart when at least one run was evaluated."""
    frame = data.run_list().head(NEWEST)
    series = [(f"{row['name']} · {row['id']}", data.evaluations(row["id"])) for row in data.rows_of(frame)]
    chart = draw_win_rates([(name, rows) for name, rows in series if len(rows)])
    if chart.is_empty:
        return
    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="bottom"):
        st.subheader("The last runs compared")
        export.show(chart, key="compare", stem="last-runs")
    curves.show(chart, key="compare", panel_height=240)
    st.caption(chart.caption)
