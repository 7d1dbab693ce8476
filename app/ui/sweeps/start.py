"""The form that starts a sweep from a template, an uploaded file or pasted text. It shows errors before the start."""

from typing import Final

import pandas as pd
import streamlit as st

from app.analysis.format import escape_markdown, format_count, format_duration, format_size
from app.analysis.settings import name_algo
from app.jobs.estimate import describe_speed
from app.jobs.gpu import describe_mps, find_gpu
from app.jobs.sweeps.control import check_plan, default_jobs, estimate_cost, start_sweep
from app.jobs.sweeps.file import list_templates, parse_sweep, read_template
from app.jobs.sweeps.plan import Plan, make_plan
from app.ui import data, messages
from app.ui.page_state import SWEEP, Choice, Text
from app.ui.widgets import config_form
from emtc_core.errors import EmtcError, describe_error
from storage.runs.sweeps import list_sweeps

# A page parameter: its name in the URL, then the page that has it. `bind` connects it with a widget, `write` sets it.
_TEMPLATE: Final = Choice("template", "sweeps")
_JOBS: Final = Text("jobs", "sweeps")
_CUSTOM: Final = "own"
"""Value of the URL parameter `template` that selects a sweep written by the user."""
_CUSTOM_TEXT: Final = """name = "My sweep"
map = "3m"
algo = "emtc-qplex"
steps = 20_000
seeds = 2

[grid]
gate.tau_start = [0.6, 1.2]
"""


def show(*, expanded: bool) -> None:
    """Draw the form; the start button is enabled only if the plan is valid."""
    with st.expander("Start a sweep", icon=":material/grid_on:", expanded=expanded or _TEMPLATE.is_in_url):
        text, jobs = _read_form()
        plan = _make_plan(text, jobs)
        if plan is None or jobs is None:
            st.button("Start the sweep", type="primary", disabled=True, key="sweep_invalid")
            return
        _show_cost(plan, jobs)
        _show_start_button(plan, jobs)


def _read_form() -> tuple[str, int | None]:
    """Draw the inputs; return the text of the sweep file and the number of parallel runs, None if it is invalid."""
    templates = list_templates()
    left, middle, right = st.columns([3, 3, 1], vertical_alignment="top")
    with left:
        names = {name: file.name for name, file in templates.items()} | {_CUSTOM: "Custom sweep"}
        selected = st.selectbox(
            "Template", **_TEMPLATE.bind(list(names), names.__getitem__),
            help="The paper's studies, and small versions of them for a laptop",
        )  # fmt: skip
    with middle:
        upload = st.file_uploader("Sweep file", type="toml", key="sweep_upload", help="Replaces the template")
    with right:
        jobs = config_form.integer_field(
            "Parallel runs", key=_JOBS, default=default_jobs(), low=1, high=256,
            help_text="Number of runs that are trained at a time. Each uses one thread.",
        )  # fmt: skip
    if upload is not None:
        return upload.getvalue().decode(errors="replace"), jobs
    template = str(selected)
    if template in templates and templates[template].about:
        st.caption(escape_markdown(templates[template].about))
    text = read_template(template) if template in templates else _CUSTOM_TEXT
    text = st.text_area(
        "Sweep file (TOML), editable", text, height=260, key=f"sweep_text-{template}", persist_state="session"
    )
    return text, jobs


def _make_plan(text: str, jobs: int | None) -> Plan | None:
    """Make the plan of a sweep file; show the errors of an invalid file and return None.

    If the number of parallel runs is invalid, `jobs` is None. The other errors of the plan are shown also in this case.
    """
    try:
        plan = make_plan(parse_sweep(text))
        check_plan(plan, jobs=jobs)
    except EmtcError as exc:
        for sentence in describe_error(exc):
            st.error(escape_markdown(sentence), icon=":material/error:")
        return None
    return plan


def _show_cost(plan: Plan, jobs: int) -> None:
    """Draw the number of runs, the expected duration and disk use, the GPU, and the list of the runs."""
    seconds, disk_bytes, speed_source = estimate_cost(data.database(), plan, jobs=jobs)
    columns = st.columns([1, 1, 2, 2])
    columns[0].metric("Runs", format_count(len(plan.runs)))
    columns[1].metric("Seeds", format_count(len(plan.file.seeds)), help="Seeds of each combination")
    columns[2].metric("Expected duration", f"≈ {format_duration(seconds)}", help=f"All runs, {jobs} in parallel")
    columns[3].metric("Expected disk use", f"≈ {format_size(disk_bytes)}")
    st.caption(describe_speed(speed_source))
    if any(run.config.train.device != "cpu" for run in plan.runs) and (gpu := find_gpu()) is not None:
        # MPS is the NVIDIA Multi-Process Service, which lets several runs compute on one GPU at the same time
        st.caption(f"{escape_markdown(gpu.name)}, {format_size(gpu.free_bytes)} free. {describe_mps()}")
    # `cell` is a combination of the values of the grid, without a seed
    rows = [
        {
            "Map": run.cell.map,
            "Algorithm": name_algo(run.cell.algo),
            "Variant": run.cell.label or "–",
            "Seed": run.seed,
            "Env steps": run.config.train.t_max,
        }
        for run in plan.runs
    ]
    with st.expander(f"Runs ({len(plan.runs)})"):
        st.dataframe(
            pd.DataFrame(rows), hide_index=True, alt="Planned runs: map, algorithm, variant, seed and env steps."
        )


def _show_start_button(plan: Plan, jobs: int) -> None:
    """Draw the button that starts the sweep, or resumes it if the database contains a sweep of the same plan."""
    existing = next((sweep for sweep in list_sweeps(data.database()) if sweep.id == plan.id), None)
    label = "Start the sweep" if existing is None else "Resume the sweep"
    is_finished = False
    if existing is not None and existing.state == "finished":
        # the file can have more seeds than the finished sweep; then the sweep is resumed
        is_finished = len(plan.runs) <= len(existing.runs)
    if is_finished:
        st.caption("All runs of this sweep have finished. To train more runs, change a setting or add seeds.")
    is_disabled = is_finished or not messages.may_act()
    if not st.button(label, type="primary", icon=":material/play_arrow:", key="sweep_start", disabled=is_disabled):
        return
    try:
        start_sweep(data.database(), plan, jobs=jobs)
    except EmtcError as exc:
        messages.error(exc)
        return
    SWEEP.write(plan.id)  # into the URL, so that the page selects the sweep
    st.cache_data.clear()
    st.rerun()
