"""The control that selects the win rate by which runs are compared. The URL parameter is `rate`."""

import streamlit as st

from app.analysis.quantities import RATE_NAMES, RateName
from app.analysis.rates import REASON_FOR_ROBUST
from app.figures.options import RATE
from app.ui.page_state import Choice

_RATE = Choice(RATE.parameter, "compare", "sweeps", pins_default=True)
_HELP = (
    f"**Auto**: robust on skirmish, because {REASON_FOR_ROBUST}; greedy on tasks where a run has no robust evaluation. "
    "**Greedy**: SMAC's protocol. **Robust**: greedy episodes from shifted start positions. "
    "**Training**: with exploration."
)


def choose_rate(*, more: str = "") -> RateName:
    """Draw the control and return the selected win rate.

    Args:
        more: Text about this page that is appended to the tooltip.
    """
    selected = st.segmented_control(
        RATE.label, **_RATE.bind(RATE_NAMES, RATE.choices.__getitem__), required=True, help=f"{_HELP} {more}".strip()
    )
    return next(name for name in RATE_NAMES if name == selected)
