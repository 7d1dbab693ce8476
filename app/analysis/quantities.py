"""Which quantity is drawn over env steps: its words, its unit, where its values stand, and what counts as a success.

`won` and `win_rate` are the environment's in every table. Where a return that the settings name decides, the share of
such episodes is the metric `eval/success_rate`, and what is drawn of it says the threshold.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any, Literal, get_args

from app.analysis.settings import Settings
from emtc_core.metrics import describe_metric, is_known
from storage.engine import Database
from storage.queries.curves import metric

MU_W_MEANING = "time average of the win rate from the first evaluation to t (area under the curve, trapezoid rule)"

SUCCESS_RATE = "eval/success_rate"
"""Drawn in the place of the win rate where the return decides what a success is."""


_LOGGED = "value"
"""The column of a logged metric; every other column is one of the evaluations."""


@dataclass(frozen=True)
class Quantity:
    """What stands on the y axis."""

    key: str
    title: str
    unit: str
    meaning: str
    column: str = _LOGGED
    range: tuple[float, float] | None = None
    is_time_average: bool = False
    """Whether a curve is the time average of its column so far, mu_w."""
    by_task: tuple[tuple[str, "Quantity"], ...] = ()
    """Task and quantity, where the tasks of one comparison do not all have the same quantity."""
    note: str = ""
    """A sentence for every caption: which episodes its win rates are of, and why."""

    @property
    def episodes(self) -> str:
        """Which episodes a win rate is of: greedy, robust or training."""
        return {ROBUST.column: "robust", WIN_RATE.column: "greedy"}.get(self.column, "training")

    def at(self, task: str) -> "Quantity":
        """Return the quantity of one task."""
        return dict(self.by_task).get(task, self)

    @property
    def is_evaluation(self) -> bool:
        """Whether it comes from greedy evaluations, not from what training logs."""
        return self.column != _LOGGED

    @property
    def is_share(self) -> bool:
        """Whether its values lie in [0, 1]."""
        return self.unit == "fraction"

    @property
    def counts_episodes(self) -> bool:
        """Whether it is a share of the episodes of an evaluation, or the time average of such shares."""
        return self.column in (WIN_RATE.column, ROBUST.column) or self.key == SUCCESS_RATE


UNIT_RANGE = (-0.03, 1.03)
_WON = "share of greedy evaluation episodes won"
_RETURN = "mean undiscounted return of greedy evaluation episodes"
WIN_RATE = Quantity("win_rate", "win rate", "fraction", _WON, "win_rate", UNIT_RANGE)
ROBUST = Quantity(
    "robust_win_rate",
    "robust win rate",
    "fraction",
    "share won of as many greedy episodes from shifted starts (eval.robust_jitter); skirmish only",
    "robust_win_rate",
    UNIT_RANGE,
)
TRAINED = Quantity(
    "rollout/win_rate",
    "training win rate",
    "fraction",
    "share won of the training episodes since the last report, played with exploration",
    range=UNIT_RANGE,
)
MU_W = Quantity("mu_w", "μ̄_w", "fraction", MU_W_MEANING, "win_rate", UNIT_RANGE, is_time_average=True)


def average_over_time(rate: Quantity) -> Quantity:
    """Return mu_w of a win rate: of the greedy one mu_w itself, else "robust μ̄_w" with the episodes in its meaning."""
    meaning = MU_W_MEANING if rate.key == WIN_RATE.key else f"{MU_W_MEANING}; win rate: {rate.meaning}"
    return replace(
        rate,
        key=_MU_W_KEYS[rate.key],
        title=rate.title.replace(WIN_RATE.title, MU_W.title),
        meaning=meaning,
        is_time_average=True,
        by_task=tuple((task, average_over_time(each)) for task, each in rate.by_task),
    )


CHOSEN_RATE = "chosen_win_rate"
CHOSEN_MU_W = "chosen_mu_w"
"""Keys of what follows the choice of a `RateName`: the win rate, and its time average."""
_MU_W_KEYS = {
    WIN_RATE.key: MU_W.key,
    ROBUST.key: "robust_mu_w",
    TRAINED.key: "training_mu_w",
    CHOSEN_RATE: CHOSEN_MU_W,
}
ROBUST_MU_W = average_over_time(ROBUST)
RETURN = Quantity("return", "episode return", "env return", _RETURN, "return_mean")
LENGTH = Quantity("length", "episode length", "env steps", "mean length of greedy evaluation episodes", "length_mean")
EVALUATED = {each.key: each for each in (WIN_RATE, ROBUST, MU_W, ROBUST_MU_W, RETURN, LENGTH)}

RateName = Literal["auto", "greedy", "robust", "training"]
RATE_NAMES: tuple[RateName, ...] = get_args(RateName)
AUTO: RateName = "auto"
"""Robust on each task of which every run has a robust evaluation, else greedy (`app.analysis.rates`)."""
RATE_MEANING = (
    "auto: robust on a task where every run has robust evaluations, else greedy; greedy: SMAC's protocol, fixed "
    "starts; robust: greedy episodes from shifted starts; training: with exploration"
)
_RATES_OF_KEYS: dict[str, RateName | None] = {
    CHOSEN_RATE: None,
    CHOSEN_MU_W: None,
    WIN_RATE.key: "greedy",
    MU_W.key: "greedy",
    ROBUST.key: "robust",
    ROBUST_MU_W.key: "robust",
}
"""Keys of win rates and of their time averages → the rate that the key names; None: the one that was chosen."""
WITHOUT = {
    ROBUST.key: "no robust win rate: no evaluation from shifted starts (skirmish with eval.robust_jitter)",
    TRAINED.key: "no training win rate was logged",
}
"""Why a run has no point of a quantity, where more is known than that there is none yet."""


def find_rate(key: str, chosen: RateName) -> RateName | None:
    """Find the rate that a key draws; None where the key is neither a win rate nor the time average of one."""
    return _RATES_OF_KEYS[key] or chosen if key in _RATES_OF_KEYS else None


def follows_rate(key: str) -> bool:
    """Whether a key draws the win rate that was chosen, or its time average."""
    return key in (CHOSEN_RATE, CHOSEN_MU_W)


def is_mu_w(key: str) -> bool:
    """Whether a key draws the time average of a win rate."""
    return key in _MU_W_KEYS.values()


def find_quantity(key: str) -> Quantity:
    """Find what a key draws: an evaluated quantity or a logged metric; the win rate for anything else."""
    if is_known(key):
        known = describe_metric(key)
        return Quantity(key, key, known.unit, known.meaning)
    return EVALUATED.get(key, WIN_RATE)


def success_threshold(config: Mapping[str, Any]) -> float | None:
    """The return [env return] from which on an episode of a run is a success; None where `won` decides."""
    memory: object = config.get("memory") if config else None
    if not isinstance(memory, Mapping):  # a stored row may hold anything
        return None
    return _threshold(memory.get("success"), memory.get("success_threshold"))


def _threshold(rule: object, value: object) -> float | None:
    known = rule == "return_threshold" and isinstance(value, int | float) and isfinite(value)
    return float(value) if known and isinstance(value, int | float) else None


def name_success(threshold: float) -> str:
    """The share of successes as an axis calls it: "success (return ≥ -18)"."""
    return f"success (return ≥ {threshold:g})"


def name_outcome(config: Mapping[str, Any], *, won: bool, episode_return: float) -> str:
    """How an episode ended: won or not, or by the return where that decides."""
    threshold = success_threshold(config)
    if threshold is None:
        return "won" if won else "not won"
    told = "success" if episode_return >= threshold else "no success"
    return f"{told}, won" if won else told


def say_rule(quantity: Quantity, settings: Iterable[Settings]) -> Quantity:
    """Write the threshold of the runs into the quantity's name, where it is their success rate; shifts where robust."""
    if quantity.key == ROBUST.key:
        return replace(quantity, meaning=explain_robust(settings))
    if quantity.key != SUCCESS_RATE:
        return quantity
    found = {_threshold(each.get("memory.success"), each.get("memory.success_threshold")) for each in settings}
    known = [threshold for threshold in found if threshold is not None]
    title = name_success(known[0]) if len(known) == 1 else "success (return ≥ each run's own threshold)"
    return replace(quantity, title=title, range=UNIT_RANGE)


def explain_robust(settings: Iterable[Settings]) -> str:
    """What the robust win rate of some runs is: "share won … from starts shifted by up to 0.05 cells"."""
    found = (each.get("eval.robust_jitter") for each in settings)
    known = sorted({float(value) for value in found if isinstance(value, int | float) and value > 0})
    shifts = " to ".join(f"{each:g}" for each in dict.fromkeys((*known[:1], *known[-1:])))
    starts = f"starts shifted by up to {shifts} cells" if shifts else "shifted starts"
    return f"share won of as many greedy episodes from {starts}"


def last_success(db: Database, run_id: str) -> float | None:
    """Read the success rate of the last evaluation; None before the first, and where `won` decides."""
    rows = metric(db, run_id, [SUCCESS_RATE])
    return float(rows["value"].iloc[-1]) if len(rows) else None
