"""Of what are the values of some seeds shares, and of how many episodes? What an interval of a win rate has to know."""

from collections.abc import Sequence

import numpy as np

from app.analysis.finals import FinalRule, count_final
from app.analysis.intervals import Rate, Values
from app.analysis.quantities import MU_W, WIN_RATE, Quantity
from app.analysis.series import Seed

USUAL_EPISODES = 16
"""Of an evaluation, where a run does not say: one that was imported."""


def rate_of(seeds: Sequence[Seed], *, top: float = 1.0, evaluations: float | Values = 1) -> Rate:
    """Tell what win rates of these seeds are shares of.

    Args:
        seeds: The runs; the fewest episodes of any of them count.
        top: What a win rate of 1 is written as.
        evaluations: How many evaluations each value averages.
    """
    return Rate(top, min((episodes_of(seed) for seed in seeds), default=USUAL_EPISODES) * evaluations)


def rate_of_final(seeds: Sequence[Seed], rule: FinalRule, *, top: float = 1.0, of: Quantity = WIN_RATE) -> Rate:
    """Tell it of the win rates at the end of these runs: of all the evaluations that the shortest mean is made of.

    A report of training counts as one episode, the least that it can be a share of.
    """
    count = min((count_final(seed, rule) for seed in seeds), default=1)
    return rate_of(seeds, top=top, evaluations=count) if of.counts_episodes else Rate(top, count)


def rate_of_mu_w(seeds: Sequence[Seed], steps: float | Values) -> Rate:
    """Tell it of mu_w at env steps [T], which averages the evaluations up to there."""
    counts = [np.searchsorted(seed.curve.steps, steps, side="right") for seed in seeds]
    return rate_of(seeds, evaluations=np.maximum(1.0, np.min(counts, axis=0)))


def rate_of_curve(quantity: Quantity, seeds: Sequence[Seed], steps: Values) -> Rate | None:
    """Tell it of a quantity at env steps [T]; None where its values are no shares."""
    if not quantity.is_share:
        return None
    if quantity.key == MU_W.key:
        return rate_of_mu_w(seeds, steps)
    return rate_of(seeds) if quantity.counts_episodes else Rate()


def episodes_of(seed: Seed) -> float:
    """Tell how many episodes an evaluation of this run plays."""
    episodes = seed.settings.get("eval.episodes")
    return float(episodes) if isinstance(episodes, int | float) and episodes > 0 else USUAL_EPISODES
