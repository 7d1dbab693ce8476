"""Whom the built-in enemy attacks: sticky nearest targets, retaliation and calls for help.

What lives here: the choice of a target per loop. What does not: walking there and firing (`combat.py`).
Allies never choose; they do what their agents order.
"""

import numpy as np
from numpy.typing import NDArray

from emtc_core.envs.skirmish.columns import (
    AIR,
    ALIVE,
    ATTACKER,
    ENERGY,
    HEALTH,
    HURT,
    MEND,
    MOBILITY,
    PLANTED,
    S_BIOLOGICAL,
    S_DELIVERY,
    S_HEALTH,
    S_HITS_AIR,
    S_LAYER,
    S_RADIUS,
    S_REACH,
    S_SCAN,
    TARGET,
    WINDING,
    X,
    Y,
)
from emtc_core.envs.skirmish.compiled import part
from emtc_core.envs.skirmish.units import HEAL_SEARCH, HEAL_START_ENERGY, RANGE_SLOP

HELP_RADIUS = 4.0
"""Distance in which a unit under attack calls its friends."""
HELP_LOOPS = 32.0
"""Loops for which damage counts as being under attack."""
LEASH = 10.0
"""Edge distance at which a fleeing target is given up (inference)."""
ACQUIRE_LOOPS = 16
"""A unit without a target looks for one every so many loops, the enemies in turn (inference)."""
FIRST_LOOK = 4
"""Loops by which the first look comes early; so the real engine's win rates hold with and without a shift of the
starts (inference)."""
CROWD = 0.8
"""Cells of detour that one attacker in place at a target is worth to a melee unit (inference)."""
RESCAN_LOOPS = 4
"""A unit that still walks to its target looks around every so many loops (inference)."""


@part
def edge_distance(real: NDArray[np.float64], spec: NDArray[np.float64], b: int, i: int, j: int) -> float:
    """Measure the gap between two bodies."""
    dx = real[b, j, X] - real[b, i, X]
    dy = real[b, j, Y] - real[b, i, Y]
    return np.sqrt(dx * dx + dy * dy) - spec[i, S_RADIUS] - spec[j, S_RADIUS]


@part
def can_hit(spec: NDArray[np.float64], i: int, j: int) -> bool:
    """Say whether the weapon of i reaches the plane of j."""
    return spec[i, S_DELIVERY] != MEND and (spec[j, S_LAYER] != AIR or spec[i, S_HITS_AIR] > 0.0)


@part
def _attackers(whole: NDArray[np.int64], n_allies: int, b: int, ally: int) -> int:
    count = 0
    for j in range(n_allies, whole.shape[1]):
        if whole[b, j, TARGET] == ally and whole[b, j, MOBILITY] == PLANTED and whole[b, j, ALIVE] == 1:
            count += 1
    return count


@part
def _nearest(
    real: NDArray[np.float64],
    whole: NDArray[np.int64],
    spec: NDArray[np.float64],
    n_allies: int,
    b: int,
    i: int,
    within: float,
) -> int:
    best, best_edge = -1, np.inf
    for j in range(n_allies):
        if whole[b, j, ALIVE] == 1 and can_hit(spec, i, j):
            edge = edge_distance(real, spec, b, i, j)
            if edge > within:
                continue
            if spec[i, S_REACH] < 1.0:
                edge += CROWD * _attackers(whole, n_allies, b, j)
            if edge < best_edge:
                best, best_edge = j, edge
    return best


@part
def _caller(
    real: NDArray[np.float64],
    whole: NDArray[np.int64],
    spec: NDArray[np.float64],
    n_allies: int,
    b: int,
    i: int,
) -> int:
    best, best_gap = -1, HELP_RADIUS * HELP_RADIUS
    for j in range(n_allies, whole.shape[1]):
        attacker = whole[b, j, ATTACKER]
        if attacker < 0 or real[b, j, HURT] > HELP_LOOPS or whole[b, attacker, ALIVE] == 0:
            continue
        dx = real[b, j, X] - real[b, i, X]
        dy = real[b, j, Y] - real[b, i, Y]
        gap = -1.0 if j == i else dx * dx + dy * dy
        if gap <= best_gap and can_hit(spec, i, attacker):
            best, best_gap = attacker, gap
    return best


@part
def _wounded(
    real: NDArray[np.float64],
    whole: NDArray[np.int64],
    spec: NDArray[np.float64],
    n_allies: int,
    b: int,
    i: int,
) -> int:
    best, best_fraction = -1, 1.0
    if real[b, i, ENERGY] < HEAL_START_ENERGY and whole[b, i, TARGET] < 0:
        return -1
    for j in range(n_allies, whole.shape[1]):
        if whole[b, j, ALIVE] == 1 and spec[j, S_BIOLOGICAL] > 0.0:
            fraction = real[b, j, HEALTH] / spec[j, S_HEALTH]
            if fraction < best_fraction and edge_distance(real, spec, b, i, j) <= HEAL_SEARCH:
                best, best_fraction = j, fraction
    return best


@part
def choose_target(
    real: NDArray[np.float64],
    whole: NDArray[np.int64],
    spec: NDArray[np.float64],
    n_allies: int,
    b: int,
    i: int,
    clock: int,
) -> int:
    """Choose the target of enemy i in this loop: an ally to attack, a friend to heal, or -1.

    A target is kept while it is in weapon reach; while it is not, a candidate that is in reach replaces
    it, and a unit that cannot get through takes the nearest instead.
    """
    target = whole[b, i, TARGET]
    if spec[i, S_DELIVERY] == MEND:
        if target >= 0 and whole[b, target, ALIVE] == 1 and real[b, target, HEALTH] < spec[target, S_HEALTH]:
            return target
        return _wounded(real, whole, spec, n_allies, b, i)
    if target >= 0 and whole[b, target, ALIVE] == 1:
        edge = edge_distance(real, spec, b, i, target)
        if whole[b, i, WINDING] == 1 or edge <= spec[i, S_REACH] + RANGE_SLOP:
            return target
        if (clock + i - n_allies) % RESCAN_LOOPS != 0 and edge <= LEASH:
            return target
        other = _nearest(real, whole, spec, n_allies, b, i, spec[i, S_SCAN])
        if other >= 0:
            return other
        if edge <= LEASH:
            return target
    if (clock + i - n_allies + FIRST_LOOK) % ACQUIRE_LOOPS != 0:
        return -1
    other = _nearest(real, whole, spec, n_allies, b, i, spec[i, S_SCAN])
    if other >= 0:
        return other
    return _caller(real, whole, spec, n_allies, b, i)
