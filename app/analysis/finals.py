"""The win rate at the end of a run, and the number of falls after the run had reached a high win rate.

While a policy forms, the win rate alternates between 0 and 1 from one evaluation to the next, so a single evaluation is
a noisy estimate. By default the final win rate is therefore the mean of the evaluations in the last tenth of the
budget. This module computes the final win rate and the falls of a run, and the sentences of captions about them.

Confidence intervals of win rates need a binomial scale (`BinomialScale`): the value of a win rate of 1, and the number
of episodes in each value. The functions `make_…_scale` return it.
"""

from typing import Literal, NamedTuple, get_args

import numpy as np

from app.analysis.aggregates import compute_mu_w
from app.analysis.curves import ComparedRun, Curves, format_range
from app.analysis.intervals import BinomialScale, Values
from app.analysis.quantities import WIN_RATE, Quantity

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
_DIGITS = 12
"""Decimals of a final win rate. Means that differ only by rounding errors must be equal."""
_MAX_LISTED = 5
"""Maximum number of runs that a sentence lists."""


class Falls(NamedTuple):
    """Number of falls after a run's first evaluation of at least `HIGH_WIN_RATE`.

    The evaluations are those of the win rate by which the runs are compared (`app.analysis.rates`).
    """

    n_falls: int
    """Number of evaluations below `LOW_WIN_RATE`, after the first one of at least `HIGH_WIN_RATE`."""
    n_later: int
    """Number of all evaluations after the first one of at least `HIGH_WIN_RATE`."""

    @property
    def fraction(self) -> float:
        """Fraction of the later evaluations that are falls; NaN if there are no later evaluations."""
        return self.n_falls / self.n_later if self.n_later else np.nan


def compute_final_rate(steps: Values, values: Values, *, budget: int, rule: FinalRule) -> float:
    """Compute the win rate at the end of a run; NaN without an evaluation.

    A run without an evaluation in the last tenth of its budget gets the win rate of its last evaluation;
    `list_runs_without_last_tenth` lists these runs.

    Args:
        steps: Env steps of the evaluations [T], ascending.
        values: Win rates of the evaluations [T].
        budget: Env steps at which the run is compared.
        rule: Which number is the final one.
    """
    selected = _select_last_tenth(steps, values, budget) if rule == LAST_TENTH else values[-1:]
    if not len(selected):
        selected = values[-1:]
    return round(float(selected.mean()), _DIGITS) if len(selected) else np.nan


def compute_final_rates(curves: Curves, rule: FinalRule) -> Values:
    """Compute the win rate at the end of each run."""
    finals = []
    for run in curves.runs:
        points = curves.get_points(run.id)
        finals.append(compute_final_rate(points.env_step, points.value, budget=run.budget, rule=rule))
    return np.array(finals, np.float64)


def compute_mu_w_at(curves: Curves, *, fraction: float) -> Values:
    """Compute mu_w of each run at a fraction of its training length; NaN if the run has not reached it.

    For a result whose last evaluation was a little before its last step, mu_w at that evaluation is returned.
    """
    averages = np.full(curves.n, np.nan)
    for index, run in enumerate(curves.runs):
        points = curves.get_points(run.id)
        if len(points.env_step):
            t = fraction * run.training_length
            if run.is_result:
                t = min(t, float(points.env_step[-1]))
            averages[index] = compute_mu_w(points.env_step, points.value, np.array([t]))[0]
    return averages


def count_falls(values: Values) -> Falls | None:
    """Count the falls of one run with the win rates `values` [T]; None if no evaluation is at least `HIGH_WIN_RATE`."""
    high_indices = np.flatnonzero(values >= HIGH_WIN_RATE)
    if not len(high_indices):
        return None
    later_values = values[high_indices[0] + 1 :]
    return Falls(int((later_values < LOW_WIN_RATE).sum()), len(later_values))


def _select_last_tenth(steps: Values, values: Values, budget: int) -> Values:
    """Select the evaluations after nine tenths of the budget; none if the budget is unknown."""
    return values[10 * steps > 9 * budget] if budget else np.empty(0)


def _count_last_tenth(curves: Curves, run: ComparedRun) -> int:
    """Count the evaluations of a run in the last tenth of its budget."""
    points = curves.get_points(run.id)
    return len(_select_last_tenth(points.env_step, points.value, run.budget))


def define_falls(quantity: Quantity) -> str:
    """Write the definition of a fall: "evaluations with a robust win rate below 0.5 after the first one of at …"."""
    points = "evaluations" if quantity.is_evaluation else "reports"
    rate = f"greedy {quantity.title}" if quantity.key == WIN_RATE.key else quantity.title
    return f"{points} with a {rate} below {LOW_WIN_RATE:g} after the first one of at least {HIGH_WIN_RATE:g}"


def get_final_title(rule: FinalRule, quantity: Quantity = WIN_RATE) -> str:
    """Return the title of the final number: "final robust win rate"."""
    return FINAL_NAMES[rule].replace(WIN_RATE.title, quantity.title)


def name_final(rule: FinalRule, *, unit: str = "", quantity: Quantity = WIN_RATE) -> str:
    """Return the title of the final number with its definition, for tables that are read by a program."""
    return f"{_write_title(rule, quantity, unit)} ({_define(rule, quantity)})"


def define_final(curves: Curves, rule: FinalRule, *, unit: str = "") -> str:
    """Write the definition of the final number of these runs, with the number of evaluations in the mean."""
    definition = f"{_write_title(rule, curves.measure, unit)}: {_define(rule, curves.measure)}"
    counts = sorted({_count_last_tenth(curves, run) for run in curves.runs} - {0})
    if rule != LAST_TENTH or not counts:
        return definition
    if counts == [1]:
        return f"{definition} (1 per run: the last)"
    return f"{definition} ({format_range(counts)} per run)"


def caption_final(curves: Curves, rule: FinalRule, *sentences: str, unit: str = "") -> str:
    """Write the caption of a table or figure of final numbers.

    Args:
        curves: The runs.
        rule: Which number is the final one.
        *sentences: Sentences between the definition and the list of runs without an evaluation in the last tenth.
        unit: Unit of the number.
    """
    definition = define_final(curves, rule, unit=unit)
    first = f"{definition[:1].upper()}{definition[1:]}."
    without = list_runs_without_last_tenth(curves, rule)
    return " ".join(filter(None, (first, curves.measure.note, curves.budget_note, *sentences, without)))


def list_runs_without_last_tenth(curves: Curves, rule: FinalRule) -> str:
    """List the runs without an evaluation (or report) in the last tenth of their budget; empty if there are none."""
    if rule != LAST_TENTH:
        return ""
    entries = []
    for run in curves.runs:
        steps = curves.get_points(run.id).env_step
        if len(steps) and not _count_last_tenth(curves, run):
            entries.append(f"run {run.id}, at {int(steps[-1]):,} of {run.budget:,} env steps")
    if not entries:
        return ""
    runs = "; ".join(entries[:_MAX_LISTED])
    more = f"; and {len(entries) - _MAX_LISTED} more" if len(entries) > _MAX_LISTED else ""
    article, point = ("an", "evaluation") if curves.measure.is_evaluation else ("a", "report")
    return f"Runs without {article} {point} in the last tenth (their last {point} is used): {runs}{more}."


def _write_title(rule: FinalRule, quantity: Quantity, unit: str) -> str:
    """Write the title of the final number with its unit: "final win rate [%]"."""
    title = get_final_title(rule, quantity)
    return f"{title} [{unit}]" if unit else title


def _define(rule: FinalRule, quantity: Quantity) -> str:
    """Write the definition of the final number; for another win rate than the greedy one, also its meaning."""
    meaning = FINAL_MEANINGS[rule]
    if not quantity.is_evaluation:
        meaning = meaning.replace("evaluation", "report")  # the training win rate is logged in reports
    return meaning if quantity.key == WIN_RATE.key else f"{meaning}, each the {quantity.meaning}"


def make_scale(curves: Curves, *, top: float = 1.0, evaluations: float | Values = 1) -> BinomialScale:
    """Return the binomial scale of win rates of these runs.

    Args:
        curves: The runs; the smallest number of episodes per evaluation among them is used.
        top: Value of a win rate of 1: 1 for fractions, 100 for percent.
        evaluations: Number of evaluations in the mean of each value.
    """
    episodes = min((get_eval_episodes(run) for run in curves.runs), default=DEFAULT_EPISODES)
    return BinomialScale(top, episodes * evaluations)


def make_final_scale(
    curves: Curves, rule: FinalRule, *, top: float = 1.0, quantity: Quantity = WIN_RATE
) -> BinomialScale:
    """Return the binomial scale of the final win rates, with the smallest number of evaluations in any of the means.

    A report of the training win rate counts as one episode, the minimum that it can contain.
    """
    evaluations = 1
    if rule == LAST_TENTH:
        # a run without an evaluation in the last tenth has the win rate of one evaluation
        evaluations = min((max(1, _count_last_tenth(curves, run)) for run in curves.runs), default=1)
    if not quantity.counts_episodes:
        return BinomialScale(top, evaluations)
    return make_scale(curves, top=top, evaluations=evaluations)


def make_mu_w_scale(curves: Curves, x: float | Values, quantity: Quantity = WIN_RATE) -> BinomialScale:
    """Return the binomial scale of mu_w at x [T]: the average of all evaluations or reports up to x."""
    counts = [np.searchsorted(points.x, x, side="right") for points in curves.list_points()]
    evaluations = np.maximum(1.0, np.min(counts, axis=0))
    if not quantity.counts_episodes:
        return BinomialScale(episodes=evaluations)
    return make_scale(curves, evaluations=evaluations)


def make_mu_w_scale_at_fraction(curves: Curves, fraction: float = 1.0, quantity: Quantity = WIN_RATE) -> BinomialScale:
    """Return the binomial scale of mu_w at a fraction of the training.

    Args:
        curves: The runs; the smallest number of evaluations among them is used.
        fraction: Fraction of the training length.
        quantity: The win rate.
    """
    n_points = min((len(points.value) for points in curves.list_points()), default=1)
    evaluations = max(1.0, fraction * n_points)
    if not quantity.counts_episodes:
        return BinomialScale(episodes=evaluations)
    return make_scale(curves, evaluations=evaluations)


def make_curve_scale(quantity: Quantity, curves: Curves, x: Values) -> BinomialScale | None:
    """Return the binomial scale of a quantity at x [T]; None if its values are not fractions."""
    if not quantity.is_fraction:
        return None
    if quantity.is_time_average:
        return make_mu_w_scale(curves, x, quantity)
    return make_scale(curves) if quantity.counts_episodes else BinomialScale()


def get_eval_episodes(run: ComparedRun) -> float:
    """Return the number of episodes per evaluation of a run."""
    episodes = run.settings.get("eval.episodes")
    return float(episodes) if isinstance(episodes, int | float) and episodes > 0 else DEFAULT_EPISODES
