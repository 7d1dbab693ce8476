"""Learning curves over seeds: runs that differ in nothing but their seed make one line."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from app.figures.chart import Chart, Line, Panel, Values, column
from app.theme import OKABE_ITO

_DASHES = (None, (7, 4), (2, 3), (10, 3), (4, 4))


def draw_learning_curves(groups: Mapping[str, Sequence[pd.DataFrame]]) -> Chart:
    """Draw the mean greedy win rate of every group with a band of one standard deviation over its seeds.

    Args:
        groups: Label → evaluations (env_step, win_rate) of each seed; seeds that evaluated at different steps
            are aligned by linear interpolation, over the steps that all of them reached.
    """
    lines = tuple(_line(i, label, frames) for i, (label, frames) in enumerate(groups.items()))
    panel = Panel("win rate", "fraction", lines, range=(-0.03, 1.03))
    caption = (
        "Share of greedy evaluation episodes won: episodes are averaged per seed first, then line and band are "
        "mean ± standard deviation over seeds (n in the legend; no band for a single seed)."
    )
    described = f"Win rate over training env steps of {len(lines)} groups: {', '.join(line.name for line in lines)}."
    return Chart("learning-curves", "Learning curves", "training env steps", (panel,), caption, described)


def align_seeds(frames: Sequence[pd.DataFrame]) -> tuple[Values, Values]:
    """Bring the win rates of several seeds onto the steps at which any of them evaluated.

    Returns:
        Steps [T] that all seeds reached, and win rates [seeds, T].
    """
    steps = np.unique(np.concatenate([column(frame, "env_step") for frame in frames]))
    first = max(column(frame, "env_step")[0] for frame in frames)
    last = min(column(frame, "env_step")[-1] for frame in frames)
    steps = steps[(steps >= first) & (steps <= last)]
    return steps, np.stack([np.interp(steps, column(f, "env_step"), column(f, "win_rate")) for f in frames])


def _line(i: int, label: str, frames: Sequence[pd.DataFrame]) -> Line:
    steps, rates = align_seeds(frames)
    mean = rates.mean(axis=0)
    spread = rates.std(axis=0, ddof=1) if len(frames) > 1 else None
    return Line(
        f"{label} (n = {len(frames)})",
        OKABE_ITO[i % len(OKABE_ITO)],
        steps,
        mean,
        None if spread is None else mean - spread,
        None if spread is None else mean + spread,
        dash=_DASHES[i % len(_DASHES)],
    )
