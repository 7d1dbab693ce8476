"""The choice on Launch which episodes count as a success, for environments that possibly report no success.

The memory stores which episodes were a success. Without one, the method adds no incentive to the reward. ρ is the
fraction of the visits of a stored state that belong to successful episodes, as the mean over the next states.
"""

from collections.abc import Mapping, Sequence

import streamlit as st

from app.analysis.format import escape_markdown
from app.jobs import launch_request
from app.jobs.launch_request import Request
from app.ui.launch import fields
from emtc_core.config.run import RunConfig
from emtc_core.config.values import format_argument
from emtc_core.envs.registry import describe_env, is_external

SUCCESS = "memory.success"
THRESHOLD = "memory.success_threshold"
KEYS = frozenset({SUCCESS, THRESHOLD})
_BY_RETURN = "return_threshold"
_FLAG = "flag"
_RULES = {_FLAG: "what the environment reports", _BY_RETURN: "an episode return of at least"}


def choose_rule(
    texts: Mapping[str, str], request: Request, maps: Mapping[str, Sequence[str]]
) -> tuple[RunConfig | None, frozenset[str]]:
    """Draw the choice of a rule if the run needs successes and its environment is a plug-in or the user's module.

    Args:
        texts: Field of the form → text.
        request: The checked form.
        maps: Environment → its maps.

    Returns:
        The configuration with the rule, or None if the rule is incomplete. The keys of the settings that are drawn
        here.
    """
    # An incomplete rule is a fault, so the form is checked without the rule first.
    other_texts = {key: text for key, text in texts.items() if key not in KEYS}
    config = launch_request.check_request(other_texts, maps).config
    if config is None or not (config.uses_incentive and is_external(config.env)):
        return request.config, frozenset()
    with st.container(border=True, key="success-rule"):
        st.markdown("**What counts as a success?**")
        name = escape_markdown(describe_env(config.env))
        st.caption(
            f"{name} reports a success if an info of an agent contains won, is_success or battle_won. Without a "
            "success there is no incentive (ρ stays 0)."
        )
        left, right = st.columns(2, vertical_alignment="bottom")
        default_rule = config.memory.success
        rule = texts.get(SUCCESS, default_rule)
        rule_texts = {SUCCESS: rule}
        with left:
            st.radio(
                "Success", list(_RULES), format_func=_RULES.__getitem__, horizontal=True, help=f"`--set {SUCCESS}=…`",
                **fields.bind(SUCCESS, f"success-{config.env.map}", rule, default=default_rule),
            )  # fmt: skip
        if rule == _BY_RETURN:
            with right:
                rule_texts[THRESHOLD] = _choose_threshold(texts, request, config)
    if rule == _BY_RETURN and not rule_texts[THRESHOLD]:
        return None, KEYS
    return launch_request.check_request({**texts, **rule_texts}, maps).config, KEYS


def _choose_threshold(texts: Mapping[str, str], request: Request, config: RunConfig) -> str:
    """Draw the field of the threshold and its fault; return its text."""
    preset_value = config.memory.success_threshold if config.memory.success == _BY_RETURN else None
    default = format_argument(preset_value)
    text = texts.get(THRESHOLD, default)
    st.text_input(
        "Success threshold [env return]", placeholder="Type a return",
        help="Undiscounted sum of the team's rewards over an episode, in the environment's unit, before "
        f"train.reward_scale.  \n`--set {THRESHOLD}=…`",
        **fields.bind(THRESHOLD, f"threshold-{config.env.map}", text, default=default),
    )  # fmt: skip
    fields.show_fault(request.faults, THRESHOLD)
    if not text:
        st.info("Type the smallest episode return that counts as a success.", icon=":material/edit:")
    return text
