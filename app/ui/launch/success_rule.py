"""What counts as a success, asked for where nothing in the environment ever says so."""

import math

import streamlit as st

from app.analysis.format import escape_markdown, number
from app.jobs.env_probe import Probe
from app.jobs.launch import find_unruled
from emtc_core.config.run import RunConfig
from emtc_core.errors import EmtcError

SUCCESS, THRESHOLD = "memory.success", "memory.success_threshold"
KEYS = frozenset({SUCCESS, THRESHOLD})
_RULES = {"return_threshold": "an episode return of at least", "flag": "only what the environment says"}


def find(config: RunConfig) -> Probe | None:
    """Tell what random play showed if a rule is wanted; what cannot be tried is refused further down, in its words."""
    try:
        with st.spinner("Trying the environment …"):
            return find_unruled(config)
    except EmtcError:
        return None


def ask(config: RunConfig, seen: Probe) -> dict[str, object] | None:
    """Draw the question and return the settings that answer it, or None while it is open."""
    map = config.env.map
    with st.container(border=True, key="success-rule"):
        st.markdown("**What counts as a success?**")
        st.caption(
            f"In random play {escape_markdown(map)} never said who won, and without a success there is no incentive "
            f"(ρ stays 0). {escape_markdown(seen.random_play.capitalize())} [env return]."
        )
        left, right = st.columns(2, vertical_alignment="bottom")
        rule = left.radio(
            "Success", list(_RULES), format_func=_RULES.__getitem__, key=f"success-{map}", horizontal=True,
            help=f"`--set {SUCCESS}=…`",
        )  # fmt: skip
        if rule == "flag":
            return {SUCCESS: "flag"}
        known = number(config.memory.success_threshold, 6) if config.memory.success == "return_threshold" else ""
        typed = right.text_input(
            "Success threshold [env return]", value=known, key=f"threshold-{map}-{known}",
            placeholder="type a return", help="Undiscounted sum of the team's rewards over an episode, in the "
            f"environment's own unit, before train.reward_scale.  \n`--set {THRESHOLD}=…`",
        )  # fmt: skip
        return _read(typed.strip())


def _read(typed: str) -> dict[str, object] | None:
    if not typed:
        st.info("Type the return from which on an episode is a success.", icon=":material/edit:")
        return None
    try:
        threshold = float(typed)
    except ValueError:
        threshold = math.nan
    if not math.isfinite(threshold):
        st.error(f'{THRESHOLD} must be a number, got "{escape_markdown(typed[:40])}".', icon=":material/error:")
        return None
    return {SUCCESS: "return_threshold", THRESHOLD: threshold}
