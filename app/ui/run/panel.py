"""The Run page's body: what a run was, where and by which code, how to repeat it, what people say about it."""

from collections.abc import Callable
from datetime import UTC, datetime

import streamlit as st

from app.analysis.format import MISSING, aware, clock, count, duration, escape_markdown, number, percent
from app.jobs.launch_request import request_of, write_command
from app.ui import data, messages, state, view
from app.ui.live import controls
from app.ui.run import settings
from app.ui.widgets import run_picker
from emtc_core.errors import EmtcError
from storage.queries.runs import list_resumes
from storage.runs.labels import LONGEST_NOTE, edit_run, tag_runs
from storage.runs.rows import RunRow

_SAID = "run_said"


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
    st.subheader("Settings")
    with messages.guarded():
        settings.show(run)


def _links(run: RunRow) -> None:
    """The ways from here: its other pages, and the form that starts it once more."""
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        run_picker.status_badge(run.state.value)
        run_picker.page_links(run.id)
        if st.button(
            "Clone in Launch", type="primary", icon=":material/content_copy:", key="clone_run",
            help="The Launch form with every setting of this run; change what you like before you start it.",
        ):  # fmt: skip
            st.switch_page("../pages/launch.py", query_params=request_of(run.config))
        with st.popover("Name, tags and note", icon=":material/edit_note:", key="run-words-box"):
            _words(run)
    _tell()


def _facts(run: RunRow) -> None:
    told = {
        "Steps": f"{count(run.env_steps)} of {count(run.target_steps)} env steps",
        "Last evaluation": f"win rate {percent(run.win_rate)}, return {number(run.return_mean)}, "
        f"μ̄_w {number(run.mu_w)}",
        "Created": clock(run.created_at),
        "Trained": _trained(run),
        "Machine": f"{run.host or MISSING}, {run.device or 'no device yet'}",
        "Code": describe_code(run),
        "Family": _family(run),
        "Resumed": controls.describe_resumes(list_resumes(data.database(), run.id)) or "Never.",
    }
    cells = [f"| {name} | {text if name == 'Family' else escape_markdown(text)} |" for name, text in told.items()]
    st.markdown("\n".join([cells[0], "|---|---|", *cells[1:]]))


def _code(run: RunRow) -> None:
    """The command that repeats it, and what it ran on."""
    st.markdown("**The same in a terminal**")
    st.code(write_command(request_of(run.config)), language=None, wrap_lines=True)
    if run.versions:
        told = " · ".join(f"{name} {version}" for name, version in run.versions.items())
        st.caption(f"Versions: {escape_markdown(told)}")
    if run.tags:
        st.markdown(" ".join(f":blue-badge[{escape_markdown(tag)}]" for tag in run.tags))
    if run.notes:
        st.markdown(escape_markdown(run.notes))


def describe_code(run: RunRow) -> str:
    """Which code trained a run, as far as the run stored it."""
    version, commit = run.versions.get("emtc_lab"), run.versions.get("commit")
    told = [f"EMTC Lab {version}"] if version else []
    return ", ".join([*told, *([f"commit {commit}"] if commit else [])]) or "not stored"


def _trained(run: RunRow) -> str:
    if run.started_at is None:
        return "not yet"
    until = run.ended_at or run.heartbeat_at or datetime.now(UTC)
    return f"from {clock(run.started_at)}, for {duration((aware(until) - aware(run.started_at)).total_seconds())}"


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
