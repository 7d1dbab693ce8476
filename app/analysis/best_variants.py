"""The best variants of compared runs: those with the highest mean of the final win rate over seeds, with ties.

A variant is an algorithm with its settings. `app.analysis.finals` defines the final win rate.
"""

from typing import Final

from app.analysis.aggregates import select_finite
from app.analysis.curves import Curves, format_range
from app.analysis.finals import LAST_TENTH, compute_final_rates, get_final_title
from app.analysis.format import format_percent

_DIGITS: Final = 12
"""Decimals of a mean. Means that differ only by rounding errors are equal."""
_MAX_NAMED: Final = 4
"""Maximum number of tied variants whose names are listed."""


def describe_best_variants(curves: Curves) -> list[str]:
    """Write one sentence per task: which variants have the highest mean of the final win rate over seeds.

    Args:
        curves: Win rates of the compared runs, cut to one budget per task.
    """
    sentences = []
    for task in curves.tasks:
        groups = curves.on_task(task).by_variant
        rated_groups: list[tuple[Curves, int, float]] = []  # runs of a variant, number of their final rates, and mean
        for group in groups:
            rates = select_finite(compute_final_rates(group, LAST_TENTH))
            if len(rates):
                rated_groups.append((group, len(rates), round(float(rates.mean()), _DIGITS)))
        if not rated_groups:
            continue
        highest_mean = max(mean for _, _, mean in rated_groups)
        best = [(group, n) for group, n, mean in rated_groups if mean == highest_mean]
        counts = [n for _, n in best]
        seeds = "1 seed each" if max(counts) == 1 else f"mean of {format_range(counts)} seeds"
        if len(best) == 1:
            seeds = seeds.removesuffix(" each")
        title = get_final_title(LAST_TENTH, curves.measure.at(task)).lower()
        number = f"{title}, {format_percent(highest_mean, 1)} ({seeds})"
        names = [f"“{group.variant.name}”{group.mark}" for group, _ in best]
        if len(best) == 1:
            sentences.append(f"Best on {task}: {names[0]} has the highest {number}.")
            continue
        more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
        tie = f"a tie of {len(best)} of {len(rated_groups)} variants at the highest {number}"
        sentences.append(f"Best on {task}: {tie}: {', '.join(names[:_MAX_NAMED])}{more}.")
    return sentences
