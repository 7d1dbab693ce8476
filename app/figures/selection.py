"""What was selected on a map held against the rest of it, as distributions that share one x axis."""

import numpy as np
from numpy.typing import NDArray

from app.analysis.node_quantities import QUANTITIES, values_of
from app.figures.kinds.chart import Chart, Line, Panel
from app.figures.theme import BETA, NEUTRAL
from storage.queries.memory import Snapshot

DRAWN = ("h", "delta_mem", "beta", "t")
_PARTS = np.linspace(0.0, 1.0, 101)


def draw_selection(
    snapshot: Snapshot, chosen: NDArray[np.bool_], among: NDArray[np.bool_], *, run: str, words: str
) -> Chart:
    """Draw the quantiles of H, Δ_mem, β and t of the chosen nodes [M] and of the rest of those on the map.

    A curve at 40 % says which value four nodes in ten do not exceed.
    """
    parts = (("selected", BETA, chosen & among), ("rest", NEUTRAL, among & ~chosen))
    panels = []
    for key in DRAWN:
        quantity, values = QUANTITIES[key], values_of(snapshot, key)
        lines = tuple(
            Line(name, color, 100 * _PARTS, _quantiles(values[mask]), width=2.4 if name == "selected" else 1.6)
            for name, color, mask in parts
        )
        panels.append(Panel(quantity.name, quantity.unit, lines))
    n, total = int(parts[0][2].sum()), int(among.sum())
    caption = (
        f"{n:,} of {total:,} nodes selected on the map of {run} at env step {snapshot.env_step:,}: {words}. "
        "At each share the value that so many nodes do not exceed; nodes without a value are left out."
    )
    title = f"Selected memories of {run}"
    return Chart("memory-selection", title, "share of nodes [%]", tuple(panels), caption, caption, columns=2)


def _quantiles(values: NDArray[np.float32]) -> NDArray[np.float64]:
    known = values[np.isfinite(values)].astype(np.float64)
    return np.quantile(known, _PARTS) if len(known) else np.full(len(_PARTS), np.nan)
