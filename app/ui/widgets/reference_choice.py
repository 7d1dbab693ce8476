"""The control that selects the variant with which all others are compared. The URL parameter is `reference`."""

from app.analysis.curves import Curves
from app.figures.named.comparisons import ReferenceOptions, find_reference
from app.ui.widgets.option_widget import OptionWidget

_REFERENCE = OptionWidget(ReferenceOptions, "reference", "compare", "sweeps")


def choose_reference(curves: Curves) -> dict[str, str]:
    """Draw the control if there are two variants; return the selected variant by the name of the option.

    Args:
        curves: The variants, selected for final numbers.
    """
    default = find_reference(curves)
    methods = [default, *(method for method in curves.methods if method != default)]
    if len(methods) < 2:
        return {}
    return {_REFERENCE.option.name: str(_REFERENCE.draw(methods, curves.methods.__getitem__, width=350))}
