"""The chart at the end of Home: the win rates of the newest runs."""

from dataclasses import replace
from typing import Final

import streamlit as st

from app.analysis.format import escape_markdown
from app.analysis.provenance import describe_runs
from app.figures.kinds.chart import Chart
from app.figures.named.curves import LearningCurveOptions
from app.figures.registry import draw_chart
from app.ui import data, view
from app.ui.compared import read_compared_tables
from app.ui.page_state import RUNS
from app.ui.widgets import canvas, pin
from emtc_core.errors import ConfigError
from storage.queries.run_search import RunFilter, run_names

_MAX_RUNS: Final = 10
_CACHE_TTL_S: Final = 30
"""Maximum age of the chart [s]. Home draws it only when it opens, and must open quickly during a training."""
_PANEL_HEIGHT: Final = 200


def show() -> None:
    """Draw the curves of the newest runs in a grid, if at least one run was evaluated."""
    # "drawn": neither hidden nor archived
    names, _ = data.cached(run_names, ttl=2)(RunFilter(visibility="drawn", evaluated=True), limit=_MAX_RUNS)
    run_ids = list(names)
    result = _draw(data.database_url(), tuple(run_ids)) if run_ids else None
    if result is None:
        return
    chart, sources = result
    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="bottom"):
        st.subheader("The last runs compared")
        with st.container(horizontal=True, width="content", gap="small", vertical_alignment="center"):
            st.page_link(
                "../pages/compare.py",
                label="Open in Compare",
                icon=":material/stacked_line_chart:",
                query_params=view.add_bundle({RUNS.name: ",".join(run_ids)}),
            )
            pin.show_export(chart, key="compare", stem="last-runs", sources=sources)
    panels = chart.split()
    columns = st.columns(max(2, min(3, len(panels))))
    for i, panel in enumerate(panels):
        with columns[i % len(columns)]:
            canvas.show(panel, key=f"newest-{panel.panels[0].title}", panel_height=_PANEL_HEIGHT)
    st.caption(escape_markdown(chart.caption))


@st.cache_resource(ttl=_CACHE_TTL_S, max_entries=data.MAX_ENTRIES, show_spinner=False)
def _draw(url: str, run_ids: tuple[str, ...]) -> tuple[Chart, tuple[str, ...]] | None:
    """Draw the curves of runs; return the chart and its sources. `url` is only a part of the cache key."""
    tables = read_compared_tables(run_ids)
    try:
        curves = draw_chart("learning-curves", tables, LearningCurveOptions(per_seed=True))
    except ConfigError:  # no run has a win rate
        return None
    chart = replace(curves, name="win-rates", title="Win rate of the last runs")
    return chart, describe_runs(tables.rows.values())
