"""The choice of the win rate by which runs are compared. The URL parameter is `rate`."""

import streamlit as st

from app.analysis.quantities import RATE_NAMES, RateName
from app.analysis.rates import REASON_FOR_ROBUST
from app.figures.options import RATE
from app.ui import in_url

PARAMETER = RATE.parameter
_HELP = (
    f"**Auto**: robust on skirmish, because {REASON_FOR_ROBUST}; greedy on a task with a run without robust episodes. "
    "**Greedy**: SMAC's protocol. **Robust**: greedy episodes from shifted starts. **Training**: with exploration."
)


def choose_rate(page: str, *, more: str = "") -> RateName:
    """Draw the control.

    Args:
        page: The page's path, such as "compare".
        more: A sentence about this page for the tooltip.
    """
    chosen = st.segmented_control(
        RATE.label, RATE_NAMES, required=True, format_func=RATE.choices.__getitem__,
        help=f"{_HELP} {more}".strip(), **in_url.key_of(page, PARAMETER, RATE_NAMES),
    )  # fmt: skip
    return next(each for each in RATE_NAMES if each == chosen)
