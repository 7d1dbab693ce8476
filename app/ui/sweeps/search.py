"""The state of a search with Optuna: its best trial, and Optuna's figures of history, importance and parameters."""

import io
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Literal, get_args

import pandas as pd
import plotly.io
import streamlit as st

from app.analysis.format import escape_markdown, format_count
from app.analysis.settings import write_value
from app.jobs.sweeps.study import MISSING, find_study
from app.ui import data, messages
from storage.engine import Database
from storage.runs.sweeps import Sweep

Kind = Literal["optimization_history", "param_importances", "parallel_coordinate"]
Format = Literal["html", "svg", "pdf", "png", "csv"]
KINDS: Final[dict[Kind, str]] = {
    "optimization_history": "History: the value of each trial, and the best value so far",
    "param_importances": "Importance: share of the variance of the value by setting (fANOVA)",
    "parallel_coordinate": "Parallel coordinates: one line per trial",
}
_MIN_TRIALS: Final[dict[Kind, int]] = {"optimization_history": 1, "param_importances": 2, "parallel_coordinate": 1}
_MIME: Final[dict[Format, str]] = {
    "html": "text/html",
    "svg": "image/svg+xml",
    "pdf": "application/pdf",
    "png": "image/png",
    "csv": "text/csv",
}
_DPI: Final = 300


def show(sweep: Sweep) -> None:
    """Draw the search, if the sweep is one."""
    if not sweep.trials:
        return
    st.markdown("#### Search")
    study = find_study(data.database(), sweep.id)
    if study is None:
        messages.empty("There is no study of this search here.", f"The first trial creates it. {MISSING}")
        return
    states = [trial.state.name for trial in study.get_trials(deepcopy=False)]
    n_complete = states.count("COMPLETE")
    st.caption(escape_markdown(describe(study, n_complete, states.count("PRUNED"), sweep.trials)))
    for kind, title in KINDS.items():
        if n_complete >= _MIN_TRIALS[kind]:
            _show_figure(sweep.id, kind, title, stamp=len(states) * 10_000 + n_complete)


def describe(study: Any, n_complete: int, n_pruned: int, n_trials: int) -> str:
    """Describe the progress of a search and the settings of its best trial.

    Args:
        study: The Optuna study.
        n_complete: Number of complete trials.
        n_pruned: Number of pruned trials.
        n_trials: Number of planned trials.
    """
    progress = (
        f"{format_count(n_complete)} of {format_count(n_trials)} trials are complete, {format_count(n_pruned)} pruned."
    )
    if not n_complete:
        return progress
    best = study.best_trial
    settings = ", ".join(f"{key} = {write_value(value)}" for key, value in best.params.items())
    return (
        f"{progress} Best trial: {best.number}, value {best.value:.4g}, with {settings}. Each trial has one seed; "
        "train the best settings with more seeds."
    )


def export(db: Database, sweep_id: str, kind: Kind, format: Format) -> bytes:
    """Write a figure of a search: HTML with Plotly, SVG, PDF and PNG with Matplotlib, or the trials as CSV."""
    study = find_study(db, sweep_id)
    if format == "csv":
        frame: pd.DataFrame = study.trials_dataframe()  # type: ignore[union-attr]  # the page has just found it
        return frame.to_csv(index=False).encode()
    if format == "html":
        return str(_get_plot(kind)(study).to_html()).encode()
    return _write_image(study, kind, format)


def _show_figure(sweep_id: str, kind: Kind, title: str, *, stamp: int) -> None:
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
        plot = plotly.io.from_json(_make_plot(data.database().url, sweep_id, kind, stamp), skip_invalid=True)
        st.plotly_chart(plot, key=f"search-{kind}")


@st.cache_data(ttl=3600, max_entries=60, show_spinner=False)
def _make_plot(url: str, sweep_id: str, kind: Kind, stamp: int) -> str:
    """Make one of Optuna's figures as JSON, once for each state of the study. `url` and `stamp` are cache keys."""
    return str(_get_plot(kind)(find_study(data.database(), sweep_id)).update_layout(title=None).to_json())


def _get_plot(kind: Kind) -> Callable[[Any], Any]:
    from optuna import visualization

    return getattr(visualization, f"plot_{kind}")


def _write_image(study: Any, kind: Kind, format: Format) -> bytes:
    import matplotlib as mpl
    from matplotlib import pyplot
    from optuna.visualization import matplotlib as optuna_plots

    with warnings.catch_warnings(), mpl.rc_context({"svg.fonttype": "path", "pdf.fonttype": 42}):
        warnings.simplefilter("ignore")  # Optuna warns that its Matplotlib figures are experimental
        getattr(optuna_plots, f"plot_{kind}")(study)
        figure, out = pyplot.gcf(), io.BytesIO()
        figure.savefig(out, format=format, bbox_inches="tight", dpi=_DPI)
        pyplot.close(figure)
    return out.getvalue()
