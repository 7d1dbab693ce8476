"""Start a sweep from a template, an uploaded or a pasted file; its faults are told before anything is created.

A select box whose choice stands in the URL by its id, whatever its label is called today.

The sweeps with their progress, and the choice of one of them; the choice stands in the URL.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import streamlit as st

from app.analysis.format import escape_markdown, format_count, format_duration, format_size
from app.analysis.settings import name_algo
from app.jobs.sweeps.control import check_plan, create_sweep, default_jobs, estimate_cost, start_scheduler
from app.jobs.sweeps.file import list_templates, parse_sweep, read_template
from app.jobs.sweeps.plan import Plan, make_plan
from app.ui import data, messages, state
from app.ui.widgets import config_form, result_table
from emtc_core.errors import EmtcError, describe_error
from storage.runs.sweeps import Sweep


def show_select(label: str, names: Mapping[str, str], *, key: str, text: str) -> str:
    """Draw the box and return the chosen id; `key` is the URL's parameter, `text` the help."""
    widget, ids = f"{key}_chosen", list(names)
    wanted = state.read_text(key)
    st.session_state[widget] = wanted if wanted in names else ids[0]

    def heard() -> None:
        chosen = st.session_state[widget]
        state.write(key, None if chosen == ids[0] else chosen)

    return st.selectbox(
        label, ids, format_func=lambda each: names.get(each, str(each)), key=widget, on_change=heard, help=text
    )


SWEEP = "sweep"
_OWN = "own"
_EMPTY = """name = "My sweep"
map = "3m"
algo = "emtc-qplex"
steps = 20_000
seeds = 2

[grid]
gate.tau_start = [0.6, 1.2]
"""


def show(*, expanded: bool) -> None:
    """Draw the form; the start button is live only while the plan is valid."""
    with st.expander("Start a sweep", icon=":material/grid_on:", expanded=expanded or "template" in st.query_params):
        text, jobs = _ask()
        plan = _read(text)
        if plan is None or jobs is None:
            st.button("Start the sweep", type="primary", disabled=True, key="sweep_invalid")
            return
        _cost(plan, jobs)
        _start(plan, jobs)


def _ask() -> tuple[str, int | None]:
    templates = list_templates()
    left, middle, right = st.columns([3, 3, 1], vertical_alignment="top")
    with left:
        names = {name: file.name for name, file in templates.items()} | {_OWN: "A file of my own"}
        text = "The paper's studies, and small versions of them that a laptop finishes."
        template = show_select("Template", names, key="template", text=text)
    with middle:
        uploaded = st.file_uploader("Sweep file", type="toml", key="sweep_upload", help="Instead of the template.")
    with right:
        jobs = config_form.ask(
            "At once", key="jobs", page="sweeps", usual=default_jobs(), low=1, high=256,
            about="Trainers at the same time [processes]; each computes on one thread.",
        )  # fmt: skip
    if uploaded is not None:
        return uploaded.getvalue().decode(errors="replace"), jobs
    if template in templates and templates[template].about:
        st.caption(escape_markdown(templates[template].about))
    known = read_template(template) if template in templates else _EMPTY
    return st.text_area("Change it here, or paste your own", known, height=260, key=f"sweep_text-{template}"), jobs


def _read(text: str) -> Plan | None:
    try:
        plan = make_plan(parse_sweep(text))
        check_plan(plan)
    except EmtcError as exc:
        for sentence in describe_error(exc):
            st.error(escape_markdown(sentence), icon=":material/error:")
        return None
    return plan


def _cost(plan: Plan, jobs: int) -> None:
    seconds, disk, basis = estimate_cost(data.database(), plan, jobs=jobs)
    columns = st.columns([1, 1, 2, 2])
    columns[0].metric("Runs", format_count(len(plan.runs)))
    columns[1].metric("Seeds", format_count(len(plan.file.seeds)), help="Of each combination")
    columns[2].metric("Expected duration", f"≈ {format_duration(seconds)}", help=f"All runs, {jobs} at once")
    columns[3].metric("Expected disk use", f"≈ {format_size(disk)}")
    st.caption(f"The speed behind it is {basis}.")
    with st.expander(f"The {len(plan.runs)} runs"):
        st.dataframe(_rows(plan), hide_index=True, alt="Planned runs: map, algorithm, what is set, seed, length.")


def _rows(plan: Plan) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {
                "Map": run.cell.map,
                "Algorithm": name_algo(run.cell.algo),
                "What": run.cell.label or "–",
                "Seed": run.seed,
                "Env steps": run.config.train.t_max,
            }
            for run in plan.runs
        ]
    )


def _start(plan: Plan, jobs: int) -> None:
    known = {sweep.id: sweep for sweep in data.sweep_list()}
    label = "Go on with this sweep" if plan.id in known else "Start the sweep"
    is_done = plan.id in known and known[plan.id].state == "finished" and len(plan.runs) <= len(known[plan.id].runs)
    if is_done:
        st.caption("Every run of this sweep has finished. Change a setting or add seeds for more.")
    idle = is_done or not messages.may_act()
    if not st.button(label, type="primary", icon=":material/play_arrow:", key="sweep_start", disabled=idle):
        return
    try:
        create_sweep(data.database(), plan, jobs=jobs)
        if plan.id not in known or not known[plan.id].has_scheduler:
            start_scheduler(data.database(), plan.id, jobs=jobs)
    except EmtcError as exc:
        messages.error(exc)
        return
    state.write(SWEEP, plan.id)
    st.cache_data.clear()
    st.rerun()


WORDS = {
    "running": "▶ running",
    "paused": "❚❚ paused",
    "finished": "✔ finished",
    "stopped": "■ stopped",
    "failed": "✖ some failed",
    "lost": "⚠ waiting",
}


def is_working(sweeps: Sequence[Sweep]) -> bool:
    """Whether runs are trained, or wait for a worker, so that the page is drawn again and again."""
    return any(sweep.state in ("running", "paused") or (sweep.state == "lost" and sweep.has_worker) for sweep in sweeps)


def show_overview(sweeps: Sequence[Sweep]) -> Sweep:
    """Draw the table and return the chosen sweep."""
    st.subheader("All sweeps")
    _table(sweeps)
    known = {sweep.id: sweep for sweep in sweeps}
    names = {sweep.id: f"{sweep.name} · {sweep.id}" for sweep in sweeps}
    text = "What is shown below; its id is in the address, so the link can be shared."
    chosen = show_select("Sweep", names, key=SWEEP, text=text)
    state.write(SWEEP, chosen)  # also the newest: tomorrow another one will be
    return known[chosen]


def make_rows(sweeps: Sequence[Sweep]) -> pd.DataFrame:
    """Turn sweeps into what the table shows."""
    rows = [
        {
            "State": WORDS[sweep.state],
            "Sweep": sweep.name,
            "Progress": 100 * sweep.progress,
            "Time left": _time_left(sweep),
            "Runs": len(sweep.runs),
            **{status.capitalize(): sweep.counts[status] for status in ("finished", "running", "queued", "failed")},
            "Id": sweep.id,
            "Created (UTC)": sweep.created_at,
        }
        for sweep in sweeps
    ]
    return pd.DataFrame(rows)


def _time_left(sweep: Sweep) -> str:
    if sweep.is_over:
        return "ended"
    left = sweep.seconds_left()
    return "–" if left is None else f"≈ {format_duration(left)}"


def _table(sweeps: Sequence[Sweep]) -> None:
    columns: dict[str, Any] = {
        "Sweep": st.column_config.TextColumn(width="medium"),
        "Progress": st.column_config.ProgressColumn(
            format=result_table.PERCENT, min_value=0, max_value=100, width="small"
        ),
        "Created (UTC)": st.column_config.DatetimeColumn(format="YYYY-MM-DD HH:mm", timezone="UTC"),
    }
    described = "Table of sweeps: state, progress, how many runs finished, run, wait or failed, and the time left."
    st.dataframe(make_rows(sweeps), hide_index=True, key="sweep_table", column_config=columns, alt=described)
