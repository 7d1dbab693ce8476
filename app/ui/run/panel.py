"""The Run page's body: what a run was, where and by which code, how to repeat it, what people say about it.

At its end what its trainer took of the machine over time: processor, memory and GPU.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

import pandas as pd
import streamlit as st

from app.analysis import settings as analysis_settings
from app.analysis.format import (
    MISSING,
    add_utc,
    escape_markdown,
    format_count,
    format_duration,
    format_number,
    format_percent,
    format_time,
)
from app.analysis.intervals import compute_score_interval
from app.analysis.settings import list_libraries, write_value
from app.figures.named.live import MACHINE_METRICS, METRIC_NAMES, read_run_data
from app.figures.options import make_options
from app.figures.registry import find_figure
from app.jobs.launch_request import make_texts, write_command
from app.ui import data, messages, run_data, state, view
from app.ui.live import controls
from app.ui.run import settings
from app.ui.widgets import canvas, pin, run_picker
from emtc_core.config.base import IMPORTED
from emtc_core.errors import EmtcError
from storage.queries.runs import list_resumes
from storage.runs.labels import LONGEST_NOTE, edit_run, tag_runs
from storage.runs.rows import RunRow, imported_label, shown_status

_SAID = "run_said"
_NO_CLONE = "An imported run is a curve: this program has none of the settings that it could be trained with."


def show(run: RunRow) -> None:
    """Draw the whole page body of a run."""
    _links(run)
    if run.error:
        st.error(escape_markdown(run.error), icon=":material/error:")
    left, right = st.columns(2, gap="large")
    with left:
        _facts(run)
    with right:
        _code(run)
    _policies(run)
    st.subheader("Settings")
    with messages.guarded():
        settings.show(run)
    with messages.guarded():
        show_machine(run)


def _links(run: RunRow) -> None:
    """The ways from here: its other pages, and the form that starts it once more."""
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        run_picker.status_badge(shown_status(run.state.value, run.tags))
        run_picker.page_links(run.id)
        foreign = imported_label(run.config) is not None
        if st.button(
            "Clone in Launch", type="primary", icon=":material/content_copy:", key="clone_run", disabled=foreign,
            help=_NO_CLONE if foreign else
            "The Launch form with every setting of this run; change what you like before you start it.",
        ):  # fmt: skip
            st.switch_page("../pages/launch.py", query_params=make_texts(run.config))
        with st.popover("Name, tags and note", icon=":material/edit_note:", key="run-words-box"):
            _words(run)
    _tell()


def _facts(run: RunRow) -> None:
    told = {
        "Steps": f"{format_count(run.env_steps)} of {format_count(run.target_steps)} env steps",
        "Last evaluation": f"greedy win rate {format_percent(run.win_rate)}, return {format_number(run.return_mean)}, "
        f"μ̄_w {format_number(run.mu_w)}",
        "Created": format_time(run.created_at),
        "Trained": _trained(run),
        "Machine": f"{run.host or MISSING}, {run.device or 'no device yet'}",
        "Code": describe_code(run),
        **analysis_settings.describe_code(run.versions),
        "Family": _family(run),
        "Resumed": controls.describe_resumes(list_resumes(data.database(), run.id)) or "Never.",
    }
    cells = [f"| {name} | {text if name == 'Family' else escape_markdown(text)} |" for name, text in told.items()]
    st.markdown("\n".join([cells[0], "|---|---|", *cells[1:]]))


def _code(run: RunRow) -> None:
    """The command that repeats it, and what it ran on; of an imported run, where it came from."""
    if (label := imported_label(run.config)) is not None:
        st.info(
            escape_markdown(f"Imported ({label}): another program trained it. {_NO_CLONE}"), icon=":material/input:"
        )
    else:
        st.markdown("**The same in a terminal**")
        st.code(write_command(make_texts(run.config)), language=None, wrap_lines=True)
    if run.versions:
        st.caption(f"Versions: {escape_markdown(list_libraries(run.versions))}")
        _changes_of_code(run)
    if run.tags:
        st.markdown(" ".join(f":blue-badge[{escape_markdown(tag)}]" for tag in run.tags))
    if run.notes:
        st.markdown(escape_markdown(run.notes))


def _policies(run: RunRow) -> None:
    """What its stored policies did when somebody evaluated them."""
    frame = data.policy_evaluations(run.id)
    if not len(frame):
        return
    st.subheader("Policy evaluations")
    st.dataframe(
        tabulate_policies(frame),
        hide_index=True,
        key="policy_evaluations",
        alt="Table of policy evaluations: checkpoint, episodes, win rate with its interval, return.",
    )
    st.caption(
        "Greedy episodes of stored checkpoints (`emtc evaluate`), on no curve. Interval: Wilson's 95 % of as many "
        "episodes as differ."
    )


def tabulate_policies(frame: pd.DataFrame) -> pd.DataFrame:
    """Lay policy evaluations out for people, the newest first."""
    rows = frame.sort_values("id", ascending=False)
    low, high = compute_score_interval(rows["win_rate"].to_numpy(), rows["distinct"].to_numpy())
    bounds = [
        f"{format_percent(a, 1)} to {format_percent(b, 1)}" for a, b in zip(low.tolist(), high.tolist(), strict=True)
    ]
    games = [", ".join(f"{key} = {write_value(value)}" for key, value in each.items()) for each in rows["settings"]]
    spread = zip(rows["return_mean"], rows["return_std"], strict=True)
    return pd.DataFrame(
        {
            "Checkpoint": [f"{format_count(step)} env steps" for step in rows["env_step"]],
            "Episodes": [f"{n} ({k} differ)" for n, k in zip(rows["episodes"], rows["distinct"], strict=True)],
            "Win rate": [format_percent(rate, 1) for rate in rows["win_rate"]],
            "95 % interval": bounds,
            "Return": [f"{format_number(mean)} ± {format_number(std)}" for mean, std in spread],
            "Length": [format_number(length) for length in rows["length_mean"]],
            "Seed": rows["seed"].tolist(),
            "Game": [each or "as in training" for each in games],
            "Made": [format_time(at) for at in rows["created_at"]],
        }
    )


def describe_code(run: RunRow) -> str:
    """Which code trained a run, as far as the run stored it."""
    if isinstance(mark := run.versions.get(IMPORTED), dict):
        return f"another program's; imported as {mark.get('format')} from {mark.get('source')}"
    version = run.versions.get("emtc_lab")
    return f"EMTC Lab {version}" if version else "not stored"


def _changes_of_code(run: RunRow) -> None:
    """What was changed since the commit, as far as its file lies on this machine."""
    if text := run_data.code_changes(run):
        with st.expander("Changes that were not committed", icon=":material/difference:"):
            st.code(text, language="diff", height=320)


def _trained(run: RunRow) -> str:
    if run.started_at is None:
        return "not yet" if imported_label(run.config) is None else "by another program"
    until = run.ended_at or run.heartbeat_at or datetime.now(UTC)
    return (
        f"from {format_time(run.started_at)}, for "
        f"{format_duration((add_utc(until) - add_utc(run.started_at)).total_seconds())}"
    )


def _family(run: RunRow) -> str:
    """Which sweep and which earlier run it belongs to; links stay with this database."""
    told = []
    if run.sweep_id:
        told.append(_link(f"sweep {run.sweep_id}", "sweeps", {"sweep": run.sweep_id}))
    if run.parent_id:
        told.append(
            f"started again from step 0, after {_link(f'run {run.parent_id}', 'run', {state.RUN: run.parent_id})}"
        )
    return ", ".join(told) or "no sweep, no earlier run"


def _link(text: str, page: str, query: dict[str, str]) -> str:
    return f"[{escape_markdown(text)}]({view.address_of(page, query)})"


def _words(run: RunRow) -> None:
    """What people say about it, to be read and, on one's own runs, changed."""
    idle = not messages.may_act()
    with st.form("run-words", border=False):
        st.text_input("Name", run.name, key=f"run-name-{run.id}", max_chars=200, disabled=idle)
        known = sorted({*data.run_choices("all").tags, *run.tags})
        st.multiselect(
            "Tags", known, default=list(run.tags), key=f"run-tags-{run.id}", accept_new_options=True,
            placeholder="choose, or type a new tag", disabled=idle,
        )  # fmt: skip
        st.text_area("Note", run.notes, key=f"run-note-{run.id}", max_chars=LONGEST_NOTE, height=110, disabled=idle)
        st.form_submit_button("Keep", disabled=idle, key="run-keep", on_click=_keep, args=(run,))


def _keep(run: RunRow) -> None:
    def write() -> None:
        tags = set(st.session_state[f"run-tags-{run.id}"])
        name, note = st.session_state[f"run-name-{run.id}"], st.session_state[f"run-note-{run.id}"]
        edit_run(data.database(), run.id, name=str(name or ""), notes=str(note or ""))
        tag_runs(data.database(), [run.id], add=sorted(tags - set(run.tags)), remove=sorted(set(run.tags) - tags))

    _act(write)


def _act(do: Callable[[], None]) -> None:
    try:
        do()
    except EmtcError as exc:
        st.session_state[_SAID] = exc
    else:
        st.session_state[_SAID] = "Kept."
    st.cache_data.clear()


def _tell() -> None:
    said = st.session_state.pop(_SAID, None)
    if isinstance(said, Exception):
        messages.error(said)
    elif said:
        st.success(said, icon=":material/check:")


_PANEL = 110


def show_machine(run: RunRow) -> None:
    """Draw what was recorded; a run of an earlier version, or one that has not reported yet, has nothing."""
    st.subheader("Machine over time")
    db = data.database()
    recorded = read_run_data(db, run, MACHINE_METRICS)
    if not len(recorded.metrics):
        st.caption("Its trainer has recorded nothing of this: it has not reported yet, or was of an earlier version.")
        return
    names = tuple(name for name in MACHINE_METRICS if name in {*recorded.metrics["name"]})
    figure = find_figure("metrics").draw(recorded, make_options({METRIC_NAMES: names}))
    chart = replace(figure, name="machine", title=f"Machine of {run.name}")
    with st.container(horizontal=True, horizontal_alignment="right"):
        pin.show_export(chart, key="run-machine", stem=run.id)
    canvas.show(
        chart, key="run-machine-curves", window=state.read_window(), panel_height=_PANEL,
        on_window=lambda window: state.write_window(window or None),
    )  # fmt: skip
    st.caption(escape_markdown(chart.caption))
