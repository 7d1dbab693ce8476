"""Several runs that Launch starts as one sweep: several seeds, or more algorithms with the same task and settings."""

import streamlit as st

from app.analysis.format import escape_markdown, format_count, format_duration, format_run_count, format_size
from app.analysis.settings import name_algo
from app.jobs.estimate import describe_speed
from app.jobs.launch_request import ALGO, OTHER_ALGOS, Request
from app.jobs.sweeps.control import check_plan, default_jobs, estimate_cost, start_sweep
from app.jobs.sweeps.plan import Plan, plan_algorithms
from app.ui import data, messages
from app.ui.launch import fields
from app.ui.page_state import SWEEP
from emtc_core.config.run import RunConfig, list_algos
from emtc_core.errors import EmtcError
from storage.files import describe_files_folder

_HELP = "Trains these algorithms too, with the same settings and seeds. The runs form a sweep and are queued."


def choose_algos(request: Request) -> None:
    """Draw the choice of more algorithms."""
    options = [algo for algo in list_algos() if algo != request.choices[ALGO]]
    bound = fields.bind(OTHER_ALGOS, "also", list(request.other_algos), write=lambda algos: ",".join(algos))
    st.multiselect("Compare with", options, format_func=name_algo, placeholder="none", help=_HELP, **bound)
    fields.show_fault(request.faults, OTHER_ALGOS)


def make_plan(config: RunConfig, request: Request, name: str) -> Plan:
    """Plan the runs.

    Raises:
        EmtcError: If one of the algorithms cannot have these settings, or this machine cannot run it.
    """
    plan = plan_algorithms(config, (request.choices[ALGO], *request.other_algos), request.seeds, name=name)
    check_plan(plan, jobs=default_jobs(plan))
    return plan


def show_start(plan: Plan) -> None:
    """Draw the expected cost of all runs, and the button that starts them."""
    jobs = default_jobs(plan)
    seconds, disk_bytes, basis = estimate_cost(data.database(), plan, jobs=jobs)
    at_once = "one after the other"
    if jobs > 1:
        at_once = f"{jobs} at once, one for each core of this machine"
    with st.container(horizontal=True, vertical_alignment="center", gap="medium", key="launch_cost"):
        for label, value, help_text in (
            ("Expected duration, all", f"≈ {format_duration(seconds)}", f"{basis}; {at_once}"),
            ("Expected disk use, all", f"≈ {format_size(disk_bytes)}", "With all snapshots of the memory"),
            ("Runs", format_count(len(plan.runs)), f"A sweep: {at_once}."),
        ):
            st.metric(label, value, help=escape_markdown(help_text), width="content")
        is_pressed = st.button(
            f"Start a sweep of {format_run_count(len(plan.runs))}", type="primary", icon=":material/rocket_launch:",
            key="start", disabled=not messages.may_act(),
        )  # fmt: skip
    st.caption(escape_markdown(f"{describe_speed(basis)} {describe_files_folder(data.database())}"))
    if is_pressed and messages.may_act():
        _start(plan, jobs)


def _start(plan: Plan, jobs: int) -> None:
    """Start the sweep and open its page."""
    try:
        start_sweep(data.database(), plan, jobs=jobs)
    except EmtcError as exc:
        messages.error(exc)
        return
    st.cache_data.clear()
    st.switch_page("../pages/sweeps.py", query_params={SWEEP.name: plan.id})
