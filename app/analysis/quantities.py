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


@dataclass(frozen=True)
class Quantity:
    """What stands on the y axis."""

    key: str
    title: str
    unit: str
    meaning: str
    column: str = "value"
    range: tuple[float, float] | None = None

    @property
    def is_evaluation(self) -> bool:
        """Whether it comes from greedy evaluations, not from what training logs."""
        return self.key in EVALUATED

    @property
    def is_share(self) -> bool:
        """Whether its values lie in [0, 1]."""
        return self.unit == "fraction"

    @property
    def counts_episodes(self) -> bool:
        """Whether it is a share of the episodes of an evaluation."""
        return self.key in ("win_rate", "robust_win_rate", "eval/success_rate")


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
MU_W = Quantity("mu_w", "μ̄_w", "fraction", MU_W_MEANING, "win_rate", UNIT_RANGE)
RETURN = Quantity("return", "episode return", "env return", _RETURN, "return_mean")
LENGTH = Quantity("length", "episode length", "env steps", "mean length of greedy evaluation episodes", "length_mean")
EVALUATED = {each.key: each for each in (WIN_RATE, ROBUST, MU_W, RETURN, LENGTH)}

RateName = Literal["greedy", "robust", "training"]
RATE_NAMES: tuple[RateName, ...] = get_args(RateName)
RATES: dict[RateName, Quantity] = {"greedy": WIN_RATE, "robust": ROBUST, "training": TRAINED}
"""What a table of final win rates may be made of; greedy is SMAC's protocol."""
WITHOUT = {
    ROBUST.key: "no robust win rate: no evaluation from shifted starts (skirmish with eval.robust_jitter)",
    TRAINED.key: "no training win rate was logged",
}
"""Why a run has no point of a quantity, where more is known than that there is none yet."""


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
        return replace(quantity, meaning=_say_shifts(settings))
    if quantity.key != SUCCESS_RATE:
        return quantity
    found = {_threshold(each.get("memory.success"), each.get("memory.success_threshold")) for each in settings}
    known = [threshold for threshold in found if threshold is not None]
    title = name_success(known[0]) if len(known) == 1 else "success (return ≥ each run's own threshold)"
    return replace(quantity, title=title, range=UNIT_RANGE)


def _say_shifts(settings: Iterable[Settings]) -> str:
    """By how far the starts were shifted: "… from starts shifted by up to 0.05 cells"."""
    found = (each.get("eval.robust_jitter") for each in settings)
    known = sorted({float(value) for value in found if isinstance(value, int | float) and value > 0})
    shifts = " to ".join(f"{each:g}" for each in dict.fromkeys((*known[:1], *known[-1:])))
    starts = f"starts shifted by up to {shifts} cells" if shifts else "shifted starts"
    return f"share won of as many greedy episodes from {starts}"


def last_success(db: Database, run_id: str) -> float | None:
    """Read the success rate of the last evaluation; None before the first, and where `won` decides."""
    rows = metric(db, run_id, [SUCCESS_RATE])
    return float(rows["value"].iloc[-1]) if len(rows) else None
