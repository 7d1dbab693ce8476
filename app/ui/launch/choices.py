"""Two questions of the Launch form: which algorithms beside the first, and what counts as a success.

Several algorithms are asked the same task, length, settings and seeds, as one sweep. A success is asked for where
nothing in the environment ever says so.
"""

from collections.abc import Mapping, Sequence

import streamlit as st

from app.analysis.format import escape_markdown, format_count, format_duration, format_run_count, format_size
from app.analysis.settings import name_algo
from app.jobs import launch_request
from app.jobs.env_probe import Probe, describe_env
from app.jobs.launch import find_missing_success_rule
from app.jobs.launch_request import ALGO, ALSO, Request
from app.jobs.sweeps.control import check_plan, create_sweep, default_jobs, estimate_cost, start_scheduler
from app.jobs.sweeps.plan import Plan, plan_algorithms
from app.ui import data, messages
from app.ui.launch import address
from emtc_core.config.run import RunConfig, list_algos
from emtc_core.errors import EmtcError

_ABOUT = "The same is asked of each, with every seed: a sweep, whose runs wait for each other."


def ask(request: Request) -> None:
    """Draw the choice of further algorithms."""
    options = [algo for algo in list_algos() if algo != request.choices[ALGO]]
    bound = address.bind(ALSO, "also", list(request.other_algos), write=lambda chosen: ",".join(chosen))
    st.multiselect("And also", options, format_func=name_algo, placeholder="one algorithm alone", help=_ABOUT, **bound)
    address.mark(request.faults, ALSO)


def plan(config: RunConfig, request: Request, name: str) -> Plan:
    """List the runs.

    Raises:
        EmtcError: If one of the algorithms cannot have these settings, or this machine cannot run it.
    """
    planned = plan_algorithms(config, (request.choices[ALGO], *request.other_algos), request.seeds, name=name)
    check_plan(planned)
    return planned


def tell_cost(planned: Plan) -> str:
    """Draw what all runs will take; return where the speed comes from."""
    jobs = default_jobs()
    seconds, disk, basis = estimate_cost(data.database(), planned, jobs=jobs)
    at_once = f"{jobs} at once, one for each core of this machine" if jobs > 1 else "one after the other"
    for label, value, about in (
        ("Expected duration, all", f"≈ {format_duration(seconds)}", f"{basis}; {at_once}"),
        ("Expected disk use, all", f"≈ {format_size(disk)}", "With every snapshot of the memory"),
        ("Runs", format_count(len(planned.runs)), f"A sweep: {at_once}."),
    ):
        st.metric(label, value, help=escape_markdown(about), width="content")
    return basis


def label(planned: Plan) -> str:
    """What the button says."""
    return f"Start a sweep of {format_run_count(len(planned.runs))}"


def start(planned: Plan) -> None:
    """Queue the runs, start their scheduler, and open the sweep."""
    try:
        create_sweep(data.database(), planned, jobs=default_jobs())
        start_scheduler(data.database(), planned.id, jobs=default_jobs())
    except EmtcError as exc:
        messages.error(exc)
        return
    st.cache_data.clear()
    st.switch_page("../pages/sweeps.py", query_params={"sweep": planned.id})


SUCCESS, THRESHOLD = "memory.success", "memory.success_threshold"
KEYS = frozenset({SUCCESS, THRESHOLD})
_BY_RETURN, _FLAG = "return_threshold", "flag"
_RULES = {_BY_RETURN: "an episode return of at least", _FLAG: "only what the environment says"}


def ask_success(
    texts: Mapping[str, str], request: Request, maps: Mapping[str, Sequence[str]]
) -> tuple[RunConfig | None, frozenset[str]]:
    """Ask for a rule where a run needs one.

    Returns:
        The configuration with the rule, None while there is none, and the settings that were asked for here.
    """
    free = launch_request.check_request({key: text for key, text in texts.items() if key not in KEYS}, maps).config
    seen = _find(free) if free else None
    if free is None or seen is None:
        return request.config, frozenset()
    with st.container(border=True, key="success-rule"):
        st.markdown("**What counts as a success?**")
        st.caption(
            f"In random play {escape_markdown(describe_env(free.env))} never said who won, and without a success "
            f"there is "
            f"no incentive (ρ stays 0). {escape_markdown(seen.returns_text.capitalize())} [env return]."
        )
        left, right = st.columns(2, vertical_alignment="bottom")
        with left:
            answer = {SUCCESS: _ask_rule(texts, free)}
        if answer[SUCCESS] == _BY_RETURN:
            with right:
                answer[THRESHOLD] = _ask_threshold(texts, request, free)
    if not answer.get(THRESHOLD, "-"):
        return None, KEYS
    return launch_request.check_request({**texts, **answer}, maps).config, KEYS


def _find(config: RunConfig) -> Probe | None:
    """What random play showed if a rule is wanted; what cannot be tried is refused further down, in its words."""
    try:
        with st.spinner("Trying the environment …"):
            return find_missing_success_rule(config)
    except EmtcError:
        return None


def _ask_rule(texts: Mapping[str, str], config: RunConfig) -> str:
    rule = texts.get(SUCCESS, _BY_RETURN)
    bound = address.bind(SUCCESS, f"success-{config.env.map}", rule)
    st.radio(
        "Success", list(_RULES), format_func=_RULES.__getitem__, **bound, horizontal=True, help=f"`--set {SUCCESS}=…`"
    )
    return rule


def _ask_threshold(texts: Mapping[str, str], request: Request, config: RunConfig) -> str:
    known = config.memory.success_threshold if config.memory.success == _BY_RETURN else None
    usual = launch_request.write_text(known)
    shown = texts.get(THRESHOLD, usual)
    st.text_input(
        "Success threshold [env return]", **address.bind(THRESHOLD, f"threshold-{config.env.map}", shown, usual=usual),
        placeholder="type a return", help="Undiscounted sum of the team's rewards over an episode, in the "
        f"environment's own unit, before train.reward_scale.  \n`--set {THRESHOLD}=…`",
    )  # fmt: skip
    address.mark(request.faults, THRESHOLD)
    if not shown:
        st.info("Type the return from which on an episode is a success.", icon=":material/edit:")
    return shown
