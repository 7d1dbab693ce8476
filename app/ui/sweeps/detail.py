"""One sweep: its progress, what can be done with it, its runs, and which of them are missing."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import streamlit as st

from app.analysis.format import count, duration, escape_markdown, percent, runs_of
from app.figures.theme import STATUS_COLOR, STATUS_ICON
from app.jobs.sweeps.control import go_on, stop
from app.ui import data, messages, view
from app.ui.widgets import result_table, run_picker
from emtc_core.errors import EmtcError
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
    _missing(sweep, runs)
    with st.expander(f"The {len(runs)} runs", icon=":material/list:"):
        _table(runs)


def _best(runs: Sequence[RunRow]) -> None:
    """The run whose last evaluation won most, as a way to it; of equal ones the one with the larger area below."""
    rated = [run for run in runs if run.win_rate is not None]
    if not rated:
        return
    best = max(rated, key=lambda run: (run.win_rate or 0.0, run.mu_w or 0.0))
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.caption(f"Best so far, {percent(best.win_rate)} of its last greedy evaluation won:", width="content")
        run_picker.links(best.id, best.name)


def find_missing(sweep: Sweep, runs: Sequence[RunRow]) -> list[str]:
    """The planned runs that have not finished and that nobody works on."""
    known = {run.launch_token: run for run in runs}
    planned = [(str(run["key"]), _short_name(run)) for run in sweep.plan.get("runs", ())]
    idle = ("stopped", "failed", "lost") if sweep.has_scheduler else ("stopped", "failed", "lost", "queued")
    to_come = sweep.trials > 0 and sweep.has_scheduler  # a search that goes on asks for its trials one by one
    return [
        name
        for key, name in planned
        if (not to_come if key not in known else shown_status(known[key].live_status, known[key].tags) in idle)
    ]


def _short_name(planned: Mapping[str, Any]) -> str:
    label, seed = str(planned.get("label", "")), f"seed {planned.get('seed')}"
    return f"{label}, {seed}" if label else seed


def _head(sweep: Sweep) -> None:
    left = "" if sweep.is_over else f" · time left {duration(sweep.seconds_left())}"
    with st.container(horizontal=True, vertical_alignment="center"):
        word = "waiting" if sweep.state == "lost" else sweep.state
        st.badge(word, icon=STATUS_ICON[sweep.state], color=STATUS_COLOR[sweep.state])  # type: ignore[arg-type]
        _buttons(sweep)
    st.progress(sweep.done, text=f"{percent(sweep.done)} of all env steps · {sweep.jobs} at once{left}")
    shown = _OF_A_SEARCH if sweep.trials else _SHOWN
    columns = st.columns(len(shown))
    for column, status in zip(columns, shown, strict=True):
        column.metric(status.capitalize(), count(sweep.counts[status]))
    if sweep.counts["pruned"]:
        st.caption(f"Pruning saved {percent(sweep.steps_saved)} of the steps of the trials so far.")
    if sweep.state == "lost":
        st.warning("Runs are left, and no scheduler starts them. Press *Launch the missing runs*.")


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
        waiting, asked = stop(data.database(), sweep_id)
        asked_of = "1 trainer was" if asked == 1 else f"{count(asked)} trainers were"
        said = f"{runs_of(waiting)} left the queue, {asked_of} asked to stop."
    except EmtcError as exc:
        said = str(exc)
    st.session_state["sweep_said"] = said
    st.cache_data.clear()


def _missing(sweep: Sweep, runs: Sequence[RunRow]) -> None:
    if said := st.session_state.pop("sweep_said", None):
        st.info(escape_markdown(said), icon=":material/info:")
    names = find_missing(sweep, runs)
    if not names:
        return
    with st.container(border=True):
        shown = "; ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
        st.markdown(f"**{len(names)} of {len(sweep.plan.get('runs', ()))} runs are missing.** {escape_markdown(shown)}")
        label = f"Launch the {len(names)} missing runs" if len(names) > 1 else "Launch the missing run"
        idle = not messages.may_act()
        about = "They train on this machine. On a cluster, give emtc sweep with --engine ray again instead."
        if st.button(
            label, icon=":material/play_arrow:", type="primary", key="sweep_missing", disabled=idle, help=about
        ):
            try:
                go_on(data.database(), sweep)
            except EmtcError as exc:
                messages.error(exc)
                return
            st.cache_data.clear()
            st.rerun()


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
            "Run": view.named_link(run.id, run.name),
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
