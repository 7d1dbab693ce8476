"""What units are told to do: the agents by their actions, the built-in enemy by targets of its own.

Actions become orders, legality first, then stop, move, attack or heal. The enemy chooses a target per loop: sticky
nearest targets, retaliation and calls for help. Allies never choose; they do what their agents order. What does not
live here: walking there and firing (`combat.py`).
"""

import numpy as np
from numpy.typing import NDArray

from emtc_core.envs.skirmish import columns as c
from emtc_core.envs.skirmish.kernels import kernel, part
from emtc_core.envs.skirmish.movement import JAMMED
from emtc_core.envs.skirmish.units import HEAL_SEARCH, HEAL_START_ENERGY, RANGE_SLOP

MOVE_AMOUNT = 2.0
N_MOVES = 6

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


@kernel
def give_orders(w: c.World, actions: NDArray[np.int64], avail: c.Flags) -> int:
    """Give the agents of running battles their orders.

    Returns:
        -1, or the flat index b * N + i of the first illegal action; then no order was given.
    """
    n_envs, n_agents = actions.shape
    for b in range(n_envs):
        for i in range(n_agents):
            action = actions[b, i]
            if w.running[b] and (action < 0 or action >= avail.shape[2] or not avail[b, i, action]):
                return b * n_agents + i
    for b in range(n_envs):
        if w.running[b]:
            for i in range(n_agents):
                w.ints[b, i, c.LAST_ACTION] = actions[b, i]
                _give_order(w, n_agents, b, i, actions[b, i])
    return -1


@part
def _give_order(w: c.World, n_agents: int, b: int, i: int, action: int) -> None:
    if action >= N_MOVES:
        heals = w.spec[i, c.S_DELIVERY] == c.MEND
        target = action - N_MOVES + (0 if heals else n_agents)
        # The game rejects an order that the weapon cannot carry out; the unit goes on with its last one.
        if heals or can_hit(w, i, target):
            if w.ints[b, i, c.TARGET] != target:
                w.ints[b, i, c.WINDING] = 0
            w.ints[b, i, c.ORDER], w.ints[b, i, c.TARGET] = (c.HEAL if heals else c.ATTACK), target
        return
    w.ints[b, i, c.TARGET], w.ints[b, i, c.ORDER] = -1, c.STAND
    if action > 1:
        w.ints[b, i, c.ORDER] = c.MOVE
        step_x = MOVE_AMOUNT if action == 4 else (-MOVE_AMOUNT if action == 5 else 0.0)
        step_y = MOVE_AMOUNT if action == 2 else (-MOVE_AMOUNT if action == 3 else 0.0)
        w.floats[b, i, c.ORDER_X] = w.floats[b, i, c.X] + step_x
        w.floats[b, i, c.ORDER_Y] = w.floats[b, i, c.Y] + step_y


@part
def edge_distance(w: c.World, b: int, i: int, j: int) -> float:
    """Measure the gap between two bodies."""
    dx = w.floats[b, j, c.X] - w.floats[b, i, c.X]
    dy = w.floats[b, j, c.Y] - w.floats[b, i, c.Y]
    return np.sqrt(dx * dx + dy * dy) - w.spec[i, c.S_RADIUS] - w.spec[j, c.S_RADIUS]


@part
def can_hit(w: c.World, i: int, j: int) -> bool:
    """Whether the weapon of i reaches the plane of j."""
    return w.spec[i, c.S_DELIVERY] != c.MEND and (w.spec[j, c.S_LAYER] != c.AIR or w.spec[i, c.S_HITS_AIR] > 0.0)


@part
def _attackers(w: c.World, b: int, ally: int) -> int:
    count = 0
    for j in range(w.n_allies, w.ints.shape[1]):
        if w.ints[b, j, c.TARGET] == ally and w.ints[b, j, c.MOBILITY] == c.PLANTED and w.ints[b, j, c.ALIVE] == 1:
            count += 1
    return count


@part
def _nearest(w: c.World, b: int, i: int, within: float) -> int:
    best, best_edge = -1, np.inf
    for j in range(w.n_allies):
        if w.ints[b, j, c.ALIVE] == 1 and can_hit(w, i, j):
            edge = edge_distance(w, b, i, j)
            if edge > within:
                continue
            if w.spec[i, c.S_REACH] < 1.0:
                edge += CROWD * _attackers(w, b, j)
            if edge < best_edge:
                best, best_edge = j, edge
    return best


@part
def _caller(w: c.World, b: int, i: int) -> int:
    best, best_gap = -1, HELP_RADIUS * HELP_RADIUS
    for j in range(w.n_allies, w.ints.shape[1]):
        attacker = w.ints[b, j, c.ATTACKER]
        if attacker < 0 or w.floats[b, j, c.HURT] > HELP_LOOPS or w.ints[b, attacker, c.ALIVE] == 0:
            continue
        dx = w.floats[b, j, c.X] - w.floats[b, i, c.X]
        dy = w.floats[b, j, c.Y] - w.floats[b, i, c.Y]
        gap = -1.0 if j == i else dx * dx + dy * dy
        if gap <= best_gap and can_hit(w, i, attacker):
            best, best_gap = attacker, gap
    return best


@part
def _wounded(w: c.World, b: int, i: int) -> int:
    best, best_fraction = -1, 1.0
    if w.floats[b, i, c.ENERGY] < HEAL_START_ENERGY and w.ints[b, i, c.TARGET] < 0:
        return -1
    for j in range(w.n_allies, w.ints.shape[1]):
        if w.ints[b, j, c.ALIVE] == 1 and w.spec[j, c.S_BIOLOGICAL] > 0.0:
            fraction = w.floats[b, j, c.HEALTH] / w.spec[j, c.S_HEALTH]
            if fraction < best_fraction and edge_distance(w, b, i, j) <= HEAL_SEARCH:
                best, best_fraction = j, fraction
    return best


@part
def choose_target(w: c.World, b: int, i: int, clock: int) -> int:
    """Choose the target of enemy i in this loop: an ally to attack, a friend to heal, or -1.

    A target is kept while it is in weapon reach; while it is not, a candidate that is in reach replaces
    it, and a unit that cannot get through takes the nearest instead.
    """
    target = w.ints[b, i, c.TARGET]
    if w.spec[i, c.S_DELIVERY] == c.MEND:
        hurt = target >= 0 and w.floats[b, target, c.HEALTH] < w.spec[target, c.S_HEALTH]
        if hurt and w.ints[b, target, c.ALIVE] == 1:
            return target
        return _wounded(w, b, i)
    if target >= 0 and w.ints[b, target, c.ALIVE] == 1:
        edge = edge_distance(w, b, i, target)
        if w.ints[b, i, c.WINDING] == 1 or edge <= w.spec[i, c.S_REACH] + RANGE_SLOP:
            return target
        if (clock + i - w.n_allies) % RESCAN_LOOPS != 0 and edge <= LEASH:
            return target
        is_blocked = w.floats[b, i, c.BLOCKED] >= JAMMED
        other = _nearest(w, b, i, w.spec[i, c.S_SCAN] if is_blocked else w.spec[i, c.S_REACH])
        if other >= 0:
            return other
        if edge <= LEASH:
            return target
    if (clock + i - w.n_allies + FIRST_LOOK) % ACQUIRE_LOOPS != 0:
        return -1
    other = _nearest(w, b, i, w.spec[i, c.S_SCAN])
    if other >= 0:
        return other
    return _caller(w, b, i)
