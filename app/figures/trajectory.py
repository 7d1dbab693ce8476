"""Δ_mem, β and H along one episode."""

import numpy as np
from numpy.typing import NDArray

from app.figures.kinds.chart import Chart, Line, Panel
from app.figures.theme import BETA, DELTA_MEM, H_VALUE, RETURN

X_LABEL = "t, step of the episode"
Series = NDArray[np.floating] | None


def draw_trajectory(
    *, title: str, reward: Series, h: Series = None, delta_mem: Series = None, beta: Series = None
) -> Chart:
    """Draw what is known about each transition of an episode [T]; absent quantities have no panel."""
    panels = []
    if delta_mem is not None:
        panels.append(_panel("Δ_mem", "return", DELTA_MEM, delta_mem, from_zero=True))
    if beta is not None:
        panels.append(_panel("β", "fraction", BETA, beta, range=(-0.03, 1.03)))
    if h is not None:
        panels.append(_panel("H", "return", H_VALUE, h))
    if reward is not None:
        panels.append(_panel("reward", "return", RETURN, reward))
    caption = (
        "Δ_mem = |r + γ·H(s′) − H(s)| when the episode was written, and the gate β that weighed its incentive. "
        "A gap means that the memory held no node within δ."
    )
    described = f"{title}. Panels: {', '.join(panel.title for panel in panels)}, over {_steps(panels)} steps."
    return Chart("trajectory", title, X_LABEL, tuple(panels), caption, described)


def _panel(
    title: str,
    unit: str,
    color: str,
    values: NDArray[np.floating],
    *,
    range: tuple[float, float] | None = None,
    from_zero: bool = False,
) -> Panel:
    y = np.asarray(values, dtype=np.float64)
    line = Line(title, color, np.arange(len(y), dtype=np.float64), y)
    return Panel(title, unit, (line,), range=range, from_zero=from_zero)


def _steps(panels: list[Panel]) -> int:
    return len(panels[0].lines[0].x) if panels else 0
