"""Start positions of the units: the fixed positions of a map, or random ones as in SMACv2.

Fixed: the game creates a group at one point and moves its units to the nearest free positions. The exact offsets are
not published and therefore inferred: the positions are a square lattice around the point. It is filled from the center,
in the order in which the map's script creates the units.

Random: SMACv2 samples positions in an empty square of 32 by 32 cells. The team is surrounded in the center, or both
teams are mirror images. Here the same sampling uses the bounding rectangle of the walkable ground. As in the game, a
unit whose position is occupied or not walkable gets the nearest free one. The target point of the enemies, the ally
nearest to the center of the team, is inferred.
"""

import math
from itertools import product

import numpy as np
from numpy.typing import NDArray

from emtc_core.config.train import RandomStart
from emtc_core.envs.skirmish.kernels import inlined, kernel, uniform
from emtc_core.envs.skirmish.maps import is_on_ground, spawn_order
from emtc_core.envs.skirmish.movement import is_point_on_ground
from emtc_core.envs.skirmish.units import UnitType

MARGIN = 0.05
"""Gap between neighboring units at the start [cells] (inferred)."""
FIRST_ANGLE = 1.5 * math.pi
"""Angle of the first position that is filled in each ring of the lattice [rad] (inferred)."""
SURROUND_SHARE: dict[RandomStart, float] = {"surround": 1.0, "reflect": 0.0, "surround_reflect": 0.5}
"""Probability that the team is surrounded."""
MAX_GROUPS = 4
"""Maximum number of groups that surround the team, at most one per diagonal."""
GROUP_OFFSET = 2.0
"""Minimum distance of a surrounding group from the center, along each axis [cells] (SMACv2)."""
MIRROR_GAP = 1.0
"""Minimum distance of the team from the line of reflection [cells] (SMACv2)."""
SPOT_STEP = 0.25
"""Distance between the alternative positions for a unit whose position is not free [cells]."""
CORNERS = np.array([[0.0, 0.0], [0.0, 1.0], [1.0, 1.0], [1.0, 0.0]])


def make_positions(
    units: tuple[UnitType, ...], point: tuple[float, float], walkable: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Place the units of one team around a point, on walkable ground and without overlap.

    Source: inferred, because the game's offsets are not published; see the top of this module.

    Args:
        units: Types of the n units.
        point: Center of the team [cells].
        walkable: [X, Y] boolean, cells where units can walk.

    Returns:
        Shape [n, 2], positions in cells [map units].
    """

    def rank(offset: tuple[int, int]) -> tuple[int, float]:
        dx, dy = offset
        return dx * dx + dy * dy, (math.atan2(dy, dx) - FIRST_ANGLE) % math.tau

    spacing = 2.0 * max(unit.separation for unit in units) + MARGIN
    offsets = sorted(product(range(-6, 7), range(-6, 7)), key=rank)
    lattice = [(point[0] + spacing * dx, point[1] + spacing * dy) for dx, dy in offsets]
    free = [spot for spot in lattice if _is_walkable_around(walkable, spot)]
    positions = np.empty((len(units), 2))
    for spot, index in zip(free, spawn_order(units), strict=False):
        positions[index] = spot
    return positions


def _is_walkable_around(walkable: NDArray[np.bool_], spot: tuple[float, float]) -> bool:
    """Check that the corners of a square of one cell around a point are walkable."""
    cells = [(int(spot[0] + dx), int(spot[1] + dy)) for dx, dy in product((-0.5, 0.5), repeat=2)]
    return all(0 <= x < len(walkable) and 0 <= y < len(walkable) and walkable[x, y] for x, y in cells)


def shift_positions(
    positions_BU2: NDArray[np.float64], shift_BU2: NDArray[np.float64], ground: NDArray[np.int8]
) -> NDArray[np.float64]:
    """Shift units, except those that would leave the ground.

    Source: implementation detail.

    Args:
        positions_BU2: [B, U, 2], positions in cells [map units].
        shift_BU2: [B, U, 2], shifts in cells [map units].
        ground: [X, Y], from `maps.make_ground`, dimensionless.

    Returns:
        [B, U, 2], positions in cells [map units].
    """
    moved_BU2 = positions_BU2 + shift_BU2
    return np.where(is_on_ground(ground, moved_BU2)[..., None], moved_BU2, positions_BU2)


def order_within_types(units: tuple[UnitType, ...], positions_BN2: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sort the positions of each unit type by (x, y), in every battle.

    Source: SMAC orders its agents like this, and EMU its enemies.

    Args:
        units: Types of the N units.
        positions_BN2: [B, N, 2], positions in cells [map units].

    Returns:
        [B, N, 2], sorted positions in cells [map units].
    """
    ordered = positions_BN2.copy()
    names = np.array([unit.name for unit in units])
    for name in dict.fromkeys(names):
        slots = np.flatnonzero(names == name)
        group = positions_BN2[:, slots]
        rank = np.lexsort((group[..., 1], group[..., 0]), axis=-1)
        ordered[:, slots] = np.take_along_axis(group, rank[..., None], axis=1)
    return ordered


class Scatter:
    """Samples the start positions of one map, as SMACv2 does.

    Args:
        kind: Surrounded, reflected, or one of them at random.
        allies: Types of the allies.
        enemies: Types of the enemies.
        ground: From `maps.make_ground`, [X, Y].
    """

    def __init__(
        self,
        kind: RandomStart,
        *,
        allies: tuple[UnitType, ...],
        enemies: tuple[UnitType, ...],
        ground: NDArray[np.int8],
    ) -> None:
        n, units = len(allies), (*allies, *enemies)
        self._surround_share = SURROUND_SHARE[kind]
        self._n_allies, self._ground = n, ground
        self._size = np.array([unit.separation for unit in units])
        self._order = np.array(spawn_order(allies) + [n + k for k in spawn_order(enemies)])
        self._partner = np.concatenate([np.full(n, -1), _match_enemies(allies, enemies)])
        cells = np.argwhere(ground > 0)
        self._box = np.concatenate([cells.min(axis=0), cells.max(axis=0) + 1]).astype(np.float64)
        xs, ys = (np.arange(self._box[axis], self._box[axis + 2], SPOT_STEP) for axis in (0, 1))
        grid = np.stack(np.meshgrid(xs, ys, indexing="ij"), axis=-1).reshape(-1, 2)
        self._spots = grid[is_on_ground(ground, grid)]

    def draw(self, rng: NDArray[np.uint64]) -> NDArray[np.float64]:
        """Sample the positions of new battles.

        Source: the position distributions of SMACv2.

        Args:
            rng: [B], generator states, dimensionless. Battle b uses only generator b.

        Returns:
            [B, U, 2], positions in cells [map units].
        """
        positions = np.zeros((len(rng), len(self._size), 2))
        groups = np.zeros((MAX_GROUPS, 2))
        args = (self._ground, self._spots, self._size, self._order, self._partner, self._box)
        scatter(rng, positions, groups, *args, self._surround_share, self._n_allies)
        return positions

    def find_goals(self, positions: NDArray[np.float64]) -> NDArray[np.float64]:
        """Find the target points of the enemies: the ally nearest to the center of the team.

        Source: implementation detail.

        Args:
            positions: [B, U, 2], positions in cells [map units].

        Returns:
            [B, 2], points in cells [map units].
        """
        team = positions[:, : self._n_allies]
        central = np.linalg.norm(team - team.mean(axis=1, keepdims=True), axis=-1).argmin(axis=1)
        return team[np.arange(len(team)), central]


def _match_enemies(allies: tuple[UnitType, ...], enemies: tuple[UnitType, ...]) -> NDArray[np.int64]:
    """Return the ally of which each enemy is the mirror image.

    It is an ally of the same type; if none is left, any other ally; if none is left, -1.
    """
    partner = np.full(len(enemies), -1)
    free = list(range(len(allies)))
    for same_type in (True, False):
        for k in np.flatnonzero(partner < 0):
            candidates = [i for i in free if not same_type or allies[i].name == enemies[k].name]
            if candidates:
                partner[k] = candidates[0]
                free.remove(candidates[0])
    return partner


@inlined
def _is_free(
    positions: NDArray[np.float64],
    size: NDArray[np.float64],
    order: NDArray[np.int64],
    b: int,
    k: int,
    x: float,
    y: float,
) -> bool:
    """Check that the k-th unit in `order` does not touch the units that are placed before it."""
    for earlier in range(k):
        i = order[earlier]
        room = size[i] + size[order[k]] + MARGIN
        dx, dy = positions[b, i, 0] - x, positions[b, i, 1] - y
        if dx * dx + dy * dy < room * room:
            return False
    return True


@inlined
def _put(
    positions: NDArray[np.float64],
    ground: NDArray[np.int8],
    spots: NDArray[np.float64],
    size: NDArray[np.float64],
    order: NDArray[np.int64],
    b: int,
    k: int,
    x: float,
    y: float,
) -> None:
    """Place the k-th unit in `order` at (x, y), or at the nearest free spot."""
    if not (is_point_on_ground(ground, x, y) and _is_free(positions, size, order, b, k, x, y)):
        best, sampled_x, sampled_y = np.inf, x, y
        for s in range(len(spots)):
            dx, dy = spots[s, 0] - sampled_x, spots[s, 1] - sampled_y
            gap = dx * dx + dy * dy
            if gap < best and _is_free(positions, size, order, b, k, spots[s, 0], spots[s, 1]):
                best, x, y = gap, spots[s, 0], spots[s, 1]
    positions[b, order[k], 0], positions[b, order[k], 1] = x, y


@inlined
def _draw_groups(rng: NDArray[np.uint64], groups: NDArray[np.float64], box: NDArray[np.float64], b: int) -> int:
    """Sample the number of groups that surround the team, and write their positions. Returns the number."""
    count = 1 + int(uniform(rng, b, 0.0, float(MAX_GROUPS)))
    used_corners = 0  # one bit per corner
    for g in range(count):
        corner = int(uniform(rng, b, 0.0, float(MAX_GROUPS)))
        while used_corners >> corner & 1 == 1:
            corner = int(uniform(rng, b, 0.0, float(MAX_GROUPS)))
        used_corners |= 1 << corner
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
    positions: NDArray[np.float64],
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
    """Sample the start positions of B battles.

    Source: the position distributions of SMACv2.

    Args:
        rng: [B], generator states, dimensionless.
        positions: Output, [B, U, 2], positions in cells [map units].
        groups: Work array, [MAX_GROUPS, 2], positions of the groups in cells [map units].
        ground: [X, Y], from `maps.make_ground`, dimensionless.
        spots: [P, 2], alternative positions in cells [map units].
        size: [U], radius that a unit occupies, in cells [map units].
        order: [U], unit indices in the order of their placement, allies first.
        partner: [U], index of the ally of which a unit is the mirror image; -1: none.
        box: [4], bounding rectangle x0, y0, x1, y1 of the ground, in cells [map units].
        surround_share: Probability that the team is surrounded.
        n_allies: Number of allies.
    """
    x0, y0, x1, y1 = box[0], box[1], box[2], box[3]
    center_x, center_y = 0.5 * (x0 + x1), 0.5 * (y0 + y1)
    for b in range(len(positions)):
        surrounded = uniform(rng, b, 0.0, 1.0) < surround_share
        count = _draw_groups(rng, groups, box, b) if surrounded else 0
        for k in range(len(order)):
            i = order[k]
            if surrounded and i < n_allies:
                x, y = center_x, center_y
            elif surrounded:
                g = int(uniform(rng, b, 0.0, float(count)))
                x, y = groups[g, 0], groups[g, 1]
            elif partner[i] >= 0:
                x, y = x0 + x1 - positions[b, partner[i], 0], float(positions[b, partner[i], 1])
            elif i < n_allies:
                x, y = uniform(rng, b, x0, center_x - MIRROR_GAP), uniform(rng, b, y0, y1)
            else:
                x, y = uniform(rng, b, center_x, x1), uniform(rng, b, y0, y1)
            _put(positions, ground, spots, size, order, b, k, x, y)
