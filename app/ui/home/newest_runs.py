"""The newest runs' curves below Home's table: scipy and the drawing behind them load with the first run there is."""

import streamlit as st

from app.analysis.format import escape_markdown
from app.analysis.provenance import describe_runs
from app.figures.named.curves import draw_comparison
from app.ui import data, view
from app.ui.compared import read_compared
from app.ui.state import RUNS
from app.ui.widgets import canvas, pin
from storage.queries.runs import RunFilter

NEWEST = 10


def show() -> None:
    """Draw the chart when at least one run was evaluated."""
    newest = list(data.run_names(RunFilter(shelf="drawn", evaluated=True), NEWEST)[0])
    compared = read_compared(newest, "win_rate")
    comparison = compared.curves(include_unfinished=False)
    chart = draw_comparison(comparison, per_seed=True, name="win-rates", title="Win rate of the last runs")
    if chart.is_empty:
        return
    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="bottom"):
        st.subheader("The last runs compared")
        with st.container(horizontal=True, width="content", gap="small", vertical_alignment="center"):
            st.page_link(
                "../pages/compare.py",
                label="Open in Compare",
                icon=":material/stacked_line_chart:",
                query_params=view.link({RUNS: ",".join(newest)}),
            )
            sources = describe_runs(compared.configs, {run_id: row.versions for run_id, row in compared.rows.items()})
            pin.show_export(chart, key="compare", stem="last-runs", sources=sources)
    canvas.show(chart, key="compare", panel_height=240)
    st.caption(escape_markdown(chart.caption))
