"""Where units stand when a battle begins.

The game creates a group at one point and spreads it to the nearest free spots; the exact offsets are not
published. Here (inference) spots are a square lattice around the point, filled from the middle in the order
in which the map's script creates the units. Random starts are elsewhere (`scatter.py`).
"""

import math
from itertools import product

import numpy as np
from numpy.typing import NDArray

from emtc_core.envs.skirmish.maps import spawn_order
from emtc_core.envs.skirmish.terrain import may_stand
from emtc_core.envs.skirmish.units import UnitType

MARGIN = 0.05
"""Gap between neighbouring bodies of a fresh group (inference)."""
FIRST_ANGLE = 1.5 * math.pi
"""Angle at which each ring of the lattice begins to be filled, radians (inference)."""


def make_places(
    units: tuple[UnitType, ...], point: tuple[float, float], walkable: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Place units around a point on walkable ground, [n, 2]; no two bodies overlap."""
    spacing = 2.0 * max(unit.separation for unit in units) + MARGIN
    spots = [spot for spot in _lattice(point, spacing) if _stands(walkable, spot)]
    places = np.empty((len(units), 2))
    for spot, index in zip(spots, spawn_order(units), strict=False):
        places[index] = spot
    return places


def _lattice(point: tuple[float, float], spacing: float) -> list[tuple[float, float]]:
    offsets = sorted(product(range(-6, 7), range(-6, 7)), key=_rank)
    return [(point[0] + spacing * dx, point[1] + spacing * dy) for dx, dy in offsets]


def _rank(offset: tuple[int, int]) -> tuple[int, float]:
    dx, dy = offset
    return dx * dx + dy * dy, (math.atan2(dy, dx) - FIRST_ANGLE) % math.tau


def _stands(walkable: NDArray[np.bool_], spot: tuple[float, float]) -> bool:
    cells = [(int(spot[0] + dx), int(spot[1] + dy)) for dx, dy in product((-0.5, 0.5), repeat=2)]
    return all(0 <= x < len(walkable) and 0 <= y < len(walkable) and walkable[x, y] for x, y in cells)


def shift_places(
    places_BU2: NDArray[np.float64], shift_BU2: NDArray[np.float64], ground: NDArray[np.int8]
) -> NDArray[np.float64]:
    """Shift units from their places, except where a body would leave the ground."""
    moved_BU2 = places_BU2 + shift_BU2
    return np.where(may_stand(ground, moved_BU2)[..., None], moved_BU2, places_BU2)


def order_within_types(units: tuple[UnitType, ...], places_BN2: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sort the places of each unit type by (x, y), per battle: SMAC's order of agents and EMU's of enemies."""
    ordered = places_BN2.copy()
    names = np.array([unit.name for unit in units])
    for name in dict.fromkeys(names):
        slots = np.flatnonzero(names == name)
        group = places_BN2[:, slots]
        rank = np.lexsort((group[..., 1], group[..., 0]), axis=-1)
        ordered[:, slots] = np.take_along_axis(group, rank[..., None], axis=1)
    return ordered
