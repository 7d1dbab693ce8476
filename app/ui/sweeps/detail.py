"""One sweep: its progress, what can be done with it, its runs, and which of them are missing."""

from collections.abc import Sequence
from typing import Any

import pandas as pd
import streamlit as st

from app.analysis.format import escape_markdown, format_count, format_duration, format_percent, format_run_count
from app.figures.theme import STATUS_COLOR, STATUS_ICON
from app.jobs.sweeps.control import continue_sweep, find_open_runs, stop_sweep_and_runs
from app.ui import data, messages, view
from app.ui.widgets import result_table, run_picker
from emtc_core.errors import ConfigError, EmtcError
from storage.runs.rows import RunRow, shown_status
from storage.runs.sweeps import Sweep

_SHOWN = ("finished", "running", "queued", "stopped", "failed", "lost")
_OF_A_SEARCH = ("finished", "pruned", "running", "queued", "stopped", "failed", "lost")


def show(sweep: Sweep) -> None:
    """Draw the sweep's head and the table of its runs."""
    st.markdown(f"### {escape_markdown(sweep.name)}")
    about = str(sweep.plan.get("file", {}).get("about", ""))
    if about:
        st.caption(escape_markdown(about))
    _head(sweep)
    runs = data.sweep_runs(sweep.id)
    _best(runs)
    _open_runs(sweep, runs)
    with st.expander(f"The {len(runs)} runs", icon=":material/list:"):
        _table(runs)


def _best(runs: Sequence[RunRow]) -> None:
    """The run whose last evaluation won most, as a way to it; of equal ones the one with the larger area below."""
    rated = [run for run in runs if run.win_rate is not None]
    if not rated:
        return
    best = max(rated, key=lambda run: (run.win_rate or 0.0, run.mu_w or 0.0))
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.caption(f"Best so far, {format_percent(best.win_rate)} of its last greedy evaluation won:", width="content")
        run_picker.links(best.id, best.name)


def _head(sweep: Sweep) -> None:
    left = "" if sweep.is_over else f" · time left {format_duration(sweep.seconds_left())}"
    with st.container(horizontal=True, vertical_alignment="center"):
        word = "waiting" if sweep.state == "lost" else sweep.state
        st.badge(word, icon=STATUS_ICON[sweep.state], color=STATUS_COLOR[sweep.state])  # type: ignore[arg-type]
        _buttons(sweep)
    st.progress(sweep.progress, text=f"{format_percent(sweep.progress)} of all env steps · {sweep.jobs} at once{left}")
    shown = _OF_A_SEARCH if sweep.trials else _SHOWN
    columns = st.columns(len(shown))
    for column, status in zip(columns, shown, strict=True):
        column.metric(status.capitalize(), format_count(sweep.counts[status]))
    if sweep.counts["pruned"]:
        st.caption(f"Pruning saved {format_percent(sweep.steps_saved)} of the steps of the trials so far.")


def _buttons(sweep: Sweep) -> None:
    if sweep.state not in ("running", "paused", "lost"):
        return
    # A callback: it is heard even when this very rerun finds that the page must be drawn anew.
    st.button(
        "Stop the sweep", icon=":material/stop:", key="sweep_stop", help="Trainers keep a checkpoint.",
        on_click=_stop, args=(sweep.id,), disabled=not messages.may_act(),
    )  # fmt: skip


def _stop(sweep_id: str) -> None:
    try:
        waiting, asked = stop_sweep_and_runs(data.database(), sweep_id)
        asked_of = "1 trainer was" if asked == 1 else f"{format_count(asked)} trainers were"
        said = f"{format_run_count(waiting)} left the queue, {asked_of} asked to stop."
    except EmtcError as exc:
        said = str(exc)
    st.session_state["sweep_said"] = said
    st.cache_data.clear()


def _open_runs(sweep: Sweep, runs: Sequence[RunRow]) -> None:
    """Name the runs that wait and those that are missing, and offer to start what nothing else will train."""
    if said := st.session_state.pop("sweep_said", None):
        st.info(escape_markdown(said), icon=":material/info:")
    try:
        found = find_open_runs(sweep, runs, data.imported_keys(sweep, runs))
    except ConfigError as exc:
        st.warning(escape_markdown(f"Imported runs cannot be matched to the plan: {exc}"))
        return
    planned = len(sweep.plan.get("runs", ()))
    if found.queued and sweep.has_worker:
        taker = "The scheduler of the sweep" if sweep.has_scheduler else "A worker (emtc worker)"
        st.caption(escape_markdown(f"{len(found.queued)} of {planned} runs are queued. {taker} starts them."))
    to_launch = found.missing if sweep.has_worker else found.missing + found.queued
    if not to_launch:
        return
    with st.container(border=True):
        if found.missing:
            st.markdown(f"**{len(found.missing)} of {planned} runs are missing.** {_shorten(found.missing)}")
        if found.queued and not sweep.has_worker:
            st.markdown(
                f"**{len(found.queued)} of {planned} runs are queued**, and no scheduler or worker trains runs of this "
                f"sweep. {_shorten(found.queued)}"
            )
        kind = "queued" if not found.missing else "missing" if len(to_launch) == len(found.missing) else "remaining"
        label = f"Launch the {len(to_launch)} {kind} runs" if len(to_launch) > 1 else f"Launch the {kind} run"
        here = "They train on this machine. On a cluster, give emtc sweep with --engine ray again instead."
        left_to_workers = sweep.has_worker and not sweep.has_scheduler
        about = "They are queued for the workers of this database." if left_to_workers else here
        idle = not messages.may_act()
        if st.button(
            label, icon=":material/play_arrow:", type="primary", key="sweep_missing", disabled=idle, help=about
        ):
            try:
                continue_sweep(data.database(), sweep)
            except EmtcError as exc:
                messages.error(exc)
                return
            st.cache_data.clear()
            st.rerun()


def _shorten(names: Sequence[str]) -> str:
    """Name the first six runs, and how many more there are."""
    return escape_markdown("; ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else ""))


def _table(runs: Sequence[RunRow]) -> None:
    columns: dict[str, Any] = {
        "Run": st.column_config.LinkColumn(
            display_text=view.CALLED_PATTERN, help="Opens the run's own page in a new tab"
        ),
        "Progress": st.column_config.ProgressColumn(
            format=result_table.PERCENT, min_value=0, max_value=100, width="small"
        ),
        "Machine": st.column_config.TextColumn(help="The machine, or node of a cluster, that trains it or did so last"),
        "Last win rate": st.column_config.NumberColumn(format=result_table.PERCENT, help="Last greedy evaluation"),
    }
    picked = st.dataframe(
        make_rows(runs),
        hide_index=True,
        key="sweep_run_table",
        on_select="rerun",
        selection_mode="single-row",
        column_config=columns,
        alt="Runs of the sweep with their progress and machine. Choose a row to open the run.",
    )
    chosen = picked["selection"]["rows"]
    if chosen and chosen[0] < len(runs):
        _open(runs[chosen[0]])
    else:
        st.caption("Choose a row to open its run.")


def make_rows(runs: Sequence[RunRow]) -> pd.DataFrame:
    """Turn runs into what the table shows."""
    rows = [
        {
            "Status": shown_status(run.live_status, run.tags),
            "Run": view.link_run(run.id, run.name),
            "Progress": min(100.0, 100 * run.env_steps / max(1, run.target_steps)),
            "Machine": run.host or "–",
            "Last win rate": None if run.win_rate is None else 100 * run.win_rate,
            "Id": run.id,
            "Error": run.error or "",
        }
        for run in runs
    ]
    return pd.DataFrame(rows)


def _open(run: RunRow) -> None:
    with st.container(horizontal=True, vertical_alignment="center"):
        run_picker.links(run.id, run.name)
