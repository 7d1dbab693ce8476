"""Names of the columns of a battle's arrays, and the table of constants per unit.

Kernels read `floats[b, i, X]` instead of a field of a NumPy structured array, because with arrays of one dtype the
kernels are small and fast to compile. `floats` [B, U, *] and `ints` [B, U, *] change during a battle, `spec` [U, *]
does not. Distances are in cells of the map (map units), times in game loops. Units 0..n-1 are the agents in agent
order, the other units are the enemies in slot order.

The names without a prefix are columns of `floats` and `ints`, the names with S_ are columns of `spec`. [unit varies]
means that each column has another physical unit.

In all kernels, `w` is the `World`, `b` the index of a battle, and `i` and `j` are indices of units.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from emtc_core.envs.skirmish.units import UnitType

# floats
X, Y = 0, 1
VX, VY = 2, 3
"""Displacement in the last loop."""
FACE_X, FACE_Y = 4, 5
"""Unit vector of the direction that the unit faces."""
HEALTH, SHIELD, ENERGY = 6, 7, 8
COOLDOWN = 9
"""Loops until the weapon can fire again."""
WIND_UP_LEFT = 10
"""Remaining loops of a wind-up, the delay between the start of an attack and the shot."""
SINCE_DAMAGE = 11
"""Loops since the last damage."""
PENDING = 12
"""Loops until the missile, or the second hit of a zealot, takes effect."""
ORDER_X, ORDER_Y = 13, 14
"""Target point of a move order."""
PREVIOUS_TOTAL = 15
"""Health plus shield at the end of the previous step; 0 if the unit was dead."""
BLOCKED = 16
"""Counter of a walking unit, at least 0: +1 in a loop with less progress than `movement.MIN_PROGRESS`, else -1."""
OLD_X, OLD_Y = 17, 18
"""Position at the start of the loop."""
PLANNED_X, PLANNED_Y = 19, 20
"""Displacement that the unit tries to make in this loop."""
N_FLOATS = 21

# ints
ALIVE = 0
ORDER = 1
TARGET = 2
"""Unit that is attacked or healed; -1: none."""
WINDING = 3
"""1 during a wind-up."""
PENDING_TARGET = 4
"""Target of the missile, or of the second hit of a zealot; -1: none."""
ENGAGED = 5
"""Index of the last target that the unit fired at; -1: none, or the unit has walked or changed its target since."""
ATTACKER = 6
"""Unit that caused the last damage; -1: none."""
SIDE = 7
"""The unit walks around an obstacle: the obstacle's direction turned by +90° (1) or -90° (-1). 0: the way is free."""
MOBILITY = 8
"""State of motion in this loop: PLANTED, IDLE or WALKING."""
LAST_ACTION = 9
"""The agent's last action; -1 before the first one."""
N_INTS = 10

STAND, MOVE, ATTACK, HEAL = 0, 1, 2, 3
"""Values of ORDER. ATTACK and HEAL have a target."""
PLANTED, IDLE, WALKING = 0, 1, 2
"""Values of MOBILITY. PLANTED: the unit attacks, no unit pushes it away. IDLE: its friends can push it away."""

# spec: constants of `units.UnitType`
S_HEALTH, S_SHIELD, S_ARMOR = 0, 1, 2
S_SPEED, S_ACCELERATION = 3, 4
S_RADIUS, S_SEPARATION = 5, 6
"""S_RADIUS: radius from which weapon ranges are measured. S_SEPARATION: radius for collisions."""
S_DAMAGE, S_BONUS, S_BONUS_AGAINST, S_ATTRIBUTE = 7, 8, 9, 10
S_REACH, S_SCAN = 11, 12
"""S_REACH: weapon range from edge to edge. S_SCAN: range in which an enemy unit searches for targets."""
S_PERIOD, S_WIND_UP, S_SHOWN = 13, 14, 15
"""S_SHOWN: the state contains the cooldown divided by this constant (`UnitType.shown_cooldown`)."""
S_DELIVERY, S_MISSILE_SPEED = 16, 17
S_LAYER, S_HITS_AIR = 18, 19
S_BIOLOGICAL, S_ZERG = 20, 21
S_TYPE_BIT = 22
"""Index of the unit type in the one-hot code; -1 if the observations of the map have no one-hot code."""
N_SPEC = 23

INSTANT, MISSILE, BLADES, LINE, HEALING = 0, 1, 2, 3, 4
"""Values of S_DELIVERY. BLADES: two hits. LINE: a beam that hits an area. HEALING: the unit heals its target."""
GROUND, GIANT, AIR = 0, 1, 2
"""Values of S_LAYER. GIANT: a ground unit that does not collide with units of the layer GROUND."""
_DELIVERY = {"instant": INSTANT, "missile": MISSILE, "blades": BLADES, "line": LINE, "heal": HEALING}
_LAYER = {"ground": GROUND, "giant": GIANT, "air": AIR}
_ATTRIBUTE = {"none": 0, "light": 1, "armored": 2}

Outputs = NDArray[np.float32]
"""Array that a kernel fills: observations, states or rewards."""
Flags = NDArray[np.bool_]


class World(NamedTuple):
    """The arrays of B battles with U units. Only `spec`, `ground`, `choke` and `n_allies` are constant.

    Source: the simulator of this project. The constants at the top of this module name the columns.
    """

    floats: NDArray[np.float64]  # [B, U, N_FLOATS] [unit varies], one column per quantity
    ints: NDArray[np.int64]  # [B, U, N_INTS] indices and states
    spec: NDArray[np.float64]  # [U, N_SPEC] [unit varies], from `make_spec`
    ground: NDArray[np.int8]  # [X, Y] 0 blocked, 1 next to a blocked cell, 2 free around; dimensionless
    choke: NDArray[np.float64]  # [3] passage between two rooms: its y, and its lowest and highest x [map units]
    goals: NDArray[np.float64]  # [B, 2] target point of the enemies' attack-move [map units]
    rng: NDArray[np.uint64]  # [B] states of the random generators (`kernels.make_words`), dimensionless
    clock: NDArray[np.int64]  # [B] game loops since the start of the battle, dimensionless
    running: NDArray[np.bool_]  # [B] boolean, whether the battle has not ended
    n_allies: int


def make_spec(units: tuple[UnitType, ...], type_bits: list[int]) -> NDArray[np.float64]:
    """Make the table of unit constants, one column per constant [unit varies].

    Source: `units.py`, which names the origin of each constant.

    Args:
        units: Types of the U units.
        type_bits: Index of each unit's type in the one-hot code; -1 if observations have no one-hot code.

    Returns:
        [U, N_SPEC]; distances in cells, times in game loops.
    """
    return np.array([_make_row(unit, bit) for unit, bit in zip(units, type_bits, strict=True)], dtype=np.float64)


def _make_row(unit: UnitType, bit: int) -> list[float]:
    row = [math.nan] * N_SPEC
    row[S_HEALTH], row[S_SHIELD], row[S_ARMOR] = unit.health, unit.shield, unit.armor
    row[S_SPEED], row[S_ACCELERATION] = unit.speed, unit.acceleration
    row[S_RADIUS], row[S_SEPARATION] = unit.radius, unit.separation
    row[S_DAMAGE], row[S_BONUS] = unit.damage, unit.bonus
    row[S_BONUS_AGAINST], row[S_ATTRIBUTE] = _ATTRIBUTE[unit.bonus_against], _ATTRIBUTE[unit.attribute]
    row[S_REACH], row[S_SCAN] = unit.reach, unit.scan
    row[S_PERIOD], row[S_WIND_UP], row[S_SHOWN] = unit.period, unit.wind_up, unit.shown_cooldown
    row[S_DELIVERY], row[S_MISSILE_SPEED] = _DELIVERY[unit.delivery], unit.missile_speed
    row[S_LAYER], row[S_HITS_AIR] = _LAYER[unit.layer], unit.hits_air
    row[S_BIOLOGICAL], row[S_ZERG], row[S_TYPE_BIT] = unit.biological, unit.zerg, bit
    return row
