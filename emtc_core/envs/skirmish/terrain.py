"""Walkable ground of the maps: 32 by 32 unit cells, indexed [x, y], origin lower left.

The grids follow the rule that reproduces the game's own pathing bitmap: a cell is walkable when its four
corners lie on the high plateau and it is at least two cells away from the border.
"""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

SIZE = 32
CLEARANCE = 0.375
"""Distance that a unit's centre keeps from blocked cells: the hard body of most units."""
TerrainName = Literal["plain", "open", "arena", "corridor"]

_ARENA_ROWS = {
    7: (10, 19), 8: (9, 20), 9: (8, 21), **dict.fromkeys(range(10, 18), (7, 22)),
    18: (8, 21), 19: (9, 20), 20: (10, 19),
}  # fmt: skip
_CORRIDOR_ROWS = {
    2: (2, 13), **dict.fromkeys(range(3, 11), (2, 12)), 11: (2, 13), 12: (2, 14),
    13: (11, 25), 14: (12, 26), 15: (13, 27), 16: (13, 28), 17: (12, 29),
    **dict.fromkeys(range(18, 22), (11, 29)), 22: (12, 29), **{y: (y - 10, 29) for y in range(23, 30)},
}  # fmt: skip
_ROWS: dict[TerrainName, dict[int, tuple[int, int]]] = {
    "plain": dict.fromkeys(range(7, 25), (2, 29)),
    "open": dict.fromkeys(range(2, 30), (2, 29)),
    "arena": _ARENA_ROWS,
    "corridor": _CORRIDOR_ROWS,
}

Choke = tuple[float, float, float]
CORRIDOR_CHOKE: Choke = (13.0, 11.0, 15.0)
"""The rooms of corridor touch only along y = 13 for x in [11, 15)."""
NO_CHOKE: Choke = (-1.0, 0.0, 0.0)


def make_walkable(name: TerrainName) -> NDArray[np.bool_]:
    """Make the grid of one terrain, [x, y], True where units may stand."""
    grid = np.zeros((SIZE, SIZE), dtype=np.bool_)
    for y, (first, last) in _ROWS[name].items():
        grid[first : last + 1, y] = True
    return grid


def get_choke(name: TerrainName) -> Choke:
    """Get the passage between the rooms of a terrain as (y, x0, x1); NO_CHOKE where there is one room."""
    return CORRIDOR_CHOKE if name == "corridor" else NO_CHOKE


def make_ground(walkable: NDArray[np.bool_]) -> NDArray[np.int8]:
    """Grade cells for movement: 0 blocked, 1 beside a blocked cell, 2 with free cells all around."""
    padded = np.pad(walkable, 1)
    free = np.ones_like(walkable)
    for dx in range(3):
        for dy in range(3):
            free &= padded[dx : dx + SIZE, dy : dy + SIZE]
    return walkable.astype(np.int8) + free.astype(np.int8)


def may_stand(ground: NDArray[np.int8], places: NDArray[np.float64]) -> NDArray[np.bool_]:
    """For every place [..., 2], whether a body may stand there; the kernels' twin is `movement.fits`."""
    stands = np.ones(places.shape[:-1], dtype=np.bool_)
    for offset in ((0.0, 0.0), (CLEARANCE, 0.0), (-CLEARANCE, 0.0), (0.0, CLEARANCE), (0.0, -CLEARANCE)):
        cells = (places + offset).astype(np.int64)
        stands &= ground[cells[..., 0], cells[..., 1]] > 0
    return stands
