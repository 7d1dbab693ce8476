"""The widget that selects the reference: the variant with which all other variants are compared.

A variant is an algorithm with its settings, over all its seeds.
"""

from app.analysis.curves import Curves
from app.figures.named.comparisons import ReferenceOptions, find_reference
from app.ui.widgets.option_widget import OptionWidget

_REFERENCE = OptionWidget(ReferenceOptions, "reference", "compare", "sweeps")


def choose_reference(curves: Curves) -> dict[str, str]:
    """Draw the widget if there are at least two variants; return the option `reference`, for `ReferenceOptions`.

    Args:
        curves: Curves of the variants, without those that have no final numbers.
    """
    default = find_reference(curves)
    methods = [default, *(method for method in curves.methods if method != default)]
    if len(methods) < 2:
        return {}
    selected = _REFERENCE.draw(methods, curves.methods.__getitem__, width=350)
    return {_REFERENCE.option.name: str(selected)}
