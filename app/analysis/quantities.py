"""Which quantity is drawn over env steps: its words, its unit, and where its values stand."""

from dataclasses import dataclass
from typing import Literal, get_args

from emtc_core.metrics import METRICS

MU_W_MEANING = "time average of the win rate from the first evaluation to t (area under the curve, trapezoid rule)"


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
    if key in METRICS:
        known = METRICS[key]
        return Quantity(key, key, known.unit, known.meaning)
    return EVALUATED.get(key, WIN_RATE)
