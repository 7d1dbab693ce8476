"""Names of the columns of a battle's arrays, and the table of constants per unit.

Kernels read `floats[b, i, X]` rather than records: one dtype per array keeps them small and quick to
compile. `floats` [B, U, *] and `ints` [B, U, *] change in time; `spec` [U, *] does not.
Units 0..n-1 are the agents in agent order, the rest the enemies in slot order.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from emtc_core.envs.skirmish.units import UnitType

# floats
X, Y = 0, 1
VX, VY = 2, 3
"""Displacement in the last loop, cells."""
FACE_X, FACE_Y = 4, 5
"""Unit vector of the facing."""
HEALTH, SHIELD, ENERGY = 6, 7, 8
COOLDOWN = 9
WIND = 10
"""Loops left of a running wind-up."""
HURT = 11
"""Loops since the last damage."""
PENDING = 12
"""Loops until the missile or the second blade under way lands."""
ORDER_X, ORDER_Y = 13, 14
"""Point of a move order."""
BEFORE = 15
"""Health plus shield at the last step boundary; 0 if dead then."""
BLOCKED = 16
"""Loops for which a walking unit has made no headway."""
OLD_X, OLD_Y = 17, 18
"""Position before the loop's movement."""
WANT_X, WANT_Y = 19, 20
"""Displacement that the unit wants in this loop."""
N_FLOATS = 21

# ints
ALIVE = 0
ORDER = 1
TARGET = 2
"""Unit that is attacked or healed; -1 none."""
WINDING = 3
PENDING_TARGET = 4
"""Target of the missile or second blade under way; -1 none."""
ENGAGED = 5
"""Unit that was last fired at without walking since; -1 none."""
ATTACKER = 6
"""Unit that did the last damage; -1 none."""
SIDE = 7
"""Side on which the unit walks around what stands in its way: -1, 1, or 0 while the way is free."""
MOBILITY = 8
"""What the unit did in this loop: PLANTED, IDLE or WALKING."""
LAST_ACTION = 9
"""The agent's last action; -1 before the first."""
N_INTS = 10

STAND, MOVE, ATTACK, HEAL = 0, 1, 2, 3
"""Orders; from ATTACK on they have a target."""
PLANTED, IDLE, WALKING = 0, 1, 2

# spec
S_HEALTH, S_SHIELD, S_ARMOR = 0, 1, 2
S_SPEED, S_ACCELERATION = 3, 4
S_RADIUS, S_SEPARATION = 5, 6
S_DAMAGE, S_BONUS, S_BONUS_AGAINST, S_ATTRIBUTE = 7, 8, 9, 10
S_REACH, S_SCAN = 11, 12
S_PERIOD, S_WIND_UP, S_SHOWN = 13, 14, 15
S_DELIVERY, S_MISSILE_SPEED = 16, 17
S_LAYER, S_HITS_AIR = 18, 19
S_BIOLOGICAL, S_ZERG = 20, 21
S_TYPE_BIT = 22
"""Index of the type's one-hot; -1 where rows carry none."""
N_SPEC = 23

INSTANT, MISSILE, BLADES, LINE, MEND = 0, 1, 2, 3, 4
GROUND, GIANT, AIR = 0, 1, 2
_DELIVERY = {"instant": INSTANT, "missile": MISSILE, "blades": BLADES, "line": LINE, "heal": MEND}
_LAYER = {"ground": GROUND, "giant": GIANT, "air": AIR}
_ATTRIBUTE = {"none": 0, "light": 1, "armored": 2}


Outputs = NDArray[np.float32]
Flags = NDArray[np.bool_]


class World(NamedTuple):
    """B battles of U units as the kernels see them; only `spec`, `ground` and `choke` stay as they are."""

    floats: NDArray[np.float64]  # [B, U, N_FLOATS]
    ints: NDArray[np.int64]  # [B, U, N_INTS]
    spec: NDArray[np.float64]  # [U, N_SPEC]
    ground: NDArray[np.int8]  # [X, Y] of `maps.make_ground`
    choke: NDArray[np.float64]  # of `maps.get_choke`
    goals: NDArray[np.float64]  # [B, 2] where the enemies march to
    rng: NDArray[np.uint64]  # [B] words of `kernels.make_words`
    clock: NDArray[np.int64]  # [B] game loops
    running: NDArray[np.bool_]  # [B]
    n_allies: int


def make_spec(units: tuple[UnitType, ...], type_bits: list[int]) -> NDArray[np.float64]:
    """Tabulate the constants of units, one row each."""
    return np.array([_row(unit, bit) for unit, bit in zip(units, type_bits, strict=True)], dtype=np.float64)


def _row(unit: UnitType, bit: int) -> list[float]:
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
