"""The figure that fits a sweep's study, its table, and the paper's numbers beside them."""

from collections.abc import Callable, Sequence

import pandas as pd
import streamlit as st

from app.analysis.format import escape_markdown
from app.analysis.tables import TABLE_FORMATS, TABLE_MIME, TABLE_SUFFIX, TableFormat, export_table
from app.analysis.win_rates import PublishedStudy, find_published
from app.figures.kinds import AnyFigure
from app.figures.registry import FIGURES, TABLES
from app.ui import data, messages
from app.ui.sweeps import start
from app.ui.widgets import any_figure, pin, result_table
from storage.queries.sweeps import Sweep
from storage.runs.rows import RunRow

STUDY = "study"
_OWN = "own"
_NAMES = {
    "lambda-heatmap": "Loss weights: heat map",
    "tau-study": "Gate temperature",
    "augmentation": "Augmentation",
    "delta-embedder": "Merge radius by embedder",
    "ablation": "Ablation",
    "learning-curves": "Learning curves",
}
_FIGURE = {"delta-embedder": "mu-w-by-delta"}
_TABLES = {"augmentation": "augmentation", "delta-embedder": "mu-w-embedders"}
_X_NAMES = {"mu-w-by-delta": "log₁₀ δ"}


def show(sweep: Sweep) -> None:
    """Draw the figure and table of the study that the sweep's file names, or of another that the reader chose."""
    own = str(sweep.plan.get("file", {}).get("study", "learning-curves"))
    own = own if own in _NAMES else "learning-curves"
    names = {_OWN: f"The sweep's own: {_NAMES[own]}", **_NAMES}
    text = "Every study reads the configurations of the runs, so another one may fit too."
    chosen = start.show_select("Figure", names, key=STUDY, text=text)
    study = own if chosen == _OWN else chosen
    runs = data.sweep_runs(sweep.id)
    if all(run.win_rate is None for run in runs):
        messages.empty("No run of this sweep has been evaluated yet.", "The figure appears with the first evaluation.")
        return
    with messages.guarded():
        figure = FIGURES[_FIGURE.get(study, study)].make(data.database(), runs)
        _draw(figure, sweep, runs)
        if study in _TABLES:
            _table(TABLES[_TABLES[study]].make(data.database(), runs), key=f"sweep-{study}")
    _published(find_published(study, str(sweep.plan.get("file", {}).get("env", ""))), sweep)
    any_figure.show_more("sweeps", runs)


def _draw(figure: AnyFigure, sweep: Sweep, runs: Sequence[RunRow]) -> None:
    key = f"sweep-{figure.name}-{sweep.id}"
    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="bottom"):
        st.markdown(f"#### {escape_markdown(figure.title)}")
        pin.show_with_export(figure, key=key, stem=sweep.id, page="sweeps", run=runs)
    any_figure.show(figure, key=key, x_name=_X_NAMES.get(figure.name, ""))


def _table(frame: pd.DataFrame, *, key: str) -> None:
    if not len(frame):
        return
    best = {(int(row), str(name)) for row, name in frame.attrs.get("best", ())}

    def mark(cells: pd.Series) -> list[str]:
        return ["font-weight: bold" if (i, cells.name) in best else "" for i in range(len(cells))]

    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="bottom"):
        st.caption(escape_markdown(str(frame.attrs.get("caption", ""))))
        with st.popover("Export", icon=":material/download:", key=f"{key}-export"):
            for format in TABLE_FORMATS:
                st.download_button(
                    format, data=_writer(frame, format), file_name=f"{key}.{TABLE_SUFFIX[format]}",
                    mime=TABLE_MIME[format], key=f"{key}-export-{format}", on_click="ignore", width="stretch",
                )  # fmt: skip
    st.dataframe(frame.style.apply(mark, axis=0), hide_index=True, key=f"{key}-table")
    result_table.left_out(frame)


def _writer(frame: pd.DataFrame, format: TableFormat) -> Callable[[], bytes]:
    return lambda: export_table(frame, format)


def _published(published: PublishedStudy | None, sweep: Sweep) -> None:
    if published is None:
        return
    with st.container(border=True):
        st.markdown(f"**The paper**, on {escape_markdown(published.source)}")
        st.markdown(escape_markdown(published.note))
        if len(published.table):
            st.dataframe(published.table, hide_index=True, key="sweep-published")
        if sweep.plan.get("file", {}).get("env", "skirmish") == "skirmish":
            st.caption("Ours come from the embedded simulator, not from that game: compare the order, not the height.")
