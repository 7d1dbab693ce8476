"""Quantities that are plotted over env steps: title, unit, meaning and database column; and the definition of success.

The greedy win rate counts greedy evaluation episodes from the fixed starts of the task, the robust win rate those from
shifted starts, and the training win rate counts training episodes. mu_w (μ̄_w) is the time average of a win rate.

`won` and `win_rate` always have the environment's definition. If `memory.success` is a return threshold, the fraction
of episodes above it is the metric `eval/success_rate`, and its axis title states the threshold.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any, Literal, get_args

from app.analysis.settings import Settings
from emtc_core.metrics import ROBUST_JITTER, describe_metric, is_known
from storage.engine import Database
from storage.queries.curves import metric_points

MU_W_MEANING = "time average of the win rate from the first evaluation to t (area under the curve, trapezoid rule)"
SUCCESS_RATE = "eval/success_rate"
"""Metric that is plotted instead of the win rate if the return decides what a success is."""
RateName = Literal["auto", "greedy", "robust", "training"]
RATE_NAMES: tuple[RateName, ...] = get_args(RateName)
AUTO: RateName = "auto"
"""Robust on each task where every run has robust evaluations, otherwise greedy (`app.analysis.rates`)."""
RATE_MEANING = (
    "auto: robust on a task where every run has robust evaluations, else greedy; greedy: SMAC's protocol, fixed "
    "starts; robust: greedy episodes from shifted starts; training: with exploration"
)


@dataclass(frozen=True)
class Quantity:
    """A quantity on the y axis."""

    key: str
    title: str
    unit: str
    meaning: str
    column: str = "value"
    """Column of the table of evaluations, or of a logged metric."""
    metric: str = ""
    """Name of the logged metric; empty for a quantity of the table of evaluations."""
    range: tuple[float, float] | None = None
    is_time_average: bool = False
    """Whether a curve is the running time average of its column, mu_w."""
    by_task: tuple[tuple[str, "Quantity"], ...] = ()
    """Quantity of each task, if the tasks of a comparison have different quantities."""
    note: str = ""
    """A sentence for captions: which episodes the win rate counts, and why this win rate was chosen."""

    @property
    def episodes(self) -> str:
        """Kind of episodes that the win rate counts: greedy, robust or training."""
        return {ROBUST.column: "robust", WIN_RATE.column: "greedy"}.get(self.column, "training")

    def at(self, task: str) -> "Quantity":
        """Return the quantity of one task."""
        return dict(self.by_task).get(task, self)

    @property
    def is_evaluation(self) -> bool:
        """Whether it is read from the evaluations and not from the logged metrics."""
        return not self.metric

    @property
    def is_fraction(self) -> bool:
        """Whether its values are fractions in [0, 1]."""
        return self.unit == "fraction"

    @property
    def counts_episodes(self) -> bool:
        """Whether it is a fraction of the episodes of an evaluation, or the time average of such fractions."""
        return self.column in (WIN_RATE.column, ROBUST.column) or self.key == SUCCESS_RATE


UNIT_RANGE = (-0.03, 1.03)
"""Range of the y axis for fractions, with a margin so that lines at 0 and 1 are visible."""
_WON = "fraction of greedy evaluation episodes won"
_RETURN = "mean undiscounted return of greedy evaluation episodes"
WIN_RATE = Quantity("win_rate", "win rate", "fraction", _WON, "win_rate", range=UNIT_RANGE)
ROBUST = Quantity(
    "robust_win_rate",
    "robust win rate",
    "fraction",
    f"fraction of greedy episodes won from starts shifted by up to {ROBUST_JITTER:g} cells",
    "robust_win_rate",
    range=UNIT_RANGE,
)
TRAINING_WIN_RATE = Quantity(
    "rollout/win_rate",
    "training win rate",
    "fraction",
    "fraction of training episodes won since the last report, with exploration",
    metric="rollout/win_rate",
    range=UNIT_RANGE,
)
MU_W = Quantity("mu_w", "μ̄_w", "fraction", MU_W_MEANING, "win_rate", range=UNIT_RANGE, is_time_average=True)

SELECTED_RATE = "chosen_win_rate"
"""Key of the win rate that the user has selected by a `RateName`."""
SELECTED_MU_W = "chosen_mu_w"
"""Key of its time average."""
_MU_W_KEYS = {
    WIN_RATE.key: MU_W.key,
    ROBUST.key: "robust_mu_w",
    TRAINING_WIN_RATE.key: "training_mu_w",
    SELECTED_RATE: SELECTED_MU_W,
}
"""Key of a win rate → key of its time average."""


def average_over_time(rate: Quantity) -> Quantity:
    """Return the time average of a win rate: mu_w of the greedy one, "robust μ̄_w" of the robust one."""
    meaning = MU_W_MEANING if rate.key == WIN_RATE.key else f"{MU_W_MEANING}; win rate: {rate.meaning}"
    return replace(
        rate,
        key=_MU_W_KEYS[rate.key],
        title=rate.title.replace(WIN_RATE.title, MU_W.title),
        meaning=meaning,
        is_time_average=True,
        by_task=tuple((task, average_over_time(task_rate)) for task, task_rate in rate.by_task),
    )


ROBUST_MU_W = average_over_time(ROBUST)
RETURN = Quantity("return", "episode return", "env return", _RETURN, "return_mean")
LENGTH = Quantity("length", "episode length", "env steps", "mean length of greedy evaluation episodes", "length_mean")
EVALUATION_QUANTITIES = {quantity.key: quantity for quantity in (WIN_RATE, ROBUST, MU_W, ROBUST_MU_W, RETURN, LENGTH)}

_RATES_OF_KEYS: dict[str, RateName | None] = {
    SELECTED_RATE: None,
    SELECTED_MU_W: None,
    WIN_RATE.key: "greedy",
    MU_W.key: "greedy",
    ROBUST.key: "robust",
    ROBUST_MU_W.key: "robust",
}
"""Key of a win rate or of its time average → name of the win rate; None: the selected one."""
REASONS_WITHOUT_VALUE = {
    ROBUST.key: "no robust win rate: no evaluation from shifted starts (skirmish with fixed starts only)",
    TRAINING_WIN_RATE.key: "no training win rate was logged",
}
"""Reason why a run has no point of a quantity, by the key of the quantity."""


def find_rate(key: str, selected_rate: RateName) -> RateName | None:
    """Find the win rate of a key; None if the key is neither a win rate nor the time average of one.

    Args:
        key: Key of a quantity.
        selected_rate: The win rate that the user has selected. It is returned for the keys `SELECTED_RATE` and
            `SELECTED_MU_W`.
    """
    if key not in _RATES_OF_KEYS:
        return None
    return _RATES_OF_KEYS[key] or selected_rate


def uses_selected_rate(key: str) -> bool:
    """Return whether the selected `RateName` decides the win rate of a key."""
    return key in (SELECTED_RATE, SELECTED_MU_W)


def is_mu_w(key: str) -> bool:
    """Return whether a key is the time average of a win rate."""
    return key in _MU_W_KEYS.values()


def find_quantity(key: str) -> Quantity:
    """Return the evaluated quantity or the logged metric of a key; the win rate for an unknown key."""
    if is_known(key):
        metric_info = describe_metric(key)
        return Quantity(key, key, metric_info.unit, metric_info.meaning, metric=key)
    return EVALUATION_QUANTITIES.get(key, WIN_RATE)


def get_success_threshold(config: Mapping[str, Any]) -> float | None:
    """Return the minimum return [env return] of a successful episode; None if `won` decides."""
    memory = config.get("memory", {})
    return _select_threshold(memory.get("success"), memory.get("success_threshold"))


def _select_threshold(rule: object, value: object) -> float | None:
    """Return `memory.success_threshold` if `memory.success` is the rule that uses it; otherwise None."""
    if rule == "return_threshold" and isinstance(value, int | float) and isfinite(value):
        return float(value)
    return None


def name_success(threshold: float) -> str:
    """Return the axis title of the success rate: "success (return ≥ -18)"."""
    return f"success (return ≥ {threshold:g})"


def name_outcome(config: Mapping[str, Any], *, won: bool, episode_return: float) -> str:
    """Name the outcome of an episode: won or not, or success or not if the return decides."""
    threshold = get_success_threshold(config)
    if threshold is None:
        return "won" if won else "not won"
    outcome = "success" if episode_return >= threshold else "no success"
    return f"{outcome}, won" if won else outcome


def add_success_rule(quantity: Quantity, settings: Iterable[Settings]) -> Quantity:
    """Add the success threshold of the runs to the title of a success rate."""
    if quantity.key != SUCCESS_RATE:
        return quantity
    thresholds = {_select_threshold(run.get("memory.success"), run.get("memory.success_threshold")) for run in settings}
    thresholds.discard(None)
    title = "success (return ≥ each run's own threshold)"
    if len(thresholds) == 1 and (threshold := thresholds.pop()) is not None:
        title = name_success(threshold)
    return replace(quantity, title=title, range=UNIT_RANGE)


def read_last_success_rate(db: Database, run_id: str) -> float | None:
    """Read the success rate of the last evaluation; None before the first evaluation, and if `won` decides."""
    rows = metric_points(db, run_id, [SUCCESS_RATE])
    return float(rows["value"].iloc[-1]) if len(rows) else None
