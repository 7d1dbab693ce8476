"""Which win rate stands for the end of a run, and how often it fell after it had once been won.

While a policy forms, successive evaluations swing between 1 and 0, so that the last one alone is a draw: unless it is
asked for, a run's final win rate is the mean of the evaluations in the last tenth of its budget. What lives here: both
numbers of one run, and the words that say which one a table shows. What does not: which runs count
(`app.analysis.series`), what a cell says (`app.analysis.win_rates`).
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np

from app.analysis.quantities import WIN_RATE, Quantity
from app.analysis.series import Seed
from app.analysis.statistics import Curve, Values

FinalRule = Literal["last-tenth", "last"]
FINAL_RULES: tuple[FinalRule, ...] = get_args(FinalRule)
LAST_TENTH: FinalRule = "last-tenth"
FINAL_NAMES: dict[FinalRule, str] = {"last-tenth": "final win rate", "last": "last win rate"}
FINAL_MEANINGS: dict[FinalRule, str] = {
    "last-tenth": "mean of the evaluations in the last tenth of the budget",
    "last": "that of the last evaluation alone",
}

MADE_IT = 0.9
"""A run has made it at its first evaluation of at least this win rate."""
FALLEN = 0.5
"""An evaluation after that is a fall if its win rate is below this."""
_DIGITS = 12  # so that equal means of unequal evaluations are a tie, whatever their sums round to
_NAMED = 5


class Falls(NamedTuple):
    """What came after a run's first evaluation of at least `MADE_IT`."""

    falls: int
    """Evaluations below `FALLEN`."""
    after: int
    """All evaluations after that first one."""

    @property
    def share(self) -> float:
        """The falls among them; NaN where there is none."""
        return self.falls / self.after if self.after else np.nan


def last_tenth(seed: Seed) -> Values:
    """Give the evaluations in the last tenth of the budget: those at more than nine tenths of its env steps."""
    if not seed.target_steps:
        return np.empty(0)
    return seed.curve.values[10 * seed.curve.steps > 9 * seed.target_steps]


def final_rate(seed: Seed, rule: FinalRule) -> float:
    """Give the win rate at the end of a run; NaN without an evaluation.

    A run without an evaluation in the last tenth of its budget has its last one; `tell_without` says so.
    """
    values = last_tenth(seed) if rule == LAST_TENTH else seed.curve.values[-1:]
    if not len(values):
        values = seed.curve.values[-1:]
    return round(float(values.mean()), _DIGITS) if len(values) else np.nan


def count_final(seed: Seed, rule: FinalRule) -> int:
    """Count the evaluations that a run's final win rate is the mean of: one, where the last one alone stands for it."""
    return max(1, len(last_tenth(seed))) if rule == LAST_TENTH else 1


def final_rates(seeds: Sequence[Seed], rule: FinalRule) -> Values:
    """Give the win rate at the end of each run."""
    return np.array([final_rate(seed, rule) for seed in seeds], np.float64)


def count_falls(curve: Curve) -> Falls | None:
    """Count the evaluations below .5 after the first of at least .9; None if there is no such first one."""
    made = np.flatnonzero(curve.values >= MADE_IT)
    if not len(made):
        return None
    after = curve.values[made[0] + 1 :]
    return Falls(int((after < FALLEN).sum()), len(after))


def title_final(rule: FinalRule, of: Quantity = WIN_RATE) -> str:
    """Name the number that stands for the end of a run: "final robust win rate"."""
    return FINAL_NAMES[rule].replace(WIN_RATE.title, of.title)


def name_final(rule: FinalRule, *, unit: str = "", of: Quantity = WIN_RATE) -> str:
    """Say in a few words of its own what number stands for the end of a run, for those who read only the numbers."""
    return f"{title_final(rule, of)}{f' [{unit}]' if unit else ''} ({_explain(rule, of)})"


def define_final(seeds: Sequence[Seed], rule: FinalRule, *, unit: str = "", of: Quantity = WIN_RATE) -> str:
    """Say what number stands for the end of these runs, and of how many evaluations it is the mean."""
    name = f"{title_final(rule, of)}{f' [{unit}]' if unit else ''}"
    return f"{name}: {_explain(rule, of)}{_say_counts(seeds, rule)}"


def caption_final(
    seeds: Sequence[Seed], rule: FinalRule, *sentences: str, unit: str = "", of: Quantity = WIN_RATE
) -> tuple[str, list[str]]:
    """Begin a caption with what the final number is and end it with the runs that have none.

    Returns:
        The caption with the sentences between them, and what of it CSV must say too, whose columns say the rest.
    """
    without = tell_without(seeds, rule, of)
    defined = define_final(seeds, rule, unit=unit, of=of)
    said = f"{defined[:1].upper()}{defined[1:]}."
    return " ".join(filter(None, (said, *sentences, without))), [without]


def tell_without(seeds: Sequence[Seed], rule: FinalRule, of: Quantity = WIN_RATE) -> str:
    """Name the runs that have no evaluation, or report, in the last tenth of their budget; empty when all have one."""
    without = [seed for seed in seeds if not len(last_tenth(seed)) and len(seed.curve.steps)]
    if rule != LAST_TENTH or not without:
        return ""
    told = "; ".join(
        f"run {seed.id}, at {int(seed.curve.steps[-1]):,} of {seed.target_steps:,} env steps"
        for seed in without[:_NAMED]
    )
    more = f"; and {len(without) - _NAMED} more" if len(without) > _NAMED else ""
    missing = "an evaluation" if of.is_evaluation else "a report"
    return f"Without {missing} in that tenth, so that the last one stands for it: {told}{more}."


def _explain(rule: FinalRule, of: Quantity) -> str:
    """Say what the number is the mean of; of which episodes, unless of those of the greedy protocol."""
    meaning = FINAL_MEANINGS[rule] if of.is_evaluation else FINAL_MEANINGS[rule].replace("evaluation", "report")
    return meaning if of.key == WIN_RATE.key else f"{meaning}, each the {of.meaning}"


def _say_counts(seeds: Sequence[Seed], rule: FinalRule) -> str:
    counts = sorted({n for seed in seeds if (n := len(last_tenth(seed)))})
    if rule != LAST_TENTH or not counts:
        return ""
    if counts == [1]:
        return " (one of each run: its last)"
    n = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f" ({n} of each run)"
