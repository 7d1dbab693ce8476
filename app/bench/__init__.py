"""What `emtc bench` runs: each benchmark a module with `run()`, which returns figures with their budgets."""

from typing import Any

Figure = dict[str, Any]


def make_figure(
    name: str,
    value: float,
    unit: str,
    budget: float | None = None,
    reference: str = "",
    *,
    met: bool | None = None,
    digits: int | None = None,
) -> Figure:
    """Make one row of the report; rates must reach their budget, all else must stay within it.

    Args:
        name: As the contract has it, with what it was measured for.
        value: What was measured, in `unit`.
        unit: One that ends in "/s" is a rate.
        budget: None where there is nothing to meet.
        reference: What the value is to be compared with, or under which load it was taken.
        met: The verdict, where the rule above is not the one.
        digits: Decimals that are kept; None keeps all. The verdict is of the whole value.
    """
    if met is None and budget is not None:
        met = value >= budget if unit.endswith("/s") else value <= budget
    shown = value if digits is None else round(value, digits or None)  # with None an integer
    return {"name": name, "value": shown, "unit": unit, "budget": budget, "met": met, "reference": reference}
