"""Where units stand when a battle begins: at the map's own places, or at random ones in the manner of SMACv2.

The game creates a group at one point and spreads it to the nearest free spots; the exact offsets are not
published. Here (inference) spots are a square lattice around the point, filled from the middle in the order
in which the map's script creates the units.

SMACv2 draws over a bare square of 32 by 32: surrounded in the middle, or face to face in mirror image. Here the same
draws run over the rectangle that bounds a map's walkable ground, and, as in the game, a unit whose place is taken or
off the ground gets the nearest free one. Whom the enemies march on, the middle of the team, is an inference.
"""

import math
from itertools import product

import numpy as np
from numpy.typing import NDArray

from emtc_core.config.train import RandomStart
from emtc_core.envs.skirmish.kernels import kernel, part, uniform
from emtc_core.envs.skirmish.maps import may_stand, spawn_order
from emtc_core.envs.skirmish.movement import fits
from emtc_core.envs.skirmish.units import UnitType

MARGIN = 0.05
"""Gap between neighbouring bodies of a fresh group (inference)."""
FIRST_ANGLE = 1.5 * math.pi
"""Angle at which each ring of the lattice begins to be filled, radians (inference)."""
SURROUND_SHARE: dict[RandomStart, float] = {"surround": 1.0, "reflect": 0.0, "surround_reflect": 0.5}
MAX_GROUPS = 4
GROUP_OFFSET = 2.0
"""Cells along each axis between the middle and the nearest place of a surrounding group (SMACv2)."""
MIRROR_GAP = 1.0
"""Cells that the team keeps from the line of reflection (SMACv2)."""
SPOT_STEP = 0.25
"""Cells between the places that are tried where a wanted one is taken."""
CORNERS = np.array([[0.0, 0.0], [0.0, 1.0], [1.0, 1.0], [1.0, 0.0]])


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


class Scatter:
    """Draws starts on one map."""

    def __init__(
        self,
        kind: RandomStart,
        *,
        allies: tuple[UnitType, ...],
        enemies: tuple[UnitType, ...],
        ground: NDArray[np.int8],
    ) -> None:
        n, units = len(allies), (*allies, *enemies)
        self._share = SURROUND_SHARE[kind]
        self._n_allies, self._ground = n, ground
        self._size = np.array([unit.separation for unit in units])
        self._order = np.array(spawn_order(allies) + [n + k for k in spawn_order(enemies)])
        self._partner = np.concatenate([np.full(n, -1), _pair(allies, enemies)])
        cells = np.argwhere(ground > 0)
        self._box = np.concatenate([cells.min(axis=0), cells.max(axis=0) + 1]).astype(np.float64)
        self._spots = _list_spots(self._box, ground)

    def draw(self, rng: NDArray[np.uint64]) -> NDArray[np.float64]:
        """Draw the places [B, U, 2] of a new battle per generator; draws of b come from generator b alone."""
        places = np.zeros((len(rng), len(self._size), 2))
        groups = np.zeros((MAX_GROUPS, 2))
        args = (self._ground, self._spots, self._size, self._order, self._partner, self._box)
        scatter(rng, places, groups, *args, self._share, self._n_allies)
        return places

    def find_goals(self, places: NDArray[np.float64]) -> NDArray[np.float64]:
        """Points [B, 2] on which the enemies march: the ally nearest to the middle of the team."""
        team = places[:, : self._n_allies]
        central = np.linalg.norm(team - team.mean(axis=1, keepdims=True), axis=-1).argmin(axis=1)
        return team[np.arange(len(team)), central]


def _pair(allies: tuple[UnitType, ...], enemies: tuple[UnitType, ...]) -> NDArray[np.int64]:
    """Whose mirror image each enemy is: an ally of its own type, else any that is left, else nobody's (-1)."""
    partner = np.full(len(enemies), -1)
    free = list(range(len(allies)))
    for alike in (True, False):
        for k in np.flatnonzero(partner < 0):
            found = [i for i in free if not alike or allies[i].name == enemies[k].name]
            if found:
                partner[k] = found[0]
                free.remove(found[0])
    return partner


def _list_spots(box: NDArray[np.float64], ground: NDArray[np.int8]) -> NDArray[np.float64]:
    xs, ys = (np.arange(box[axis], box[axis + 2], SPOT_STEP) for axis in (0, 1))
    spots = np.stack(np.meshgrid(xs, ys, indexing="ij"), axis=-1).reshape(-1, 2)
    return spots[may_stand(ground, spots)]


@part
def _is_free(
    places: NDArray[np.float64], size: NDArray[np.float64], order: NDArray[np.int64], b: int, k: int, x: float, y: float
) -> bool:
    """Whether the k-th unit to be placed would touch none of those placed before it."""
    for earlier in range(k):
        i = order[earlier]
        room = size[i] + size[order[k]] + MARGIN
        dx, dy = places[b, i, 0] - x, places[b, i, 1] - y
        if dx * dx + dy * dy < room * room:
            return False
    return True


@part
def _put(
    places: NDArray[np.float64],
    ground: NDArray[np.int8],
    spots: NDArray[np.float64],
    size: NDArray[np.float64],
    order: NDArray[np.int64],
    b: int,
    k: int,
    x: float,
    y: float,
) -> None:
    """Put the k-th unit at (x, y), or at the nearest free spot."""
    if not (fits(ground, x, y) and _is_free(places, size, order, b, k, x, y)):
        best, wanted_x, wanted_y = np.inf, x, y
        for s in range(len(spots)):
            dx, dy = spots[s, 0] - wanted_x, spots[s, 1] - wanted_y
            gap = dx * dx + dy * dy
            if gap < best and _is_free(places, size, order, b, k, spots[s, 0], spots[s, 1]):
                best, x, y = gap, spots[s, 0], spots[s, 1]
    places[b, order[k], 0], places[b, order[k], 1] = x, y


@part
def _draw_groups(rng: NDArray[np.uint64], groups: NDArray[np.float64], box: NDArray[np.float64], b: int) -> int:
    """Draw how many groups surround the team, on which diagonals and how far out; return how many."""
    count = 1 + int(uniform(rng, b, 0.0, float(MAX_GROUPS)))
    taken = 0
    for g in range(count):
        corner = int(uniform(rng, b, 0.0, float(MAX_GROUPS)))
        while taken >> corner & 1 == 1:
            corner = int(uniform(rng, b, 0.0, float(MAX_GROUPS)))
        taken |= 1 << corner
        inward = uniform(rng, b, 0.0, 1.0)
        for axis in range(2):
            side = CORNERS[corner, axis]
            outer = box[axis] + side * (box[axis + 2] - box[axis])
            inner = 0.5 * (box[axis] + box[axis + 2]) + GROUP_OFFSET * (2.0 * side - 1.0)
            groups[g, axis] = inward * inner + (1.0 - inward) * outer
    return count


@kernel
def scatter(
    rng: NDArray[np.uint64],
    places: NDArray[np.float64],
    groups: NDArray[np.float64],
    ground: NDArray[np.int8],
    spots: NDArray[np.float64],
    size: NDArray[np.float64],
    order: NDArray[np.int64],
    partner: NDArray[np.int64],
    box: NDArray[np.float64],
    surround_share: float,
    n_allies: int,
) -> None:
    """Fill places [B, U, 2]; `order` is that of creation, allies first; `groups` is room to work in."""
    x0, y0, x1, y1 = box[0], box[1], box[2], box[3]
    middle_x, middle_y = 0.5 * (x0 + x1), 0.5 * (y0 + y1)
    for b in range(len(places)):
        surrounded = uniform(rng, b, 0.0, 1.0) < surround_share
        count = _draw_groups(rng, groups, box, b) if surrounded else 0
        for k in range(len(order)):
            i = order[k]
            if surrounded and i < n_allies:
                x, y = middle_x, middle_y
            elif surrounded:
                g = int(uniform(rng, b, 0.0, float(count)))
                x, y = groups[g, 0], groups[g, 1]
            elif partner[i] >= 0:
                x, y = x0 + x1 - places[b, partner[i], 0], float(places[b, partner[i], 1])
            elif i < n_allies:
                x, y = uniform(rng, b, x0, middle_x - MIRROR_GAP), uniform(rng, b, y0, y1)
            else:
                x, y = uniform(rng, b, middle_x, x1), uniform(rng, b, y0, y1)
            _put(places, ground, spots, size, order, b, k, x, y)
