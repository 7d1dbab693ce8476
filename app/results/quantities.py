"""Which quantity is drawn over env steps: its words, its unit, and where its values stand."""

from dataclasses import dataclass

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


UNIT_RANGE = (-0.03, 1.03)
_WON = "share of greedy evaluation episodes won"
_RETURN = "mean undiscounted return of greedy evaluation episodes"
WIN_RATE = Quantity("win_rate", "win rate", "fraction", _WON, "win_rate", UNIT_RANGE)
MU_W = Quantity("mu_w", "μ̄_w", "fraction", MU_W_MEANING, "win_rate", UNIT_RANGE)
RETURN = Quantity("return", "episode return", "env return", _RETURN, "return_mean")
LENGTH = Quantity("length", "episode length", "env steps", "mean length of greedy evaluation episodes", "length_mean")
EVALUATED = {each.key: each for each in (WIN_RATE, MU_W, RETURN, LENGTH)}


def find_quantity(key: str) -> Quantity:
    """Find what a key draws: an evaluated quantity or a logged metric; the win rate for anything else."""
    if key in METRICS:
        known = METRICS[key]
        return Quantity(key, key, known.unit, known.meaning)
    return EVALUATED.get(key, WIN_RATE)
