"""Readings of the paper side by side, on one stream of episodes; the caption says which shows the published shape."""

from collections.abc import Callable, Sequence

import numpy as np

from app.analysis.readings import Point, Reading
from app.figures.kinds.chart import Chart, Line, Panel, Values
from app.figures.theme import BETA, DELTA_MEM, TAU

X_LABEL = "recorded training env steps"
ENDS = 10  # the first and the last tenth of the points are compared
FALLS, RISES = 0.5, 0.25  # Δ̄ at most half of what it was; β̄ higher by a quarter of its range
LINKS_DASH = (6, 4)


def draw_readings(readings: Sequence[Reading], *, run: str, refit_every: int | None = None) -> Chart:
    """Draw Δ̄ beside β̄ in one row for each reading, new transitions solid with their band, the memory's links dashed.

    Args:
        readings: The readings in the order of their rows.
        run: Name of the run.
        refit_every: Interval of the refits [env steps] if it was not the readings' own.
    """
    refits = "" if refit_every is None else f"Embedders refitted every {refit_every:,} env steps (--refit-every). "
    panels = [draw(reading) for reading in readings for draw in (_delta_panel, _beta_panel)]
    caption = (
        f"The recorded episodes of {run} judged again by each reading of the paper. Solid: mean over the transitions "
        "collected since the last point, band from their 10 % to their 90 % quantile; dashed: mean over the links "
        "stored in the memory; long dashes: τ. " + refits + " ".join(describe_shape(reading) for reading in readings)
    )
    described = f"One row each for {', '.join(r.name for r in readings)}: delta_mem and beta over env steps."
    title = f"Readings of the gate on the episodes of {run}"
    return Chart("gate-readings", title, X_LABEL, tuple(panels), caption, described, columns=2)


def describe_shape(reading: Reading) -> str:
    """Say in one sentence, with numbers, how much of the published shape (Δ̄ falls to 0, β̄ rises to 1) is there."""
    delta, beta = reading.series(lambda p: p.delta_new[0]), reading.series(lambda p: p.beta_new[0])
    if len(delta) < 2 * ENDS:
        return f"{reading.name}: too few points to tell a shape."
    (d0, d1), (b0, b1) = (_ends(values) for values in (delta, beta))
    falls, rises = d0 > 0 and d1 <= FALLS * d0, b1 >= b0 + RISES
    verdict = {
        (True, True): "both halves of the published shape",
        (True, False): "Δ̄ falls, β̄ does not rise",
        (False, True): "β̄ rises, Δ̄ does not fall",
        (False, False): "not the published shape",
    }[falls, rises]
    closed, merged = np.nanmean(reading.series(lambda p: p.closed)), np.nanmean(reading.series(lambda p: p.merge_rate))
    return (
        f"{reading.name}: Δ̄ {d0:.2g} → {d1:.2g}, β̄ {b0:.2f} → {b1:.2f} ({verdict}); "
        f"{merged:.1%} of states merged, {closed:.1%} of gates below 0.5."
    )


def _ends(values: Values) -> tuple[float, float]:
    """Average the first and the last tenth; 0 where nothing was measured at all."""
    n = max(1, len(values) // ENDS)
    parts = (values[:n], values[-n:])
    first, last = (float(part[np.isfinite(part)].mean()) if np.isfinite(part).any() else 0.0 for part in parts)
    return first, last


def _delta_panel(reading: Reading) -> Panel:
    x = reading.series(lambda p: p.env_step)
    lines = (
        _banded(reading, "new transitions", DELTA_MEM, x, lambda p: p.delta_new),
        Line("memory links", DELTA_MEM, x, reading.series(lambda p: p.delta_links), dash=LINKS_DASH, width=1.5),
        Line("τ", TAU, x, reading.series(lambda p: p.tau), dash=(8, 3), width=1.2),
    )
    return Panel(f"Δ̄_mem, {reading.name}", "return", lines, from_zero=True)


def _beta_panel(reading: Reading) -> Panel:
    x = reading.series(lambda p: p.env_step)
    lines = (
        _banded(reading, "new transitions", BETA, x, lambda p: p.beta_new),
        Line("memory links", BETA, x, reading.series(lambda p: p.beta_links), dash=LINKS_DASH, width=1.5),
    )
    return Panel(f"β̄, {reading.name}", "fraction", lines, range=(-0.03, 1.03))


def _banded(
    reading: Reading, name: str, color: str, x: Values, value: Callable[[Point], tuple[float, float, float]]
) -> Line:
    mean, low, high = (reading.series(lambda p, i=i: value(p)[i]) for i in range(3))
    return Line(name, color, x, mean, low, high)
