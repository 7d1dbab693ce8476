"""The Live page: a status section that updates by timer, and charts that are redrawn only when there are new points.

The fragment with the timer contains no chart. It reads the new rows. If there are any, a component without visible
output reruns the charts' fragment once. If there are none, no chart is sent to the browser.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import pandas as pd
import streamlit as st
from streamlit.components.v2 import component

from app.analysis.finals import LAST_TENTH, compute_final_rate
from app.analysis.format import escape_markdown, format_count, format_duration, format_number, format_percent
from app.analysis.quantities import ROBUST, SUCCESS_RATE, get_success_threshold
from app.analysis.series import SeedRun, split_curves
from app.figures.assets import read_asset
from app.figures.kinds.chart import Chart, Mark
from app.figures.named.live import CLOSING, FIRST_METRICS, METRIC_NAMES, RunData, read_returns
from app.figures.options import Options, make_options
from app.figures.reference_runs import MAX_REFERENCE_RUNS, add_reference_runs, name_reference_run
from app.figures.registry import draw_chart, find_figure, list_live_metrics, list_metric_charts, list_sections
from app.figures.theme import ENDED_STATUSES
from app.ui import data, messages, run_data
from app.ui.live import controls
from app.ui.page_state import WINDOW, Choices, Flag
from app.ui.run_data import LiveCurves
from app.ui.widgets import canvas, pin, run_picker
from emtc_core.errors import ConfigError
from storage.files.trainer_files import read_stall_reason
from storage.queries.run_search import RunFilter
from storage.runs.rows import RunRow, shown_status

CHARTS = "live_charts"
REFERENCES = Choices("ref", "live")
"""Ids of the overlaid runs."""
CLOSING_CHOICE = Flag(CLOSING.parameter, "live")
METRICS = Choices(METRIC_NAMES.parameter, "live", separator="")
CHART_HEIGHT = 470
"""Gate and outcomes fit under the status on a screen of 1440×900 [pixels]."""
STATUS_HEIGHT = 112
"""Height of the messages about a running run: five lines [pixels]."""
TICK_S = 2.0
_SPEED = "time/env_steps_per_second"
_pulse = component("emtc_lab_pulse", js=read_asset("pulse.js"))


def show(run: RunRow) -> None:
    """Draw the whole body of the page."""
    has_ended = run.live_status in ENDED_STATUSES
    st.session_state["live_ticking"] = not has_ended
    curves = _get_curves(run.id)
    if not st.session_state.get("live_paused"):
        curves.refresh()
    curves.observe(run)
    st.session_state["live_drawn"] = curves.version  # the charts below are drawn in this script run
    st.session_state["live_waiting"] = 0
    st.fragment(_status, run_every=None if has_ended else TICK_S)(run.id)
    st.fragment(_charts, key=CHARTS)(run)
    st.fragment(_log, run_every=None if has_ended else 5)(run.id)


def _get_curves(run_id: str) -> LiveCurves:
    curves = st.session_state.get("live_curves")
    if curves is None or curves.run_id != run_id:
        curves = st.session_state["live_curves"] = LiveCurves(run_id, list_live_metrics())
    return curves


def _status(run_id: str) -> None:
    with messages.guarded(), data.use_one_snapshot():  # over a network, each separate read takes four round trips
        run = data.get_run(run_id)
        has_ended = run.live_status in ENDED_STATUSES
        last_status = st.session_state.get("live_status", {}).get(run_id)
        st.session_state["live_status"] = {run_id: run.live_status}
        has_just_ended = st.session_state.get("live_ticking") and has_ended
        if has_just_ended or (last_status is not None and last_status != run.live_status):
            st.rerun()  # the timers of this page depend on the run's status
        curves = _get_curves(run_id)
        with st.container(key="live_bar", horizontal=True, vertical_alignment="center", gap="small"):
            run_picker.status_badge(shown_status(run.state.value, run.tags))
            controls.show(run)
            _update_charts(curves)
        _numbers(run, curves)
        with st.container(key="live_status", gap="xxsmall", height="content" if has_ended else STATUS_HEIGHT):
            _problems(run)
            gate = data.gate_state(run)
            run_picker.gate_badge(gate)
            if (reason := data.idle_incentive(run.id)) and reason not in (gate.sentence if gate else ""):
                st.warning(escape_markdown(reason), icon=":material/flag:")
            controls.show_log(run)
            controls.show_requests(run)
            controls.show_status(run)


def _update_charts(curves: LiveCurves) -> None:
    """Draw the switch that freezes the charts, read new rows, and redraw the charts if there are any."""
    is_frozen = st.toggle("Freeze charts", key="live_paused", help="The charts are not updated. The run continues.")
    n_new = curves.refresh()
    n_waiting = st.session_state["live_waiting"] = st.session_state.get("live_waiting", 0) + n_new
    st.badge(f"{n_waiting} new points" if n_waiting else "up to date", color="blue" if n_waiting else "gray")
    drawn_version = str(st.session_state.get("live_drawn", ""))
    version = drawn_version if is_frozen else curves.version
    data_versions = {"version": version, "drawn": drawn_version}
    _pulse(key="live_pulse", data=data_versions, on_news_change=lambda: st.rerun(CHARTS))


def _numbers(run: RunRow, curves: LiveCurves) -> None:
    """Draw the progress and the main results, in one row if the window is wide enough."""
    speed = _compute_speed(run, curves)
    progress = min(1.0, max(0, run.env_steps) / max(1, run.target_steps))
    if run.live_status in ENDED_STATUSES or run.live_status == "paused":
        time_left = "paused" if run.live_status == "paused" else "ended"
    else:
        time_left = format_duration((run.target_steps - run.env_steps) / speed if speed else None)
    with st.container(key="live_figures", horizontal=True, vertical_alignment="center", gap="medium"):
        st.progress(
            progress,
            text=(
                f"{format_count(run.env_steps)} of {format_count(run.target_steps)} env steps "
                f"· {format_percent(progress)}"
            ),
        )
        with st.container(horizontal=True, width="content", gap="medium"):
            for label, value, help_text in (
                _describe_success(run, curves),
                ("Return", format_number(run.return_mean), "Last greedy evaluation, mean [env return]"),
                ("Speed [steps/s]", format_number(speed), "Training env steps per second"),
                ("Time left", time_left, "At the current speed"),
                ("Elapsed", format_duration(data.training_s(run)), "Since the trainer started, without pauses"),
            ):
                st.metric(label, value, help=help_text, width="content")


def _describe_success(run: RunRow, curves: LiveCurves) -> tuple[str, str, str]:
    """Return label, value and help of the win rate, or of the success rate if a success is defined by the return."""
    threshold = get_success_threshold(run.config)
    if threshold is not None:
        help_text = f"Last greedy evaluation: share of episodes with a return of {threshold:g} [env return] or more"
        return "Success", format_percent(curves.latest(SUCCESS_RATE)), help_text
    robust_rate = _compute_final_robust_rate(run, curves.evaluations)
    if robust_rate is None:
        return "Win rate", format_percent(run.win_rate), _describe_evaluation(curves.evaluations)
    help_text = (
        "Mean over the evaluations in the last tenth of the budget, episodes from shifted starts. "
        f"Last greedy evaluation: {format_percent(run.win_rate)}"
    )
    return "Robust win rate, last tenth", format_percent(robust_rate), help_text


def _compute_final_robust_rate(run: RunRow, evaluations: pd.DataFrame) -> float | None:
    """Compute the robust win rate at the end of a finished run; None of other runs, or without robust evaluations."""
    if run.status != "finished" or not len(evaluations):
        return None
    curve = split_curves(evaluations.assign(run_id=run.id), ROBUST).get(run.id)
    if curve is None:
        return None
    return compute_final_rate(SeedRun(run.id, {}, curve, target_steps=run.target_steps), LAST_TENTH)


def _describe_evaluation(evaluations: pd.DataFrame) -> str:
    """Write how many episodes of the last evaluation differ, and its robust win rate."""
    if not len(evaluations) or pd.isna((last := evaluations.iloc[-1])["distinct"]):
        return "Last greedy evaluation"
    text = f"Last greedy evaluation: {last['distinct']:.0f} of its {last['episodes']:.0f} episodes differ"
    robust_rate = last["robust_win_rate"]
    return text if pd.isna(robust_rate) else f"{text}; {format_percent(robust_rate)} won from shifted starts"


def _compute_speed(run: RunRow, curves: LiveCurves) -> float | None:
    """Compute the current speed [env steps/s], none of a paused run; of an ended run, its average."""
    if run.live_status in ENDED_STATUSES:
        elapsed_s = data.training_s(run)
        return run.env_steps / elapsed_s if elapsed_s else None
    curves.observe(run)
    if run.live_status == "paused":
        return None
    speed = curves.steps_per_second()
    return curves.latest(_SPEED) if speed is None else speed


def _problems(run: RunRow) -> None:
    if run.live_status == "lost":
        st.warning(
            "The trainer has stopped unexpectedly: it sends no heartbeat, or its process has ended. "
            "The recorded data are kept. See the log below.",
            icon=":material/link_off:",
        )
    if run.error:
        st.error(escape_markdown(run.error), icon=":material/error:")
    stall = read_stall_reason(data.database(), run.id)
    if stall:
        st.warning(f"Recording waits: {escape_markdown(stall)}", icon=":material/hourglass:")


def _charts(run: RunRow) -> None:
    curves = _get_curves(run.id)
    st.session_state["live_drawn"] = curves.version
    st.session_state["live_waiting"] = 0
    if not curves.rows and not curves.has_episodes:
        messages.empty(
            "No point has been recorded yet.",
            "The first one follows the first training round, usually within ten seconds. This page updates "
            "automatically.",
        )
        return
    with messages.guarded(), data.use_one_snapshot():
        marks = tuple(Mark(step, "resumed") for step in curves.resume_steps())
        recorded = _get_run_data(run, curves, marks)
        charts = [(title, _add_references(chart, run.id)) for title, chart in _draw(recorded)]
        place = canvas.place_together("live", [chart for _, chart in charts], height=CHART_HEIGHT)
        with st.container(key="live_charts_grid", horizontal=True, gap="medium"):
            for title, chart in charts:
                with st.container(gap="xsmall"):
                    _chart(title, chart, run, place, draw_options=_DRAW_OPTIONS.get(chart.name))
            for title, names in list_metric_charts().items():
                chart = draw_chart("metrics", recorded, make_options({METRIC_NAMES: names}))
                if not chart.is_empty:
                    with st.container(gap="xsmall"):
                        chart = replace(
                            _add_references(chart, run.id, ("metrics", names)), title=f"{title} of {run.name}"
                        )
                        own_place = replace(place, height=None)
                        _chart(title, chart, run, own_place, {"metrics": names}, key=f"metrics-{title}")
            if len(curves.metrics):
                with st.container(gap="xsmall"):
                    _metric_charts(run, curves, recorded, place)


def _get_run_data(run: RunRow, curves: LiveCurves, marks: tuple[Mark, ...]) -> RunData:
    """Return the rows of the run that this session has read so far."""
    database = data.database()
    return RunData(run, curves.gate, curves.evaluations, curves.metrics, lambda: read_returns(database, run), marks)


def _draw(recorded: RunData) -> list[tuple[str, Chart]]:
    """Draw the figures of this page that the run has data for, each with its title."""
    is_closing = CLOSING_CHOICE.read()
    charts = []
    for title, kinds in list_sections("live").items():
        for kind in kinds:
            options = make_options({CLOSING: is_closing} if CLOSING in kind.options else {})
            with suppress(ConfigError):  # the run has no gate
                charts.append((title, draw_chart(kind.name, recorded, options)))
    return charts


def _metric_charts(run: RunRow, curves: LiveCurves, recorded: RunData, place: canvas.Place) -> None:
    available = curves.metric_list()
    names = st.multiselect(
        METRIC_NAMES.label,
        **METRICS.bind(available, default=[name for name in FIRST_METRICS if name in available]),
        help=METRIC_NAMES.help,
    )
    curves.follow(names)
    if names:
        recorded = replace(recorded, metrics=curves.metrics)
        chart = draw_chart("metrics", recorded, make_options({METRIC_NAMES: tuple(names)}))
        chart = _add_references(chart, run.id, ("metrics", tuple(names)))
        _chart("", chart, run, replace(place, height=None), {"metrics": names})


def _list_references(run_id: str) -> list[str]:
    """List the runs that are overlaid on a run; runs that were deleted, and the run itself, are left out."""
    existing = data.existing_runs(REFERENCES.read())
    references = [other_id for other_id in REFERENCES.read() if other_id in existing and other_id != run_id]
    return references[:MAX_REFERENCE_RUNS]


@data.cached(st.cache_resource, ttl=5)
def _draw_reference(
    url: str, run_id: str, figure: str, options: tuple[tuple[str, Any], ...] = ()
) -> tuple[str, Chart] | None:
    """Draw a figure of an overlaid run; None if the run has no such figure; at most five seconds old.

    Returns:
        The run's name in the legend, and the chart.
    """
    run = data.get_run(run_id)
    try:
        chart = find_figure(figure).make(data.database(), [run], Options(dict(options)))
    except ConfigError:
        return None
    return (name_reference_run(run), chart) if isinstance(chart, Chart) else None


def _add_references(chart: Chart, run_id: str, *options: tuple[str, Any]) -> Chart:
    closing = ((CLOSING.name, True),) if chart.name == "gate-dynamics" and CLOSING_CHOICE.read() else ()
    references = (_draw_reference(other_id, chart.name, (*options, *closing)) for other_id in _list_references(run_id))
    return add_reference_runs(chart, dict(reference for reference in references if reference is not None))


def _choose_references(run: RunRow) -> None:
    help_text = "Adds the main lines of other runs, dotted"
    with st.popover("Overlay runs", icon=":material/stacked_line_chart:", help=help_text):
        names, _ = data.run_names(RunFilter())
        names = names | data.names_of(_list_references(run.id))
        names.pop(run.id, None)
        st.multiselect(
            "Runs", **REFERENCES.bind(list(names), lambda run_id: f"{names.get(run_id, '')} · {run_id}"),
            max_selections=MAX_REFERENCE_RUNS, placeholder="none",
        )  # fmt: skip


def _choose_closing(run: RunRow) -> None:
    st.toggle(CLOSING.label, **CLOSING_CHOICE.bind(), help=CLOSING.help)


_DRAW_OPTIONS: Final = {"gate-dynamics": _choose_closing, "outcomes": _choose_references}


def _chart(
    title: str,
    chart: Chart,
    run: RunRow,
    place: canvas.Place,
    facts: dict[str, Any] | None = None,
    draw_options: Callable[[RunRow], None] | None = None,
    *,
    key: str = "",
) -> None:
    window, key = WINDOW.read(), f"live-{key or chart.name}"
    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="center"):
        st.markdown(f"#### {title}" if title else "", width="content")
        if draw_options is not None:
            draw_options(run)
        references = {"beside": run_ids} if (run_ids := _list_references(run.id)) else {}
        pin.show_with_export(
            chart.keep_window(window), key=key, stem=run.id, page="live", run=run,
            facts={**(facts or {}), **references},
        )  # fmt: skip
    canvas.show(
        chart, key=key, window=window, place=place, on_window=WINDOW.on_window,
    )  # fmt: skip
    st.caption(escape_markdown(chart.caption))


def _log(run_id: str) -> None:
    with st.expander("Trainer log", icon=":material/terminal:"):
        text = run_data.log_tail(run_id)
        if text:
            st.code(text, language=None, height=280)
        else:
            st.caption("The trainer has not written a log yet.")
