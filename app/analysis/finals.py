"""Which win rate stands for the end of a run, and how often it fell after it had once been won.

While a policy forms, successive evaluations swing between 1 and 0, so that the last one alone is a draw: unless it is
asked for, a run's final win rate is the mean of the evaluations in the last tenth of its budget. What lives here: both
numbers of one run, and the words that say which one a table shows. What does not: which runs count
(`app.analysis.series`), what a cell says (`app.analysis.win_rates`).

Of what are the values of some seeds shares, and of how many episodes? What an interval of a win rate has to know.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np

from app.analysis.quantities import WIN_RATE, Quantity
from app.analysis.series import Comparison, Seed
from app.analysis.statistics import Curve, Rate, Values

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
    if not seed.budget:
        return np.empty(0)
    return seed.curve.values[10 * seed.curve.steps > 9 * seed.budget]


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
    """The name of the number that stands for the end of a run: "final robust win rate"."""
    return FINAL_NAMES[rule].replace(WIN_RATE.title, of.title)


def name_final(rule: FinalRule, *, unit: str = "", of: Quantity = WIN_RATE) -> str:
    """What number stands for the end of a run, for those who read only the numbers."""
    return f"{title_final(rule, of)}{f' [{unit}]' if unit else ''} ({_explain(rule, of)})"


def define_final(seeds: Sequence[Seed], rule: FinalRule, *, unit: str = "", of: Quantity = WIN_RATE) -> str:
    """What number stands for the end of these runs, and of how many evaluations it is the mean."""
    name = f"{title_final(rule, of)}{f' [{unit}]' if unit else ''}"
    return f"{name}: {_explain(rule, of)}{_say_counts(seeds, rule)}"


def caption_final(
    seeds: Sequence[Seed],
    rule: FinalRule,
    *sentences: str,
    unit: str = "",
    of: Quantity = WIN_RATE,
    at: Comparison,
) -> tuple[str, list[str]]:
    """Begin a caption with what the final number is and where `at` reads it, and end it with the runs that have none.

    Returns:
        The caption with the sentences between them, and what of it CSV must say too, whose columns say the rest.
    """
    without, note = tell_without(seeds, rule, of), at.quantity.note
    defined = define_final(seeds, rule, unit=unit, of=of)
    said = f"{defined[:1].upper()}{defined[1:]}."
    return " ".join(filter(None, (said, note, at.budget, *sentences, without))), [note, at.unequal, without]


def tell_without(seeds: Sequence[Seed], rule: FinalRule, of: Quantity = WIN_RATE) -> str:
    """The runs that have no evaluation, or report, in the last tenth of their budget; empty when all have one."""
    without = [seed for seed in seeds if not len(last_tenth(seed)) and len(seed.curve.steps)]
    if rule != LAST_TENTH or not without:
        return ""
    told = "; ".join(
        f"run {seed.id}, at {int(seed.curve.steps[-1]):,} of {seed.budget:,} env steps" for seed in without[:_NAMED]
    )
    more = f"; and {len(without) - _NAMED} more" if len(without) > _NAMED else ""
    missing = "an evaluation" if of.is_evaluation else "a report"
    return f"Without {missing} in that tenth, so that the last one stands for it: {told}{more}."


def _explain(rule: FinalRule, of: Quantity) -> str:
    """What the number is the mean of; of which episodes, unless of those of the greedy protocol."""
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


USUAL_EPISODES = 16
"""Of an evaluation, where a run does not say: one that was imported."""


def rate_of(seeds: Sequence[Seed], *, top: float = 1.0, evaluations: float | Values = 1) -> Rate:
    """What win rates of these seeds are shares of.

    Args:
        seeds: The runs; the fewest episodes of any of them count.
        top: What a win rate of 1 is written as.
        evaluations: How many evaluations each value averages.
    """
    return Rate(top, min((episodes_of(seed) for seed in seeds), default=USUAL_EPISODES) * evaluations)


def rate_of_final(seeds: Sequence[Seed], rule: FinalRule, *, top: float = 1.0, of: Quantity = WIN_RATE) -> Rate:
    """The rate of the win rates at the end of these runs: of all the evaluations that the shortest mean is made of.

    A report of training counts as one episode, the least that it can be a share of.
    """
    count = min((count_final(seed, rule) for seed in seeds), default=1)
    return rate_of(seeds, top=top, evaluations=count) if of.counts_episodes else Rate(top, count)


def rate_of_mu_w(seeds: Sequence[Seed], steps: float | Values, of: Quantity = WIN_RATE) -> Rate:
    """The rate of mu_w at env steps [T], which averages the evaluations, or reports of training, up to there."""
    counts = [np.searchsorted(seed.curve.steps, steps, side="right") for seed in seeds]
    evaluations = np.maximum(1.0, np.min(counts, axis=0))
    return rate_of(seeds, evaluations=evaluations) if of.counts_episodes else Rate(episodes=evaluations)


def rate_of_whole_mu_w(seeds: Sequence[Seed], share: float = 1.0, of: Quantity = WIN_RATE) -> Rate:
    """The rate of mu_w at a share of the training: of as many evaluations as the shortest of these runs has by then."""
    evaluations = max(1.0, share * min((len(seed.curve.steps) for seed in seeds), default=1))
    return rate_of(seeds, evaluations=evaluations) if of.counts_episodes else Rate(episodes=evaluations)


def rate_of_curve(quantity: Quantity, seeds: Sequence[Seed], steps: Values) -> Rate | None:
    """The rate of a quantity at env steps [T]; None where its values are no shares."""
    if not quantity.is_share:
        return None
    if quantity.is_time_average:
        return rate_of_mu_w(seeds, steps, quantity)
    return rate_of(seeds) if quantity.counts_episodes else Rate()


def episodes_of(seed: Seed) -> float:
    """How many episodes an evaluation of this run plays."""
    episodes = seed.settings.get("eval.episodes")
    return float(episodes) if isinstance(episodes, int | float) and episodes > 0 else USUAL_EPISODES
