"""Which win rate are runs compared by? One control, whose choice stands in the URL as `rate`."""

import streamlit as st

from app.analysis.quantities import RATE_NAMES, RateName
from app.analysis.rates import REASON_FOR_ROBUST
from app.ui import in_url

PARAMETER = "rate"
_HELP = (
    f"**Auto**: on skirmish robust, because {REASON_FOR_ROBUST}; greedy on a task where a run has no robust "
    f"evaluation. "
    "**Greedy**: SMAC's protocol. **Robust**: greedy episodes from shifted starts. **Training**: with exploration."
)


def choose_rate(page: str, *, more: str = "") -> RateName:
    """Draw the control.

    Args:
        page: The page's path, such as "compare".
        more: What the help says about this page.
    """
    chosen = st.segmented_control(
        "Win rate of episodes", RATE_NAMES, required=True, format_func=str.capitalize,
        help=f"{_HELP} {more}".strip(), **in_url.key_of(page, PARAMETER, RATE_NAMES),
    )  # fmt: skip
    return next(each for each in RATE_NAMES if each == chosen)
