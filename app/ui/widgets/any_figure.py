"""A figure of any kind on a page, and the registered figures that a page has no widgets of its own for."""

from collections.abc import Sequence

import streamlit as st

from app.analysis.format import escape_markdown
from app.analysis.provenance import describe_runs
from app.figures.figure import FigureKind
from app.figures.kinds import AnyFigure
from app.figures.kinds.chart import Chart
from app.figures.registry import figures_of
from app.figures.render.plotly_view import to_plotly
from app.figures.theme import Mode
from app.ui import data, in_url, messages, view
from app.ui.widgets import curves, pin
from emtc_core.errors import ConfigError
from storage.runs.rows import RunRow

_PANEL = 190


def show(figure: AnyFigure, *, key: str, x_name: str = "") -> None:
    """Draw a figure with its caption: curves on the canvas of the pages, everything else by Plotly."""
    if isinstance(figure, Chart):
        short = "env step" if "env step" in figure.x_label else figure.x_label.partition(",")[0]
        curves.show(figure, key=key, panel_height=_PANEL, x_name=x_name or short)
    else:
        mode: Mode = "dark" if st.context.theme.type == "dark" else "light"
        drawn = to_plotly(figure, mode=mode).update_layout(title=None, margin={"t": 40})
        st.plotly_chart(drawn, key=key, theme=None, config={"displayModeBar": False})
    st.caption(escape_markdown(figure.caption))


def show_more(page: str, runs: Sequence[RunRow]) -> None:
    """Offer the registered figures of a page, each by its question; one is made when it is chosen."""
    kinds = {kind.name: kind for kind in figures_of(page)}
    runs = [run for run in runs if not view.is_beside(run.id)]  # a figure is made of one database
    if not kinds or not runs:
        return
    box = st.expander("More figures", icon=":material/insights:", key="more_figures", bind="query-params")
    if not box.open:
        return
    with box, messages.guarded():
        chosen = st.selectbox(
            "Question", **in_url.one(page, "more_figure", ["", *kinds]),
            format_func=lambda name: kinds[name].question if name else "Choose a question",
        )  # fmt: skip
        if chosen:
            _draw(kinds[chosen], runs, page)


def _draw(kind: FigureKind, runs: Sequence[RunRow], page: str) -> None:
    try:
        with st.spinner("Drawing …"):
            figure = kind.make(data.database(), runs)
    except ConfigError as exc:  # it does not apply to these runs, which is no failure
        st.info(escape_markdown(str(exc)), icon=":material/info:")
        return
    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="bottom"):
        st.markdown(f"#### {escape_markdown(figure.title)}")
        with st.container(horizontal=True, width="content", gap="small"):
            sources = describe_runs({run.id: run.config for run in runs}, {run.id: run.versions for run in runs})
            pin.show_export(figure, key=f"more-{kind.name}", stem=page, sources=sources)
            pin.show(figure, key=f"more-{kind.name}", page=page, run=runs)
    show(figure, key=f"more-{kind.name}")
    names = " ".join(run.id for run in runs)
    st.code(f"emtc export {names} --figure {kind.name} --out {kind.name}.pdf", language=None, wrap_lines=True)
