"""Several runs in one chart."""

from collections.abc import Sequence

import pandas as pd

from app.figures.chart import Chart, Line, Panel, column
from app.theme import OKABE_ITO

_DASHES = (None, (7, 4), (2, 3), (10, 3), (4, 4))


def draw_win_rates(runs: Sequence[tuple[str, pd.DataFrame]]) -> Chart:
    """Draw each run's greedy win rate over env steps; colour and dash tell the runs apart."""
    lines = tuple(
        Line(
            name,
            OKABE_ITO[i % len(OKABE_ITO)],
            column(rows, "env_step"),
            column(rows, "win_rate"),
            dash=_DASHES[i % len(_DASHES)],
        )
        for i, (name, rows) in enumerate(runs)
    )
    panel = Panel("win rate", "fraction", lines, range=(-0.03, 1.03))
    caption = "Share of greedy evaluation episodes won; one line is one run (one seed), no averaging."
    described = f"Win rate over training env steps of {len(lines)} runs: {', '.join(line.name for line in lines)}."
    return Chart("win-rates", "Win rate of the last runs", "training env steps", (panel,), caption, described)
