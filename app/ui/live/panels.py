"""The Live page's parts: a status line that ticks, and charts that redraw only when there are new points.

The ticking fragment holds no chart. It reads what is new and, when there is something, a silent component
asks for one redraw of the charts' own fragment; so an idle tick sends no chart at all.

A silent component: when the database has something newer than what is drawn, it asks for one redraw.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

import pandas as pd
import streamlit as st
from streamlit.components.v2 import component

from app.analysis.finals import LAST_TENTH, compute_final_rate
from app.analysis.format import add_utc, escape_markdown, format_count, format_duration, format_number, format_percent
from app.analysis.quantities import ROBUST, SUCCESS_RATE, get_success_threshold
from app.analysis.series import SeedRun, split_curves
from app.figures.assets import read_asset
from app.figures.chart_choices import MAX_REFERENCE_RUNS, add_reference_runs, name_reference_run
from app.figures.kinds.chart import Chart, Mark
from app.figures.named.live import CLOSING, FIRST_METRICS, METRIC_NAMES, RunData, read_returns
from app.figures.options import Options, make_options
from app.figures.registry import find_figure, list_live_metrics, list_metric_charts, list_sections
from app.figures.theme import ENDED_STATUSES
from app.ui import data, in_url, messages, run_data, state
from app.ui.live import controls
from app.ui.run_data import LiveCurves
from app.ui.widgets import canvas, pin, run_picker
from emtc_core.errors import ConfigError
from storage.files.trainer_files import read_stall_reason
from storage.queries.runs import RunFilter
from storage.runs.rows import RunRow, shown_status

_pulse = component("emtc_lab_pulse", js=read_asset("pulse.js"))


def show_pulse(*, key: str, version: str, drawn: str, on_news: Callable[[], None]) -> None:
    """Call `on_news` once for each version that differs from the drawn one."""
    _pulse(key=key, data={"version": version, "drawn": drawn}, on_news_change=on_news)


CHARTS = "live_charts"
PAGE, REFERENCE = "live", "ref"
CHART_HEIGHT = 470
"""Gate and outcomes fit under the status on a screen of 1440×900 [pixels]."""
STATUS_HEIGHT = 112
"""Of the place for words about a run at work: five lines [pixels]."""
TICK_S = 2.0
_SPEED = "time/env_steps_per_second"


def show(run: RunRow) -> None:
    """Draw the whole page body of a run."""
    ended = _has_ended(run)
    st.session_state["live_ticking"] = not ended
    frames = _frames(run.id)
    if not st.session_state.get("live_paused"):
        frames.refresh()
    frames.observe(run.env_steps)
    st.session_state["live_drawn"] = frames.version  # the charts below are drawn in this very run
    st.session_state["live_waiting"] = 0
    st.fragment(_status, run_every=None if ended else TICK_S)(run.id)
    st.fragment(_charts, key=CHARTS)(run)
    st.fragment(_log, run_every=None if ended else 5)(run.id)


def _frames(run_id: str) -> LiveCurves:
    known = st.session_state.get("live_curves")
    if known is None or known.run_id != run_id:
        known = st.session_state["live_curves"] = LiveCurves(run_id, list_live_metrics())
    return known


def _has_ended(run: RunRow) -> bool:
    return run.live_status in ENDED_STATUSES


def _status(run_id: str) -> None:
    with messages.guarded(), data.at_one_moment():  # over a network each question of its own takes four trips
        run = data.get_run(run_id)
        before = st.session_state.get("live_status", {}).get(run_id)
        st.session_state["live_status"] = {run_id: run.live_status}
        over = st.session_state.get("live_ticking") and _has_ended(run)
        if over or (before is not None and before != run.live_status):
            st.rerun()  # the timers of this page follow the run's state
        frames = _frames(run_id)
        _top(run, frames)
        _figures(run, frames)
        with st.container(key="live_status", gap="xxsmall", height="content" if _has_ended(run) else STATUS_HEIGHT):
            _trouble(run)
            _tell(run)


def _top(run: RunRow, frames: LiveCurves) -> None:
    with st.container(key="live_bar", horizontal=True, vertical_alignment="center", gap="small"):
        run_picker.status_badge(shown_status(run.state.value, run.tags))
        controls.show(run)
        _freshness(frames)


def _tell(run: RunRow) -> None:
    """What is known of the run in words; it scrolls within its place, so that no line moves the charts."""
    gate = data.gate_state(run)
    run_picker.gate_badge(gate)
    if (why := data.idle_incentive(run.id)) and why not in (gate.sentence if gate else ""):
        st.warning(escape_markdown(why), icon=":material/flag:")
    controls.show_log(run)
    controls.show_answers(run)
    controls.show_status(run)


def _figures(run: RunRow, frames: LiveCurves) -> None:
    """How far the run is and how well it plays, in one row where there is room for it."""
    speed = _latest_speed(run, frames)
    done = min(1.0, max(0, run.env_steps) / max(1, run.target_steps))
    with st.container(key="live_figures", horizontal=True, vertical_alignment="center", gap="medium"):
        st.progress(
            done,
            text=(
                f"{format_count(run.env_steps)} of {format_count(run.target_steps)} env steps · {format_percent(done)}"
            ),
        )
        with st.container(horizontal=True, width="content", gap="medium"):
            for label, value, about in (
                _success(run, frames),
                ("Return", format_number(run.return_mean), "Last greedy evaluation, mean [env return]"),
                ("Speed [steps/s]", format_number(speed), "Training env steps per second"),
                ("Time left", _time_left(run, speed), "At the present speed"),
                ("Elapsed", format_duration(_elapsed(run)), "Since the trainer started"),
            ):
                st.metric(label, value, help=about, width="content")


def _success(run: RunRow, frames: LiveCurves) -> tuple[str, str, str]:
    """How often it wins, or how often it returns what counts as a success."""
    threshold = get_success_threshold(run.config)
    if threshold is None:
        robust = _final_robust_rate(run, frames.evaluations)
        if robust is None:
            return "Win rate", format_percent(run.win_rate), _tell_evaluation(frames.evaluations)
        about = (
            "Mean over the evaluations in the last tenth of the budget, episodes from shifted starts. "
            f"Last greedy evaluation: {format_percent(run.win_rate)}"
        )
        return "Robust win rate, last tenth", format_percent(robust), about
    about = f"Last greedy evaluation, episodes that returned {threshold:g} [env return] or more"
    return "Success", format_percent(frames.latest(SUCCESS_RATE)), about


def _final_robust_rate(run: RunRow, evaluations: pd.DataFrame) -> float | None:
    """Compute the robust win rate at the end of a finished run; None of other runs, or without robust evaluations."""
    if run.status != "finished" or not len(evaluations):
        return None
    curve = split_curves(evaluations.assign(run_id=run.id), ROBUST).get(run.id)
    if curve is None:
        return None
    return compute_final_rate(SeedRun(run.id, {}, curve, target_steps=run.target_steps), LAST_TENTH)


def _tell_evaluation(evaluations: pd.DataFrame) -> str:
    """What the last win rate rests on."""
    if not len(evaluations) or pd.isna((last := evaluations.iloc[-1])["distinct"]):
        return "Last greedy evaluation"
    told = f"Last greedy evaluation: {last['distinct']:.0f} of its {last['episodes']:.0f} episodes differ"
    robust = last["robust_win_rate"]
    return told if pd.isna(robust) else f"{told}; from shifted starts {format_percent(robust)} were won"


def _latest_speed(run: RunRow, frames: LiveCurves) -> float | None:
    """The present speed; of an ended run, its average."""
    if run.live_status in ENDED_STATUSES:
        elapsed = _elapsed(run)
        return run.env_steps / elapsed if elapsed else None
    frames.observe(run.env_steps)
    if (seen := frames.steps_per_second()) is not None or not len(frames.metrics):
        return seen
    return frames.latest(_SPEED)


def _time_left(run: RunRow, speed: float | None) -> str:
    if run.live_status in ENDED_STATUSES:
        return "ended"
    if not speed:
        return "–"
    return format_duration((run.target_steps - run.env_steps) / speed)


def _elapsed(run: RunRow) -> float | None:
    if run.started_at is None:
        return None
    until = run.ended_at or (run.heartbeat_at if run.live_status == "lost" else None) or datetime.now(UTC)
    return (add_utc(until) - add_utc(run.started_at)).total_seconds()


def _trouble(run: RunRow) -> None:
    if run.live_status == "lost":
        st.warning(
            "The trainer is gone without a word: no heartbeat, or its process has ended. "
            "What it recorded stays. The log below may say more.",
            icon=":material/link_off:",
        )
    if run.error:
        st.error(escape_markdown(run.error), icon=":material/error:")
    stall = read_stall_reason(data.database(), run.id)
    if stall:
        st.warning(f"Recording waits: {escape_markdown(stall)}", icon=":material/hourglass:")


def _freshness(frames: LiveCurves) -> None:
    paused = st.toggle("Pause live", key="live_paused", help="Keep the charts as they are while the run goes on")
    fresh = frames.refresh()
    waiting = st.session_state["live_waiting"] = st.session_state.get("live_waiting", 0) + fresh
    st.badge(f"{waiting} new points" if waiting else "up to date", color="blue" if waiting else "gray")
    drawn = str(st.session_state.get("live_drawn", ""))
    version = drawn if paused else frames.version
    show_pulse(key="live_pulse", version=version, drawn=drawn, on_news=_redraw)


def _redraw() -> None:
    st.rerun(CHARTS)


def _charts(run: RunRow) -> None:
    frames = _frames(run.id)
    st.session_state["live_drawn"] = frames.version
    st.session_state["live_waiting"] = 0
    if not frames.rows and not frames.has_episodes:
        messages.empty(
            "No point has been recorded yet.",
            "The first one follows the first training round, usually within ten seconds. This page looks by itself.",
        )
        return
    with messages.guarded(), data.at_one_moment():
        marks = tuple(Mark(step, "resumed") for step in frames.resume_steps())
        recorded = _get_run_data(run, frames, marks)
        titled = [(title, _refer(chart)) for title, chart in _draw(recorded)]
        place = canvas.place_together("live", [chart for _, chart in titled], height=CHART_HEIGHT)
        with st.container(key="live_charts_grid", horizontal=True, gap="medium"):
            for title, chart in titled:
                with st.container(gap="xsmall"):
                    _chart(title, chart, run, place, choice=_CHOICES.get(chart.name))
            for title, names in list_metric_charts().items():
                chart = find_figure("metrics").draw(recorded, make_options({METRIC_NAMES: names}))
                if not chart.is_empty:
                    with st.container(gap="xsmall"):
                        referred = _refer(chart, ("metrics", names))
                        key = f"metrics-{title}"
                        _chart(title, referred, run, replace(place, height=None), {"metrics": names}, key=key)
            if len(frames.metrics):
                with st.container(gap="xsmall"):
                    _metric_charts(run, frames, marks, place)


def _get_run_data(run: RunRow, frames: LiveCurves, marks: tuple[Mark, ...]) -> RunData:
    """Return the rows of the run that this session has read so far."""
    database = data.database()
    return RunData(run, frames.gate, frames.evaluations, frames.metrics, lambda: read_returns(database, run), marks)


def _draw(recorded: RunData) -> list[tuple[str, Chart]]:
    """Draw the figures of this page that the run has data for, each with its title."""
    closing = bool(st.session_state[in_url.flag(PAGE, CLOSING.parameter)["key"]])
    charts = []
    for title, kinds in list_sections(PAGE).items():
        for kind in kinds:
            options = make_options({CLOSING: closing} if CLOSING in kind.options else {})
            with suppress(ConfigError):  # the run has no gate
                charts.append((title, kind.draw(recorded, options)))
    return charts


def _metric_charts(run: RunRow, frames: LiveCurves, marks: tuple[Mark, ...], place: canvas.Place) -> None:
    present = frames.metric_list()
    chosen = st.multiselect(
        METRIC_NAMES.label,
        present,
        default=[name for name in FIRST_METRICS if name in present],
        key="metrics",
        bind="query-params",
        help=METRIC_NAMES.help,
    )
    frames.follow(chosen)
    if chosen:
        options = make_options({METRIC_NAMES: tuple(chosen)})
        drawn = find_figure("metrics").draw(_get_run_data(run, frames, marks), options)
        _chart("", _refer(drawn, ("metrics", tuple(chosen))), run, replace(place, height=None), {"metrics": chosen})


def _referred() -> list[str]:
    """The runs whose lines stand beside this one's, as long as they are there."""
    chosen: list[str] = st.session_state[in_url.several(PAGE, REFERENCE, state.read_list(REFERENCE))["key"]] or []
    return [run_id for run_id in chosen[:MAX_REFERENCE_RUNS] if run_id in data.known_runs(chosen)]


@data.cached(st.cache_resource, ttl=5)
def _reference(
    url: str, run_id: str, figure: str, options: tuple[tuple[str, Any], ...] = ()
) -> tuple[str, Chart] | None:
    """Draw a figure of a run that stands beside another, with its name; None where it has none; five seconds old."""
    run = data.get_run(run_id)
    try:
        drawn = find_figure(figure).make(data.database(), [run], Options(dict(options)))
    except ConfigError:
        return None
    return (name_reference_run(run), drawn) if isinstance(drawn, Chart) else None


def _refer(chart: Chart, *options: tuple[str, Any]) -> Chart:
    closing = (("closing", True),) if chart.name == "gate-dynamics" and state.read_text(CLOSING.parameter) else ()
    found = (_reference(run_id, chart.name, (*options, *closing)) for run_id in _referred())
    return add_reference_runs(chart, dict(each for each in found if each is not None))


def _choose_reference() -> None:
    with st.popover("Beside it", icon=":material/stacked_line_chart:", help="Main lines of other runs, dotted"):
        names, _ = data.run_names(RunFilter())
        names = names | data.names_of(_referred())
        st.multiselect(
            "Other runs, for reference", **in_url.several(PAGE, REFERENCE, list(names)),
            max_selections=MAX_REFERENCE_RUNS,
            format_func=lambda run_id: f"{names.get(run_id, '')} · {run_id}", placeholder="none",
        )  # fmt: skip


def _choose_beta() -> None:
    st.toggle(CLOSING.label, **in_url.flag(PAGE, CLOSING.parameter), help=CLOSING.help)


_CHOICES: Final = {"gate-dynamics": _choose_beta, "outcomes": _choose_reference}


def _chart(
    title: str,
    chart: Chart,
    run: RunRow,
    place: canvas.Place,
    facts: dict[str, Any] | None = None,
    choice: Callable[[], None] | None = None,
    *,
    key: str = "",
) -> None:
    key = f"live-{key or chart.name}"
    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="center"):
        st.markdown(f"#### {title}" if title else "", width="content")
        if choice is not None:
            choice()
        shown = chart.keep_window(state.read_window())
        referred = {"beside": ids} if (ids := _referred()) else {}
        pin.show_with_export(shown, key=key, stem=run.id, page="live", run=run, facts={**(facts or {}), **referred})
    canvas.show(chart, key=key, window=state.read_window(), on_window=_window_chosen(), place=place)
    st.caption(escape_markdown(chart.caption))


def _window_chosen() -> Callable[[list[float]], None]:
    return lambda window: state.write_window(window or None)


def _log(run_id: str) -> None:
    with st.expander("Log of the trainer", icon=":material/terminal:"):
        text = run_data.log_tail(run_id)
        if text:
            st.code(text, language=None, height=280)
        else:
            st.caption("The trainer has written nothing yet.")
