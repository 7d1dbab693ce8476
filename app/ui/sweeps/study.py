"""The figure that fits a sweep's study, its table, and the paper's numbers beside them; and what a search has found.

Of a search: its best trial, and Optuna's own figures of history, importance and parallel coordinates.
"""

import io
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Literal, get_args

import pandas as pd
import plotly.io
import streamlit as st

from app.analysis.format import escape_markdown, format_count
from app.analysis.settings import write_value
from app.analysis.tables import Table
from app.analysis.win_rates import PublishedStudy, find_published
from app.figures.kinds import AnyFigure
from app.figures.options import RATE, Options, make_options
from app.figures.registry import TABLES, find_figure
from app.jobs.sweeps.study import MISSING, find_study
from app.ui import data, messages
from app.ui.sweeps import start
from app.ui.widgets import pin, rate_choice, result_table
from storage.engine import Database
from storage.runs.rows import RunRow
from storage.runs.sweeps import Sweep

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
    options = make_options({RATE: rate_choice.choose_rate("sweeps")})
    with messages.guarded():
        figure = find_figure(_FIGURE.get(study, study)).make(data.database(), runs, options)
        _draw(figure, sweep, runs, options)
        if study in _TABLES:
            _show_table(TABLES[_TABLES[study]].make(data.database(), runs, options), key=f"sweep-{study}")
    _published(find_published(study, str(sweep.plan.get("file", {}).get("env", ""))), sweep)
    pin.show_more("sweeps", runs, rate=options[RATE])


def _draw(figure: AnyFigure, sweep: Sweep, runs: Sequence[RunRow], options: Options) -> None:
    key = f"sweep-{figure.name}-{sweep.id}"
    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="bottom"):
        st.markdown(f"#### {escape_markdown(figure.title)}")
        facts = {RATE.name: options[RATE]}
        pin.show_with_export(figure, key=key, stem=sweep.id, page="sweeps", run=runs, facts=facts)
    pin.show_figure(figure, key=key, x_name=_X_NAMES.get(figure.name, ""))


def _show_table(table: Table, *, key: str) -> None:
    if not len(table):
        return

    def mark(cells: pd.Series) -> list[str]:
        return ["font-weight: bold" if (i, cells.name) in table.best else "" for i in range(len(cells))]

    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="bottom"):
        st.caption(escape_markdown(table.caption))
        result_table.download(table, key=key, stem=key)
    st.dataframe(table.frame.style.apply(mark, axis=0), hide_index=True, key=f"{key}-table")
    result_table.show_excluded(table)


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


Kind = Literal["optimization_history", "param_importances", "parallel_coordinate"]
KINDS: Final[dict[Kind, str]] = {
    "optimization_history": "History: the value of each trial, and the best so far",
    "param_importances": "Importance: the share of the value's variance by setting (fANOVA)",
    "parallel_coordinate": "Parallel coordinates: a line for each trial",
}
_LEAST_TRIALS: Final[dict[Kind, int]] = {"optimization_history": 1, "param_importances": 2, "parallel_coordinate": 1}
Format = Literal["html", "svg", "pdf", "png", "csv"]
_MIME: Final[dict[Format, str]] = {
    "html": "text/html",
    "svg": "image/svg+xml",
    "pdf": "application/pdf",
    "png": "image/png",
    "csv": "text/csv",
}
_FULL_DPI: Final = 300


def show_search(sweep: Sweep) -> None:
    """Draw what Optuna knows of a search; nothing of a sweep that is none."""
    if not sweep.trials:
        return
    st.markdown("#### Search")
    study = find_study(data.database(), sweep.id)
    if study is None:
        messages.empty("There is no study of this search here.", f"It is made with the first trial. {MISSING}")
        return
    ended = [trial.state.name for trial in study.get_trials(deepcopy=False)]
    complete = ended.count("COMPLETE")
    st.caption(escape_markdown(describe(study, complete, ended.count("PRUNED"), sweep.trials)))
    for kind, title in KINDS.items():
        if complete >= _LEAST_TRIALS[kind]:
            _figure(sweep.id, kind, title, stamp=len(ended) * 10_000 + complete)


def describe(study: Any, complete: int, pruned: int, trials: int) -> str:
    """How far a search is, and which settings were best."""
    told = (
        f"{format_count(complete)} of {format_count(trials)} trials are complete, {format_count(pruned)} were pruned."
    )
    if not complete:
        return told
    best = study.best_trial
    chosen = ", ".join(f"{key} = {write_value(value)}" for key, value in best.params.items())
    return f"{told} Best is trial {best.number}, {best.value:.4g}, with {chosen}. One seed each: train it over more."


def _figure(sweep_id: str, kind: Kind, title: str, *, stamp: int) -> None:
    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="bottom"):
        st.caption(title)
        with st.popover("Export", icon=":material/download:", key=f"search-{kind}-files"):
            for format in get_args(Format):
                st.download_button(
                    format.upper(), data=partial(export, data.database(), sweep_id, kind, format),
                    file_name=f"search-{sweep_id}-{kind}.{format}", mime=_MIME[format],
                    key=f"search-{kind}-{format}", on_click="ignore", width="stretch",
                )  # fmt: skip
    with messages.guarded():
        drawn = plotly.io.from_json(_draw_search(data.database().url, sweep_id, kind, stamp), skip_invalid=True)
        st.plotly_chart(drawn, key=f"search-{kind}")


@st.cache_data(ttl=3600, max_entries=60, show_spinner=False)
def _draw_search(url: str, sweep_id: str, kind: Kind, stamp: int) -> str:
    """Let Optuna draw a figure, once for each state of the study; as JSON, which no reader can change for others."""
    return str(_plotter(kind)(find_study(data.database(), sweep_id)).update_layout(title=None).to_json())


def _plotter(kind: Kind) -> Callable[[Any], Any]:
    from optuna import visualization

    return getattr(visualization, f"plot_{kind}")


def export(db: Database, sweep_id: str, kind: Kind, format: Format) -> bytes:
    """Write a figure of a search: HTML by Plotly, SVG, PDF and PNG by Matplotlib, and the trials behind it as CSV."""
    study = find_study(db, sweep_id)
    if format == "csv":
        frame: pd.DataFrame = study.trials_dataframe()  # type: ignore[union-attr]  # the page has just found it
        return frame.to_csv(index=False).encode()
    if format == "html":
        return str(_plotter(kind)(study).to_html()).encode()
    return _write_still(study, kind, format)


def _write_still(study: Any, kind: Kind, format: Format) -> bytes:
    import matplotlib as mpl
    from matplotlib import pyplot
    from optuna.visualization import matplotlib as stills

    with warnings.catch_warnings(), mpl.rc_context({"svg.fonttype": "path", "pdf.fonttype": 42}):
        warnings.simplefilter("ignore")  # of Optuna, whose Matplotlib figures are called experimental
        getattr(stills, f"plot_{kind}")(study)
        figure, out = pyplot.gcf(), io.BytesIO()
        figure.savefig(out, format=format, bbox_inches="tight", dpi=_FULL_DPI)
        pyplot.close(figure)
    return out.getvalue()
