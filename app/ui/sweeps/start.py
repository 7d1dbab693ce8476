"""Start a sweep from a template, an uploaded or a pasted file; its faults are told before anything is created."""

import pandas as pd
import streamlit as st

from app.analysis.format import count, duration, escape_markdown, size
from app.jobs.sweeps.control import check_plan, create_sweep, default_jobs, expected_cost, start_scheduler
from app.jobs.sweeps.file import parse_sweep
from app.jobs.sweeps.plan import Plan, make_plan
from app.jobs.sweeps.templates import list_templates, read_template
from app.ui import data, messages, state
from app.ui.sweeps import select_by_id
from emtc_core.errors import EmtcError

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
        if plan is None:
            st.button("Start the sweep", type="primary", disabled=True, key="sweep_invalid")
            return
        _cost(plan, jobs)
        _start(plan, jobs)


def _ask() -> tuple[str, int]:
    templates = list_templates()
    left, middle, right = st.columns([3, 3, 1], vertical_alignment="top")
    with left:
        names = {name: file.name for name, file in templates.items()} | {_OWN: "A file of my own"}
        text = "The paper's studies, and small versions of them that a laptop finishes."
        template = select_by_id.show("Template", names, key="template", text=text)
    with middle:
        uploaded = st.file_uploader("Sweep file", type="toml", key="sweep_upload", help="Instead of the template.")
    with right:
        jobs = st.number_input(
            "At once", min_value=1, max_value=256, value=default_jobs(), key="jobs", bind=state.bind_int("jobs"),
            help="Trainers at the same time [processes]; each computes on one thread.",
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
        for sentence in str(exc).splitlines():
            st.error(escape_markdown(sentence), icon=":material/error:")
        return None
    return plan


def _cost(plan: Plan, jobs: int) -> None:
    seconds, disk, basis = expected_cost(data.database(), plan, jobs=jobs)
    columns = st.columns([1, 1, 2, 2])
    columns[0].metric("Runs", count(len(plan.runs)))
    columns[1].metric("Seeds", count(len(plan.file.seeds)), help="Of each combination")
    columns[2].metric("Expected duration", f"≈ {duration(seconds)}", help=f"All runs, {jobs} at once")
    columns[3].metric("Expected disk use", f"≈ {size(disk)}")
    st.caption(f"The speed behind it is {basis}.")
    with st.expander(f"The {len(plan.runs)} runs"):
        st.dataframe(_rows(plan), hide_index=True, alt="Planned runs: map, algorithm, what is set, seed, length.")


def _rows(plan: Plan) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {
                "Map": run.cell.map,
                "Algorithm": run.cell.algo,
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
