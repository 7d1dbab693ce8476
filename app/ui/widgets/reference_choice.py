"""The control that selects the variant with which all others are compared. The URL parameter is `reference`."""

import streamlit as st

from app.analysis.curves import Curves
from app.figures.named.comparisons import REFERENCE, find_reference
from app.figures.options import Options
from app.ui.page_state import Choice

_REFERENCE = Choice(REFERENCE.parameter, "compare", "sweeps")


def choose_reference(curves: Curves, options: Options) -> Options:
    """Draw the control if there are two variants; return the options with the selected variant.

    Args:
        curves: The variants, selected for final numbers.
        options: The options of the table of comparisons.
    """
    default = find_reference(curves)
    methods = [default, *(method for method in curves.methods if method != default)]
    if len(methods) < 2:
        return options
    reference = st.selectbox(
        REFERENCE.label, **_REFERENCE.bind(methods, curves.methods.__getitem__), width=350, help=REFERENCE.help
    )
    return Options({**options.values, REFERENCE.name: str(reference)})
