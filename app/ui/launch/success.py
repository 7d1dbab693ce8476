"""What counts as a success, asked for where nothing in the environment ever says so."""

from collections.abc import Mapping, Sequence

import streamlit as st

from app.analysis.format import escape_markdown
from app.jobs import launch_request
from app.jobs.env_probe import Probe
from app.jobs.launch import find_unruled
from app.jobs.launch_request import Request
from app.ui.launch import address
from emtc_core.config.run import RunConfig
from emtc_core.errors import EmtcError

SUCCESS, THRESHOLD = "memory.success", "memory.success_threshold"
KEYS = frozenset({SUCCESS, THRESHOLD})
_BY_RETURN, _FLAG = "return_threshold", "flag"
_RULES = {_BY_RETURN: "an episode return of at least", _FLAG: "only what the environment says"}


def ask(
    texts: Mapping[str, str], request: Request, maps: Mapping[str, Sequence[str]]
) -> tuple[RunConfig | None, frozenset[str]]:
    """Ask for a rule where a run needs one.

    Returns:
        The configuration with the rule, None while there is none, and the settings that were asked for here.
    """
    free = launch_request.check({key: text for key, text in texts.items() if key not in KEYS}, maps).config
    seen = _find(free) if free else None
    if free is None or seen is None:
        return request.config, frozenset()
    with st.container(border=True, key="success-rule"):
        st.markdown("**What counts as a success?**")
        st.caption(
            f"In random play {escape_markdown(free.env.map)} never said who won, and without a success there is no "
            f"incentive (ρ stays 0). {escape_markdown(seen.random_play.capitalize())} [env return]."
        )
        left, right = st.columns(2, vertical_alignment="bottom")
        with left:
            answer = {SUCCESS: _ask_rule(texts, free)}
        if answer[SUCCESS] == _BY_RETURN:
            with right:
                answer[THRESHOLD] = _ask_threshold(texts, request, free)
    if not answer.get(THRESHOLD, "-"):
        return None, KEYS
    return launch_request.check({**texts, **answer}, maps).config, KEYS


def _find(config: RunConfig) -> Probe | None:
    """What random play showed if a rule is wanted; what cannot be tried is refused further down, in its words."""
    try:
        with st.spinner("Trying the environment …"):
            return find_unruled(config)
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
