"""One sweep: its state, the runs that must still train, and the table of its runs.

The plan of a sweep lists all of its runs. A trial is a run of a search: a sweep whose settings Optuna chooses. A run is
queued if it waits for a worker. A run is missing if it was never created, or if it stopped, failed or was lost before
its end.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, get_args

import pandas as pd
import streamlit as st
from pydantic import ValidationError

from app.analysis.format import (
    MISSING,
    escape_markdown,
    format_count,
    format_duration,
    format_final_rate,
    format_percent,
    format_run_count,
)
from app.figures.theme import STATUS_COLOR, STATUS_ICON
from app.jobs.sweeps.control import continue_sweep, find_open_runs, stop_sweep_and_runs
from app.jobs.sweeps.file import SweepFile, write_sweep_file
from app.ui import data, messages, view
from app.ui.page_state import RUNS
from app.ui.widgets import files, result_table, run_picker
from emtc_core.errors import ConfigError, EmtcError
from storage.queries.final_rates import FINAL_RATE_LABEL, FINAL_RATE_MEANING, FinalRate, read_final_rates
from storage.runs.rows import PRUNED, RunRow, shown_status
from storage.runs.status import Status
from storage.runs.sweeps import Sweep, sweep_runs

_MESSAGE_KEY: Final = "sweep_message"
_MAX_NAMED: Final = 6
"""Maximum number of runs whose names are listed."""
_MAX_COMPARED: Final = 200
"""Maximum number of runs in the link to Compare: the first of the plan."""


def show(sweep: Sweep) -> list[RunRow]:
    """Draw the state of the sweep and the runs that must still train; return its runs."""
    runs = sweep_runs(data.database(), sweep.id)
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        _show_state(sweep)
        _show_compare_link(runs)
        _show_file(sweep)
    if not sweep.is_over:
        st.progress(sweep.progress)
    if message := st.session_state.pop(_MESSAGE_KEY, None):
        st.info(escape_markdown(message), icon=":material/info:")
    if view.get_bundle() is None:
        _show_runs_to_start(sweep, runs)
    else:  # its runs are read-only, and the file may contain only some of them
        planned = len(sweep.plan.get("runs", ()))
        st.caption(f"This bundle contains {len(runs)} of the {planned} planned runs.")
    return runs


def show_runs(sweep: Sweep, runs: Sequence[RunRow]) -> None:
    """Draw links to the best runs, and the table of runs, folded."""
    final_rates = read_final_rates(data.database(), [run.id for run in runs])
    _show_best_runs(runs, final_rates)
    with st.expander(f"Runs ({len(runs)})", icon=":material/list:"):
        _show_table(sweep, runs, final_rates)


def make_rows(runs: Sequence[RunRow], labels: Mapping[str, str], final_rates: Mapping[str, FinalRate]) -> pd.DataFrame:
    """Make the rows of the table of runs.

    Args:
        runs: The runs.
        labels: Key of a planned run → what it varies, without the seed.
        final_rates: Run id → final win rate, for the runs that have been evaluated.
    """
    rows = [
        {
            "Status": shown_status(run.live_status, run.tags),
            "Run": view.link_run(run.id, labels.get(str(run.launch_token)) or run.name),
            "Seed": run.seed,
            "Progress": min(100.0, 100 * run.env_steps / max(1, run.target_steps)),
            "Machine": run.host or "–",
            FINAL_RATE_LABEL: 100 * final_rates[run.id].rate if run.id in final_rates else None,
            "Episodes": final_rates[run.id].episodes if run.id in final_rates else None,
            "Id": run.id,
            "Error": run.error or "",
        }
        for run in runs
    ]
    return pd.DataFrame(rows)


def _show_best_runs(runs: Sequence[RunRow], rates: Mapping[str, FinalRate]) -> None:
    """Draw links to the runs with the highest final win rate, also if several have it."""
    if not rates:
        return
    highest = max(rates.values(), key=lambda final: final.rate)
    best = [run for run in runs if run.id in rates and rates[run.id].rate == highest.rate]
    count = "Best run" if len(best) == 1 else f"{len(best)} best runs"
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.caption(f"{count}, final win rate {format_final_rate(*highest)}:", width="content")
        if len(best) == 1:
            run_picker.show_page_links(best[0].id, best[0].name)
        else:
            run_picker.show_run_links("live", [run.id for run in best])


def _show_compare_link(runs: Sequence[RunRow]) -> None:
    evaluated = [run.id for run in runs if run.win_rate is not None][:_MAX_COMPARED]
    if evaluated:
        st.page_link(
            "../pages/compare.py",
            label="Open in Compare",
            icon=":material/stacked_line_chart:",
            query_params=view.add_bundle({RUNS.name: ",".join(evaluated)}),
        )


def _show_file(sweep: Sweep) -> None:
    """Draw the sweep file and its download."""
    try:
        text = write_sweep_file(SweepFile.model_validate(sweep.plan.get("file")))
    except ValidationError:  # a setting of another version
        return
    with st.popover("Sweep file", icon=":material/description:", key="sweep_file"):
        st.caption("Train it again with `emtc sweep FILE`. More seeds extend the sweep.")
        st.code(text, language="toml")
        files.button(
            "TOML", lambda: text, file_name=f"sweep-{sweep.id}.toml", mime="application/toml",
            icon=":material/download:", key="sweep_file_toml",
        )  # fmt: skip


def _show_state(sweep: Sweep) -> None:
    """Draw the state, the number of runs of each status, the progress, and the stop button."""
    st.badge(sweep.state, icon=STATUS_ICON[sweep.state], color=STATUS_COLOR[sweep.state])  # type: ignore[arg-type]
    statuses = (*get_args(Status), PRUNED)
    parts = [f"{format_count(sweep.counts[status])} {status}" for status in statuses if sweep.counts[status]]
    parts.append(f"{format_percent(sweep.progress)} of all env steps")
    if not sweep.is_over:
        parts.append(f"{sweep.jobs} in parallel")
        if (seconds := sweep.seconds_left()) is not None:
            parts.append(f"time left {format_duration(seconds)}")
    if sweep.counts[PRUNED]:
        parts.append(f"pruning saved {format_percent(sweep.steps_saved)}")
    about = str(sweep.plan.get("file", {}).get("about", ""))
    st.markdown(" · ".join(parts), width="content", help=escape_markdown(about) or None)
    if sweep.state in ("running", "paused", "waiting"):
        # Streamlit calls the callback even if the script is rerun before it draws the button.
        st.button(
            "Stop the sweep", icon=":material/stop:", key="sweep_stop", help="Each trainer saves a checkpoint.",
            on_click=_stop, args=(sweep.id,), disabled=not messages.may_act(),
        )  # fmt: skip


def _stop(sweep_id: str) -> None:
    try:
        n_queued, n_running = stop_sweep_and_runs(data.database(), sweep_id)
        trainers = "1 trainer" if n_running == 1 else f"{format_count(n_running)} trainers"
        message = f"Removed {format_run_count(n_queued)} from the queue. Requested {trainers} to stop."
    except EmtcError as exc:
        message = str(exc)
    st.session_state[_MESSAGE_KEY] = message
    st.cache_data.clear()


def _show_runs_to_start(sweep: Sweep, runs: Sequence[RunRow]) -> None:
    """List the queued and missing runs, with a button that starts them, unless a worker is going to train them."""
    try:
        open_runs = find_open_runs(sweep, runs, data.find_imported_keys(sweep, runs))  # an imported run is not missing
    except ConfigError as exc:
        st.warning(escape_markdown(f"Imported runs cannot be matched to the plan: {exc}"))
        return
    missing = open_runs.missing
    queued = open_runs.queued
    n_planned = len(sweep.plan.get("runs", ()))
    if queued and sweep.has_worker:
        st.caption(f"{len(queued)} of {n_planned} runs are queued. A worker starts them.")
    to_launch = missing if sweep.has_worker else missing + queued
    if not to_launch:
        return
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        if missing:
            text = f"**{len(missing)} of {n_planned} runs are missing.**"
            st.markdown(text, width="content", help=_list_first(missing))
        if queued and not sweep.has_worker:
            text = f"**{len(queued)} of {n_planned} runs are queued**, and no worker of this sweep is running."
            st.markdown(text, width="content", help=_list_first(queued))
        if not missing:
            kind = "queued"
        elif len(to_launch) == len(missing):
            kind = "missing"
        else:  # queued and missing runs
            kind = "remaining"
        label = f"Launch the {len(to_launch)} {kind} runs" if len(to_launch) > 1 else f"Launch the {kind} run"
        _show_launch_button(sweep, label)


def _show_launch_button(sweep: Sweep, label: str) -> None:
    """Draw the button that queues the missing runs, and starts a worker of the sweep if none is running."""
    if sweep.has_worker:
        help_text = "The runs are queued for the worker of this sweep."
    else:
        help_text = "The runs train on this machine. On a cluster, repeat the command emtc sweep with --engine ray."
    is_pressed = st.button(
        label,
        icon=":material/play_arrow:",
        type="primary",
        key="sweep_missing",
        disabled=not messages.may_act(),
        help=help_text,
    )
    if not is_pressed:
        return
    try:
        continue_sweep(data.database(), sweep)
    except EmtcError as exc:
        messages.error(exc)
        return
    st.cache_data.clear()
    st.rerun()


def _list_first(names: Sequence[str]) -> str:
    """List the first runs and the number of the others."""
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return escape_markdown("; ".join(names[:_MAX_NAMED]) + more)


def _show_table(sweep: Sweep, runs: Sequence[RunRow], final_rates: Mapping[str, FinalRate]) -> None:
    planned = () if sweep.trials else sweep.plan.get("runs", ())  # the settings of a trial are in the name of its run
    labels = {str(run["key"]): str(run.get("label", "")) for run in planned}
    columns: dict[str, Any] = {
        "Run": st.column_config.LinkColumn(
            display_text=view.LINK_TEXT_PATTERN, help="Opens the run in a new tab", width="large"
        ),
        "Seed": st.column_config.NumberColumn(format="%d", width="small"),
        "Progress": st.column_config.ProgressColumn(
            format=result_table.PERCENT, min_value=0, max_value=100, width="small"
        ),
        "Machine": st.column_config.TextColumn(help="The machine or cluster node of the current or last trainer"),
        FINAL_RATE_LABEL: st.column_config.NumberColumn(format=result_table.RATE, help=FINAL_RATE_MEANING),
        "Episodes": st.column_config.TextColumn(help="Evaluation episodes of the final win rate", width="small"),
    }
    table = st.dataframe(
        make_rows(runs, labels, final_rates),
        hide_index=True,
        key="sweep_run_table",
        on_select="rerun",
        selection_mode="single-row",
        column_config=columns,
        placeholder=MISSING,
        alt="Runs of the sweep with their progress and machine. Select a row to open the run.",
    )
    rows = table["selection"]["rows"]
    if rows and rows[0] < len(runs):
        with st.container(horizontal=True, vertical_alignment="center"):
            run_picker.show_page_links(runs[rows[0]].id, runs[rows[0]].name)
    else:
        st.caption("Select a row to open the run.")
