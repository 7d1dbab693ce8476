"""The state of a search with Optuna: its best trials, Optuna's figures of the trials, and their table.

A search is a sweep whose settings Optuna chooses. A trial is one run of it; its value is the metric that is optimized.
The figures are the history, the importance of the settings, and the value of the trials by setting.
"""

import io
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Literal, get_args

import pandas as pd
import plotly.io
import streamlit as st

from app.analysis.format import MISSING as NO_VALUE
from app.analysis.format import escape_markdown, format_count
from app.analysis.settings import write_value
from app.figures.theme import Mode, get_theme_colors
from app.jobs.sweeps.control import remake_plan, start_sweep
from app.jobs.sweeps.file import write_sweep_file
from app.jobs.sweeps.plan import Plan, plan_more_seeds
from app.jobs.sweeps.study import MISSING, RUN, describe_settings, find_best_trial, find_study
from app.ui import data, messages, view
from app.ui.page_state import SWEEP, Flag
from app.ui.widgets import config_form, files
from app.ui.widgets.result_table import number_columns
from emtc_core.errors import EmtcError
from storage.engine import Database
from storage.runs.sweeps import Sweep, list_sweeps

Kind = Literal["optimization_history", "param_importances", "slice", "parallel_coordinate"]
Format = Literal["html", "svg", "pdf", "png", "csv"]
KINDS: Final[dict[Kind, tuple[str, str]]] = {
    "optimization_history": ("History", "The value of each trial, and the best value so far"),
    "param_importances": ("Importance", "Share of the variance of the value by setting (fANOVA)"),
    "slice": ("Values", "The value of each trial by setting"),
    "parallel_coordinate": ("Parallel coordinates", "One line per complete trial"),
}
"""Figure of Optuna → its title and meaning."""
_FOLDED_KINDS: Final[tuple[Kind, ...]] = ("optimization_history", "slice")
_MIN_TRIALS: Final[dict[Kind, int]] = {
    "optimization_history": 1,
    "param_importances": 2,
    "slice": 1,
    "parallel_coordinate": 1,
}
_TRIALS_PER_SETTING: Final = 20
"""With fewer complete trials per setting, a caution is shown with the importance of the settings."""
_MORE_SEEDS: Final = 5
"""Default number of seeds with which the settings of the best trial are trained."""
_MIME: Final[dict[Format, str]] = {
    "html": "text/html",
    "svg": "image/svg+xml",
    "pdf": "application/pdf",
    "png": "image/png",
    "csv": "text/csv",
}
_DPI: Final = 300
_PLOT_HEIGHT: Final = 230
"""Height of a figure [pixels]."""
_TABLE_HEIGHT: Final = 220
"""Largest height of the table of trials [pixels]."""
_MAX_TIED: Final = 8
"""Maximum number of tied trials that are listed."""
_SHOWS_HISTORY: Final = Flag("history", "sweeps")
_ERROR: Final = "best_trial_error"
"""Key of the session state: why the sweep of the best trial could not be started."""


def show(sweep: Sweep) -> None:
    """Draw the search; nothing for a sweep that is not a search."""
    if not sweep.trials:
        return
    study = find_study(data.database(), sweep.id)
    if study is None:
        messages.empty("There is no study of this search here.", f"The first trial creates it. {MISSING}")
        return
    trials = study.get_trials(deepcopy=False)
    states = [trial.state.name for trial in trials]
    n_complete = states.count("COMPLETE")
    n_pruned = states.count("PRUNED")
    st.markdown(escape_markdown(describe(study, n_complete, n_pruned, sweep.trials)))
    study_version = len(states) * 10_000 + n_complete  # changes with each new trial and each complete trial
    left, right = st.columns([3, 2])
    with left:
        _show_figure(sweep.id, "parallel_coordinate", n_complete=n_complete, study_version=study_version)
    with right:
        _show_figure(sweep.id, "param_importances", n_complete=n_complete, study_version=study_version)
        if n_complete:
            _show_caution(n_complete, len(study.best_trial.params))
    if trials:
        _show_trials(sweep, study, trials)
    if n_complete:
        with messages.guarded():
            _show_more_seeds(sweep, study, n_ended=n_complete + n_pruned)
    box = st.expander("History and values by setting", icon=":material/timeline:", **_SHOWS_HISTORY.bind())
    if box.open:
        with box:
            for kind in _FOLDED_KINDS:
                _show_figure(sweep.id, kind, n_complete=n_complete, study_version=study_version)


def describe(study: Any, n_complete: int, n_pruned: int, n_trials: int) -> str:
    """Describe the progress of a search and the settings of its best trial. Trials with an equal value are named.

    Args:
        study: The Optuna study.
        n_complete: Number of complete trials.
        n_pruned: Number of pruned trials.
        n_trials: Number of planned trials.
    """
    progress = (
        f"{format_count(n_complete)} of {format_count(n_trials)} trials are complete, {format_count(n_pruned)} pruned."
    )
    best = find_best_trial(study)
    if best is None:
        return progress
    value = f"value {best.value:.4g}"
    settings = describe_settings(best)
    trials = study.get_trials(deepcopy=False)
    tied = [trial.number for trial in trials if trial.state.name == "COMPLETE" and trial.value == best.value]
    if len(tied) == 1:
        return f"{progress} Best trial: {best.number}, {value}, with {settings}."
    numbers = ", ".join(map(str, tied[:_MAX_TIED]))
    more = f" and {len(tied) - _MAX_TIED} more" if len(tied) > _MAX_TIED else ""
    return f"{progress} {len(tied)} trials have the best {value}: {numbers}{more}. Trial {best.number} has {settings}."


def export(db: Database, sweep_id: str, kind: Kind, format: Format) -> bytes:
    """Write a figure of a search: HTML with Plotly, SVG, PDF and PNG with Matplotlib, or the trials as CSV."""
    study = find_study(db, sweep_id)
    if format == "csv":
        frame: pd.DataFrame = study.trials_dataframe()  # type: ignore[union-attr]  # the page has just found it
        return frame.to_csv(index=False).encode()
    if format == "html":
        return str(_get_plot(kind)(study).to_html()).encode()
    return _write_image(study, kind, format)


def make_rows(trials: Sequence[Any], *, is_maximized: bool) -> pd.DataFrame:
    """Make the rows of the table of trials, the best first.

    The value of a pruned or running trial is its last one, so these trials are listed after the complete ones.
    """

    def get_last_value(trial: Any) -> float:
        values = trial.intermediate_values
        return values[max(values)] if values else float("nan")

    def link_run(trial: Any) -> str:
        run_id = str(trial.user_attrs.get(RUN, ""))
        return view.link_run(run_id, run_id) if run_id else ""

    rows = [
        {
            "Trial": trial.number,
            "Run": link_run(trial),
            "State": trial.state.name.lower(),
            "Value": get_last_value(trial) if trial.value is None else trial.value,
            **{key: write_value(value) if isinstance(value, bool) else value for key, value in trial.params.items()},
            "is_incomplete": trial.state.name != "COMPLETE",
        }
        for trial in trials
    ]
    frame = pd.DataFrame(rows).sort_values(
        ["is_incomplete", "Value"], ascending=[True, not is_maximized], kind="stable"
    )
    return frame.drop(columns="is_incomplete")


def _show_trials(sweep: Sweep, study: Any, trials: Sequence[Any]) -> None:
    metric = sweep.plan["file"]["optuna"].get("metric", "value")
    rows = make_rows(trials, is_maximized=study.direction.name == "MAXIMIZE")
    st.dataframe(
        rows,
        hide_index=True,
        key="search_trials",
        height=min(_TABLE_HEIGHT, 36 * (len(rows) + 1)),
        column_config=number_columns(rows)
        | {
            "Value": st.column_config.NumberColumn(
                f"Value ({metric})", format="%.7g", help="Complete trial: the last value. Pruned: the last so far"
            ),
            "Run": st.column_config.LinkColumn(
                display_text=view.LINK_TEXT_PATTERN, help="Opens the page Run in a new tab"
            ),
        },
        placeholder=NO_VALUE,
        alt="Trials of the search with their state, value and settings, the best first.",
    )


def _show_more_seeds(sweep: Sweep, study: Any, *, n_ended: int) -> None:
    """Draw the button that trains the settings of the best trial with several seeds, and their sweep file."""
    best = find_best_trial(study)
    if best is None:
        return
    search = remake_plan(sweep)
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        st.markdown(
            f"**Trial {best.number} has one seed.**",
            width="content",
            help=f"It is the best of {format_count(n_ended)} trials, so a part of its lead is chance. Train its "
            "settings with seeds that the search has not used.",
        )
        n_seeds = config_form.integer_field(
            "Seeds", key="best_trial_seeds", default=_MORE_SEEDS, low=1, high=99, width=100
        )
        plan = plan_more_seeds(search, best.number, best.params, n_seeds or _MORE_SEEDS)
        is_existing = plan.id in {other.id for other in list_sweeps(data.database())}
        st.button(
            "Open its sweep" if is_existing else "Train it over more seeds",
            icon=":material/arrow_forward:" if is_existing else ":material/play_arrow:",
            key="best_trial_train",
            disabled=n_seeds is None or not (is_existing or messages.may_act()),
            on_click=_open_or_start,
            args=(plan, sweep.jobs, is_existing),
        )
        with st.popover("Sweep file", icon=":material/description:"):
            st.code(write_sweep_file(plan.file), language="toml")
    if error := st.session_state.pop(_ERROR, None):
        messages.error(error)


def _open_or_start(plan: Plan, jobs: int, is_existing: bool) -> None:
    """Start the sweep of a plan unless it exists, and select it."""
    try:
        if not is_existing:
            start_sweep(data.database(), plan, jobs=jobs)
    except EmtcError as exc:
        st.session_state[_ERROR] = exc
        return
    SWEEP.write(plan.id)
    st.cache_data.clear()


def _show_caution(n_complete: int, n_settings: int) -> None:
    needed = _TRIALS_PER_SETTING * n_settings
    if n_complete < needed:
        st.caption(
            f":material/warning: Importance from {format_count(n_complete)} complete trials of {n_settings} settings "
            "is uncertain, also its order.",
            help=f"Below about {_TRIALS_PER_SETTING} trials per setting ({needed}), do not report it. Pruned trials "
            "are not counted.",
        )


def _show_figure(sweep_id: str, kind: Kind, *, n_complete: int, study_version: int) -> None:
    """Draw a figure with its title and downloads; nothing if there are too few complete trials."""
    if n_complete < _MIN_TRIALS[kind]:
        return
    title, meaning = KINDS[kind]
    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="center"):
        st.markdown(f"**{title}**", help=meaning, width="content")
        with st.popover("Export", icon=":material/download:", key=f"search-{kind}-files"):
            for format in get_args(Format):
                files.button(
                    format.upper(), partial(export, data.database(), sweep_id, kind, format),
                    file_name=f"search-{sweep_id}-{kind}.{format}", mime=_MIME[format],
                    key=f"search-{kind}-{format}", width="stretch",
                )  # fmt: skip
    with messages.guarded():
        mode: Mode = "dark" if st.context.theme.type == "dark" else "light"
        text = _make_plot(data.database().url, sweep_id, kind, study_version, mode)
        st.plotly_chart(plotly.io.from_json(text, skip_invalid=True), key=f"search-{kind}", theme=None)


@st.cache_data(ttl=3600, max_entries=60, show_spinner=False)
def _make_plot(url: str, sweep_id: str, kind: Kind, study_version: int, mode: Mode) -> str:
    """Make one of Optuna's figures as JSON, once per version of the study. `url` is only a part of the cache key."""
    figure = _get_plot(kind)(find_study(data.database(), sweep_id))
    text, background, grid = get_theme_colors(mode)
    axis = {"gridcolor": grid, "zerolinecolor": grid, "linecolor": grid}
    figure.update_layout(
        title=None,
        height=_PLOT_HEIGHT,
        margin={"t": 30, "b": 40, "l": 60, "r": 40},  # [pixels]
        font={"color": text},
        paper_bgcolor=background,
        plot_bgcolor=background,
    )
    figure.update_xaxes(axis).update_yaxes(axis, automargin=True)
    figure.update_traces(tickfont={"color": text}, selector={"type": "parcoords"})
    return str(figure.to_json())


def _get_plot(kind: Kind) -> Callable[[Any], Any]:
    """Return Optuna's function that draws this figure of a study with Plotly."""
    from optuna import visualization

    return getattr(visualization, f"plot_{kind}")


def _write_image(study: Any, kind: Kind, format: Format) -> bytes:
    import matplotlib as mpl
    from matplotlib import pyplot
    from optuna.visualization import matplotlib as optuna_plots

    # Letters are paths in an SVG, so that it needs no font. Font type 42 (TrueType) keeps the text of a PDF editable.
    with warnings.catch_warnings(), mpl.rc_context({"svg.fonttype": "path", "pdf.fonttype": 42}):
        warnings.simplefilter("ignore")  # Optuna warns that its Matplotlib figures are experimental
        getattr(optuna_plots, f"plot_{kind}")(study)
        figure = pyplot.gcf()
        out = io.BytesIO()
        figure.savefig(out, format=format, bbox_inches="tight", dpi=_DPI)
        pyplot.close(figure)
    return out.getvalue()
