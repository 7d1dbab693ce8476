"""The header of the pages of one run: the tabs, and one row with status, gate, progress, results and controls.

The gate is the weight β of the episodic incentive, the reward from the episodic memory. Overview, Live, Memory and
Replay draw the header. While a run is trained, a timer updates the row. On the page Live, it is the timer that also
updates the messages of the run.
"""

import pandas as pd
import streamlit as st

from app.analysis.format import (
    MISSING,
    escape_markdown,
    format_count,
    format_duration,
    format_final_rate,
    format_number,
    format_percent,
)
from app.analysis.quantities import SUCCESS_RATE, get_success_threshold
from app.analysis.settings import is_gate_off, name_algo
from app.figures.theme import ENDED_STATUSES
from app.ui import data, messages, run_data
from app.ui.live import controls
from app.ui.run_data import LiveCurves
from app.ui.widgets import page_tabs, run_picker, tour
from storage.queries.final_rates import FINAL_RATE_LABEL, FINAL_RATE_MEANING, read_final_rates
from storage.runs.rows import RunRow, find_run, format_seed, imported_label, shown_status

UPDATE_S = 5.0
"""Interval of the updates on the pages other than Live [s]."""
_SPEED = "time/env_steps_per_second"
"""Name of the metric with the speed of training."""
_STATUS = "run_header_status"
"""Key of Streamlit's session state: run id → status when the page was drawn."""


def open_page(title: str, *, has_numbers: bool = True) -> RunRow:
    """Draw the header of a page; return the run. If there is no run, draw a message and end the page.

    Args:
        title: Title of the page: that of a tab, or another title if the page is not a tab.
        has_numbers: Whether to draw the row below the tabs, with status, gate, progress, results and controls. False if
            the page itself calls `show_numbers`.
    """
    run = run_picker.require_run(title)
    st.session_state[_STATUS] = {run.id: run.live_status}
    page_tabs.show()
    tour.show(run)
    if has_numbers:
        st.fragment(_update, run_every=None if run.live_status in ENDED_STATUSES else UPDATE_S)(run.id)
    return run


def rerun_if_status_changed(run: RunRow) -> None:
    """Rerun the page if the run has another status than when the page was drawn.

    The timers of the page must start or stop, because only unfinished runs have timers.
    """
    drawn_status = st.session_state.get(_STATUS, {}).get(run.id)
    if drawn_status is not None and drawn_status != run.live_status:
        st.rerun()


def show_numbers(run: RunRow, curves: LiveCurves) -> None:
    """Draw the row with name, status, gate, progress, results and controls."""
    with st.container(key="run_numbers", horizontal=True, vertical_alignment="center", gap="small"):
        st.markdown(
            f"**{escape_markdown(run.name)}** :small[:gray[{run.id}]]", help=_describe_run(run), width="content"
        )
        run_picker.show_status_badge(shown_status(run.live_status, run.tags))
        if (import_source := imported_label(run.config)) is not None:
            st.badge(f"imported ({import_source})", icon=":material/download:", color="gray")
        _show_gate(run)
        _show_progress(run)
        for label, value, help_text in (_describe_result(run, curves), *_describe_times(run, curves)):
            st.metric(label, value, help=help_text, width="content")
        explanation = controls.show(run)  # what happens to the stored rows after a resume or restart
    if explanation:
        st.caption(escape_markdown(explanation))


def _describe_run(run: RunRow) -> str:
    """Write algorithm, environment, map and seed of a run as Markdown."""
    is_imported = imported_label(run.config) is not None
    algo = run.algo if is_imported else name_algo(run.algo)  # an imported run has the name that its files contain
    return escape_markdown(f"{algo} on {run.env} {run.map} · {format_seed(run.seed)}")


def _show_progress(run: RunRow) -> None:
    """Draw the trained env steps, with a bar if the run has not reached its training length."""
    if run.env_steps >= run.target_steps:
        st.metric("Env steps", format_count(run.env_steps), width="content")
        return
    progress = max(0, run.env_steps) / max(1, run.target_steps)
    steps = f"{format_count(run.env_steps)} / {format_count(run.target_steps)} steps"
    st.progress(progress, text=f"{steps} · {format_percent(progress)}")


def _update(run_id: str) -> None:
    """Read the run and draw the row. A timer executes this fragment. All reads use one snapshot of the database."""
    with messages.guarded(), data.use_one_snapshot():
        run = find_run(data.database(), run_id)
        rerun_if_status_changed(run)
        curves = run_data.get_session_curves(run_id, (SUCCESS_RATE, _SPEED), key="header_curves")
        curves.refresh()
        show_numbers(run, curves)


def _show_gate(run: RunRow) -> None:
    """Draw whether the gate is active, idle or off; draw nothing before its first statistics are recorded.

    An idle gate is on, but removes almost nothing of the incentive (`storage.queries.gate_state.name_gate`).
    """
    if is_gate_off(run.config):
        st.badge("gate off", icon=":material/filter_alt_off:", color="gray", help="This run has no gate: β is 1.")
    elif (gate := run_data.get_gate_verdict(run.id, run.live_status).gate) is not None:
        run_picker.show_gate_badge(gate)


def _describe_times(run: RunRow, curves: LiveCurves) -> list[tuple[str, str, str]]:
    """Return label, value and help of the speed and the time left, or of the time trained if the run does not train."""
    curves.record_progress(run)  # `steps_per_second` below is computed from these records
    elapsed_s = run_data.get_training_s(run)
    elapsed_help = "Since the trainer started, without pauses"
    elapsed = ("Elapsed", format_duration(elapsed_s), elapsed_help)
    if run.live_status in (*ENDED_STATUSES, "paused", "stopping"):
        return [elapsed]
    speed = curves.steps_per_second() or curves.get_last_value(_SPEED)  # at first, the speed that the trainer reports
    time_left = format_duration((run.target_steps - run.env_steps) / speed if speed else None)
    return [
        ("Speed [steps/s]", format_number(speed), "Training env steps per second"),
        ("Time left", time_left, f"At the current speed. Elapsed: {format_duration(elapsed_s)}. {elapsed_help}"),
    ]


def _describe_result(run: RunRow, curves: LiveCurves) -> tuple[str, str, str]:
    """Return label, value and help of the final win rate.

    A run whose successes are defined by the return has the success rate instead, a run without wins the return.
    """
    threshold = get_success_threshold(run.config)
    mean_return = f"mean return {format_number(run.return_mean)} [env return]"
    if threshold is not None:
        help_text = f"Last greedy evaluation: share of episodes with a return of {threshold:g} or more; {mean_return}"
        return "Success", format_percent(curves.get_last_value(SUCCESS_RATE)), help_text
    if run.win_rate is None and run.return_mean is not None:
        return "Return", format_number(run.return_mean), "Last greedy evaluation, mean [env return]"
    final = read_final_rates(data.database(), [run.id]).get(run.id)
    value = format_final_rate(final.rate, final.episodes) if final is not None else MISSING
    meaning = f"{FINAL_RATE_MEANING[0].upper()}{FINAL_RATE_MEANING[1:]}."
    return FINAL_RATE_LABEL, value, f"{meaning} {_describe_evaluation(curves.evaluations)}; {mean_return}"


def _describe_evaluation(evaluations: pd.DataFrame) -> str:
    """Write the win rates of the last evaluation and the number of its different episodes."""
    if not len(evaluations):
        return "Last greedy evaluation: none"
    last = evaluations.iloc[-1]
    text = f"Last greedy evaluation: {format_percent(last['win_rate'])}"
    if not pd.isna(last["distinct"]):
        text += f", {last['distinct']:.0f} of its {last['episodes']:.0f} episodes differ"
    robust_rate = last["robust_win_rate"]
    return text if pd.isna(robust_rate) else f"{text}; {format_percent(robust_rate)} won from shifted starts"
