"""The memory atlas: a snapshot's nodes in a plane, coloured by one quantity."""

import numpy as np
from numpy.typing import NDArray

from app.analysis.node_quantities import QUANTITIES, values_of
from app.figures.kinds.cloud import Cloud
from app.figures.theme import VIRIDIS
from storage.queries.memory import Snapshot

MOST_WITH_FIELDS = 100_000
"""Beyond, the columns of numbers would weigh more than the picture."""


def draw_memory(
    snapshot: Snapshot,
    rows: NDArray[np.int64],
    coordinates: NDArray[np.float32],
    *,
    x_label: str,
    y_label: str,
    color: str,
    title: str,
    caption: str,
    every_quantity: bool = False,
    colors: tuple[str, ...] = VIRIDIS,
) -> Cloud:
    """Draw the chosen rows [n] at coordinates [n, 2]; in a fixed random order, so that no value hides another.

    Points without a value lie at the bottom. `every_quantity` of up to `MOST_WITH_FIELDS` points comes along.

    Raises:
        ValueError: If there is not one place for each row.
    """
    if coordinates.shape != (len(rows), 2):
        raise ValueError(f"coordinates must have shape ({len(rows)}, 2), got {coordinates.shape}")
    value = values_of(snapshot, color)[rows]
    shuffled = np.random.default_rng(0).permutation(len(rows))
    known = np.isfinite(value[shuffled])
    order = np.concatenate([shuffled[~known], shuffled[known]])
    told = QUANTITIES if every_quantity and len(rows) <= MOST_WITH_FIELDS else ()
    return Cloud(
        name="memory-atlas",
        title=title,
        x_label=x_label,
        y_label=y_label,
        x=np.ascontiguousarray(coordinates[order, 0]),
        y=np.ascontiguousarray(coordinates[order, 1]),
        slot=snapshot.slot[rows][order],
        value=value[order],
        quantity=QUANTITIES[color],
        caption=caption,
        fields=tuple((key, values_of(snapshot, key)[rows][order]) for key in told),
        scale=colors,
    )
