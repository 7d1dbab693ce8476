"""The benchmarks of `emtc bench`. Each module has a function `run()` that returns results with their budgets."""

from typing import TypedDict


class BenchResult(TypedDict):
    """One measured number, as a row of the report."""

    name: str
    value: float
    unit: str
    budget: float | None
    met: bool | None
    reference: str


def make_result(
    name: str,
    value: float,
    unit: str,
    budget: float | None = None,
    reference: str = "",
    *,
    met: bool | None = None,
    digits: int | None = None,
) -> BenchResult:
    """Make one row of the report. A rate meets its budget if value >= budget, any other value if value <= budget.

    Args:
        name: Dotted name: benchmark, quantity, and the case if there are several.
        value: The measured value, in `unit`.
        unit: A unit that ends in "/s" marks a rate.
        budget: The limit, or None if there is none.
        reference: A number to compare with, or the load during the measurement.
        met: Whether the budget is met, if the rule above does not apply.
        digits: Number of decimals in the report, or None for all. `met` is computed from the unrounded value.
    """
    if met is None and budget is not None:
        met = value >= budget if unit.endswith("/s") else value <= budget
    rounded = value if digits is None else round(value, digits or None)  # 0 digits give an integer
    return {"name": name, "value": rounded, "unit": unit, "budget": budget, "met": met, "reference": reference}
