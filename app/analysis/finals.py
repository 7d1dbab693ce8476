"""The win rate at the end of a run, and the number of falls after the run had reached a high win rate.

While a policy forms, the win rate alternates between 0 and 1 from one evaluation to the next, so a single evaluation is
a noisy estimate. By default the final win rate is therefore the mean of the evaluations in the last tenth of the
budget. This module computes both numbers of a run, the binomial scale that their confidence intervals need, and the
sentences of captions about them.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np

from app.analysis.aggregates import Curve
from app.analysis.intervals import BinomialScale, Values
from app.analysis.quantities import WIN_RATE, Quantity
from app.analysis.series import Comparison, SeedRun

FinalRule = Literal["last-tenth", "last"]
FINAL_RULES: tuple[FinalRule, ...] = get_args(FinalRule)
LAST_TENTH: FinalRule = "last-tenth"
FINAL_NAMES: dict[FinalRule, str] = {"last-tenth": "final win rate", "last": "last win rate"}
FINAL_MEANINGS: dict[FinalRule, str] = {
    "last-tenth": "mean of the evaluations in the last tenth of the budget",
    "last": "win rate of the last evaluation only",
}

HIGH_WIN_RATE = 0.9
"""A run has reached a high win rate at its first evaluation of at least this value."""
LOW_WIN_RATE = 0.5
"""A later evaluation below this value is a fall."""
DEFAULT_EPISODES = 16
"""Episodes per evaluation of a run that does not state them (an imported run)."""
_DIGITS = 12  # equal means of different evaluations must compare as equal in spite of rounding errors
_MAX_LISTED = 5


class Falls(NamedTuple):
    """Number of falls after a run's first evaluation of at least `HIGH_WIN_RATE`.

    The evaluations are those of the win rate by which the runs are compared (`app.analysis.rates`).
    """

    falls: int
    """Evaluations below `LOW_WIN_RATE`."""
    after: int
    """All evaluations after the first one of at least `HIGH_WIN_RATE`."""

    @property
    def share(self) -> float:
        """Fraction of these evaluations that are falls; NaN if there are none."""
        return self.falls / self.after if self.after else np.nan


def select_last_tenth(seed: SeedRun) -> Values:
    """Select the evaluations after nine tenths of the budget."""
    if not seed.budget:
        return np.empty(0)
    return seed.curve.values[10 * seed.curve.steps > 9 * seed.budget]


def compute_final_rate(seed: SeedRun, rule: FinalRule) -> float:
    """Compute the win rate at the end of a run; NaN without an evaluation.

    A run without an evaluation in the last tenth of its budget gets the win rate of its last evaluation;
    `list_runs_without_last_tenth`
    lists these runs.
    """
    values = select_last_tenth(seed) if rule == LAST_TENTH else seed.curve.values[-1:]
    if not len(values):
        values = seed.curve.values[-1:]
    return round(float(values.mean()), _DIGITS) if len(values) else np.nan


def compute_final_rates(seeds: Sequence[SeedRun], rule: FinalRule) -> Values:
    """Compute the win rate at the end of each run."""
    return np.array([compute_final_rate(seed, rule) for seed in seeds], np.float64)


def count_falls(curve: Curve) -> Falls | None:
    """Count the evaluations below .5 after the first one of at least .9; None if no evaluation reaches .9."""
    high = np.flatnonzero(curve.values >= HIGH_WIN_RATE)
    if not len(high):
        return None
    after = curve.values[high[0] + 1 :]
    return Falls(int((after < LOW_WIN_RATE).sum()), len(after))


def define_falls(quantity: Quantity) -> str:
    """Define falls: "evaluations with a robust win rate below 0.5 after the first one of at least 0.9"."""
    points = "evaluations" if quantity.is_evaluation else "reports"
    rate = f"greedy {quantity.title}" if quantity.key == WIN_RATE.key else quantity.title
    return f"{points} with a {rate} below {LOW_WIN_RATE:g} after the first one of at least {HIGH_WIN_RATE:g}"


def get_final_title(rule: FinalRule, quantity: Quantity = WIN_RATE) -> str:
    """Return the title of the final number: "final robust win rate"."""
    return FINAL_NAMES[rule].replace(WIN_RATE.title, quantity.title)


def name_final(rule: FinalRule, *, unit: str = "", quantity: Quantity = WIN_RATE) -> str:
    """Return the title of the final number with its definition, for tables that are read by a program."""
    return f"{get_final_title(rule, quantity)}{f' [{unit}]' if unit else ''} ({_define(rule, quantity)})"


def define_final(seeds: Sequence[SeedRun], rule: FinalRule, *, unit: str = "", quantity: Quantity = WIN_RATE) -> str:
    """Define the final number of these runs, with the number of evaluations in the mean."""
    name = f"{get_final_title(rule, quantity)}{f' [{unit}]' if unit else ''}"
    counts = sorted({n for seed in seeds if (n := len(select_last_tenth(seed)))})
    if rule != LAST_TENTH or not counts:
        n = ""
    elif counts == [1]:
        n = " (1 per run: the last)"
    else:
        n = f" ({counts[0]} per run)" if len(counts) == 1 else f" ({counts[0]} to {counts[-1]} per run)"
    return f"{name}: {_define(rule, quantity)}{n}"


def caption_final(
    seeds: Sequence[SeedRun],
    rule: FinalRule,
    *sentences: str,
    unit: str = "",
    quantity: Quantity = WIN_RATE,
    comparison: Comparison,
) -> str:
    """Write the caption of a table or figure of final numbers.

    Args:
        seeds: The runs.
        rule: Which number is the final one.
        *sentences: Sentences between the definition and the list of runs without an evaluation in the last tenth.
        unit: Unit of the number.
        quantity: The win rate.
        comparison: The comparison, with the budget at which the runs are compared.
    """
    without, note = list_runs_without_last_tenth(seeds, rule, quantity), comparison.quantity.note
    definition = define_final(seeds, rule, unit=unit, quantity=quantity)
    first = f"{definition[:1].upper()}{definition[1:]}."
    return " ".join(filter(None, (first, note, comparison.budget_note, *sentences, without)))


def list_runs_without_last_tenth(seeds: Sequence[SeedRun], rule: FinalRule, quantity: Quantity = WIN_RATE) -> str:
    """List the runs without an evaluation (or report) in the last tenth of their budget; empty if there are none."""
    without = [seed for seed in seeds if not len(select_last_tenth(seed)) and len(seed.curve.steps)]
    if rule != LAST_TENTH or not without:
        return ""
    runs = "; ".join(
        f"run {seed.id}, at {int(seed.curve.steps[-1]):,} of {seed.budget:,} env steps"
        for seed in without[:_MAX_LISTED]
    )
    more = f"; and {len(without) - _MAX_LISTED} more" if len(without) > _MAX_LISTED else ""
    article, point = ("an", "evaluation") if quantity.is_evaluation else ("a", "report")
    return f"Runs without {article} {point} in the last tenth (their last {point} is used): {runs}{more}."


def _define(rule: FinalRule, quantity: Quantity) -> str:
    """Define the final number; the episodes are named unless they are those of the greedy protocol."""
    meaning = FINAL_MEANINGS[rule] if quantity.is_evaluation else FINAL_MEANINGS[rule].replace("evaluation", "report")
    return meaning if quantity.key == WIN_RATE.key else f"{meaning}, each the {quantity.meaning}"


def make_scale(seeds: Sequence[SeedRun], *, top: float = 1.0, evaluations: float | Values = 1) -> BinomialScale:
    """Return the binomial scale of win rates of these runs.

    Args:
        seeds: The runs; the smallest number of episodes per evaluation among them is used.
        top: Value of a win rate of 1: 1 for fractions, 100 for percent.
        evaluations: Number of evaluations in the mean of each value.
    """
    return BinomialScale(top, min((get_eval_episodes(seed) for seed in seeds), default=DEFAULT_EPISODES) * evaluations)


def make_final_scale(
    seeds: Sequence[SeedRun], rule: FinalRule, *, top: float = 1.0, quantity: Quantity = WIN_RATE
) -> BinomialScale:
    """Return the binomial scale of the final win rates, with the smallest number of evaluations in any of the means.

    A report of the training win rate counts as one episode, the minimum that it can contain.
    """
    counts = (max(1, len(select_last_tenth(seed))) if rule == LAST_TENTH else 1 for seed in seeds)
    evaluations = min(counts, default=1)
    return (
        make_scale(seeds, top=top, evaluations=evaluations)
        if quantity.counts_episodes
        else BinomialScale(top, evaluations)
    )


def make_mu_w_scale(seeds: Sequence[SeedRun], steps: float | Values, quantity: Quantity = WIN_RATE) -> BinomialScale:
    """Return the binomial scale of mu_w at env steps [T], the average of all evaluations or reports up to there."""
    counts = [np.searchsorted(seed.curve.steps, steps, side="right") for seed in seeds]
    evaluations = np.maximum(1.0, np.min(counts, axis=0))
    return (
        make_scale(seeds, evaluations=evaluations) if quantity.counts_episodes else BinomialScale(episodes=evaluations)
    )


def make_mu_w_scale_at_fraction(
    seeds: Sequence[SeedRun], share: float = 1.0, quantity: Quantity = WIN_RATE
) -> BinomialScale:
    """Return the binomial scale of mu_w at a fraction of the training.

    Args:
        seeds: The runs; the smallest number of evaluations among them is used.
        share: Fraction of the training length.
        quantity: The win rate.
    """
    evaluations = max(1.0, share * min((len(seed.curve.steps) for seed in seeds), default=1))
    return (
        make_scale(seeds, evaluations=evaluations) if quantity.counts_episodes else BinomialScale(episodes=evaluations)
    )


def make_curve_scale(quantity: Quantity, seeds: Sequence[SeedRun], steps: Values) -> BinomialScale | None:
    """Return the binomial scale of a quantity at env steps [T]; None if its values are not fractions."""
    if not quantity.is_share:
        return None
    if quantity.is_time_average:
        return make_mu_w_scale(seeds, steps, quantity)
    return make_scale(seeds) if quantity.counts_episodes else BinomialScale()


def get_eval_episodes(seed: SeedRun) -> float:
    """Return the number of episodes per evaluation of a run."""
    episodes = seed.settings.get("eval.episodes")
    return float(episodes) if isinstance(episodes, int | float) and episodes > 0 else DEFAULT_EPISODES
