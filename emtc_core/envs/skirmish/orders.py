"""Orders of the units: the agents' actions, and the targets that the built-in enemy chooses.

An agent's action is checked and converted to an order: stop, move, attack or heal. An enemy unit chooses a target in
each loop: the last target if it is in range, else the nearest ally, else the attacker of itself or of a friend.
Orders are carried out in `combat.py` and `movement.py`.
"""

import numpy as np
from numpy.typing import NDArray

from emtc_core.envs.skirmish import columns as c
from emtc_core.envs.skirmish.kernels import inlined, kernel
from emtc_core.envs.skirmish.movement import STUCK_FROM
from emtc_core.envs.skirmish.units import HEAL_SEARCH, HEAL_START_ENERGY, RANGE_TOLERANCE

MOVE_AMOUNT = 2.0
"""Distance of a move action [cells]."""
N_MOVES = 6
"""Number of actions without a target."""

# "Inferred": chosen so that the behavior resembles the game's, because the value is not published.
HELP_RADIUS = 4.0
"""Distance within which an enemy unit helps a friend under attack [cells]."""
HELP_LOOPS = 32.0
"""A unit counts as under attack for this number of loops after damage."""
MAX_FOLLOW_GAP = 10.0
"""Gap at which an enemy gives up a target that moves away [cells] (inferred)."""
ACQUIRE_LOOPS = 16
"""An enemy without a target searches for one every ACQUIRE_LOOPS loops, the enemies in turn (inferred)."""
FIRST_SEARCH_LOOPS = 4
"""The first search is FIRST_SEARCH_LOOPS loops earlier (inferred).

With this value, the win rates agree with the real game's, with and without shifted starts.
"""
GAP_PER_ATTACKER = 0.8
"""For a melee unit, each attacker at a target makes it appear this much farther away [cells] (inferred)."""
RESCAN_LOOPS = 4
"""An enemy that walks to its target checks for a better one every RESCAN_LOOPS loops (inferred)."""


@kernel
def give_orders(w: c.World, actions: NDArray[np.int64], avail: c.Flags) -> int:
    """Convert the agents' actions to orders in all running battles.

    Source: SMAC's `StarCraft2Env.get_agent_action`.

    Args:
        w: The battles.
        actions: [B, N], action index of each agent.
        avail: [B, N, A] boolean, available actions.

    Returns:
        -1; or the flat index b * N + i of the first illegal action, and then no order was given.
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


@inlined
def _give_order(w: c.World, n_agents: int, b: int, i: int, action: int) -> None:
    """Convert one action to an order of unit i."""
    if action >= N_MOVES:
        heals = w.spec[i, c.S_DELIVERY] == c.HEALING
        target = action - N_MOVES + (0 if heals else n_agents)
        # The game rejects an order that the weapon cannot carry out, and the unit keeps its last order.
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


@inlined
def edge_distance(w: c.World, b: int, i: int, j: int) -> float:
    """Return the gap between the edges of two units [cells]; negative if they overlap.

    Args:
        w: The battles.
        b: Index of the battle.
        i: Index of the first unit.
        j: Index of the second unit.
    """
    dx = w.floats[b, j, c.X] - w.floats[b, i, c.X]
    dy = w.floats[b, j, c.Y] - w.floats[b, i, c.Y]
    return np.sqrt(dx * dx + dy * dy) - w.spec[i, c.S_RADIUS] - w.spec[j, c.S_RADIUS]


@inlined
def can_hit(w: c.World, i: int, j: int) -> bool:
    """Check whether a unit has a weapon that can hit another unit; only some weapons can hit flying units.

    Args:
        w: The battles.
        i: Index of the unit with the weapon.
        j: Index of the target.
    """
    return w.spec[i, c.S_DELIVERY] != c.HEALING and (w.spec[j, c.S_LAYER] != c.AIR or w.spec[i, c.S_HITS_AIR] > 0.0)


@inlined
def _count_attackers(w: c.World, b: int, ally: int) -> int:
    """Count the enemies that are attacking an ally."""
    count = 0
    for j in range(w.n_allies, w.ints.shape[1]):
        if w.ints[b, j, c.TARGET] == ally and w.ints[b, j, c.MOBILITY] == c.PLANTED and w.ints[b, j, c.ALIVE] == 1:
            count += 1
    return count


@inlined
def _find_nearest(w: c.World, b: int, i: int, max_gap: float) -> int:
    """Find the nearest ally that enemy i can attack, within a gap [cells]; -1: none."""
    best, best_gap = -1, np.inf
    for j in range(w.n_allies):
        if w.ints[b, j, c.ALIVE] == 1 and can_hit(w, i, j):
            gap = edge_distance(w, b, i, j)
            if gap > max_gap:
                continue
            if w.spec[i, c.S_REACH] < 1.0:
                gap += GAP_PER_ATTACKER * _count_attackers(w, b, j)
            if gap < best_gap:
                best, best_gap = j, gap
    return best


@inlined
def _find_attacker(w: c.World, b: int, i: int) -> int:
    """Find the attacker of enemy i, or of its nearest friend under attack; -1: none."""
    best, best_gap = -1, HELP_RADIUS * HELP_RADIUS
    for j in range(w.n_allies, w.ints.shape[1]):
        attacker = w.ints[b, j, c.ATTACKER]
        if attacker < 0 or w.floats[b, j, c.SINCE_DAMAGE] > HELP_LOOPS or w.ints[b, attacker, c.ALIVE] == 0:
            continue
        dx = w.floats[b, j, c.X] - w.floats[b, i, c.X]
        dy = w.floats[b, j, c.Y] - w.floats[b, i, c.Y]
        gap = -1.0 if j == i else dx * dx + dy * dy
        if gap <= best_gap and can_hit(w, i, attacker):
            best, best_gap = attacker, gap
    return best


@inlined
def _find_wounded(w: c.World, b: int, i: int) -> int:
    """Find the friend of medivac i with the smallest fraction of health; -1: none."""
    best, best_fraction = -1, 1.0
    if w.floats[b, i, c.ENERGY] < HEAL_START_ENERGY and w.ints[b, i, c.TARGET] < 0:
        return -1
    for j in range(w.n_allies, w.ints.shape[1]):
        if w.ints[b, j, c.ALIVE] == 1 and w.spec[j, c.S_BIOLOGICAL] > 0.0:
            fraction = w.floats[b, j, c.HEALTH] / w.spec[j, c.S_HEALTH]
            if fraction < best_fraction and edge_distance(w, b, i, j) <= HEAL_SEARCH:
                best, best_fraction = j, fraction
    return best


@inlined
def choose_target(w: c.World, b: int, i: int, clock: int) -> int:
    """Select the target of an enemy unit in this loop: an ally to attack, a friend to heal, or -1.

    A target stays the same while it is in weapon range. If it is not, an ally in weapon range replaces it. If the unit
    is blocked, the nearest ally in sight replaces it.

    Args:
        w: The battles.
        b: Index of the battle.
        i: Index of the enemy unit.
        clock: Game loops since the start of the battle.
    """
    target = w.ints[b, i, c.TARGET]
    if w.spec[i, c.S_DELIVERY] == c.HEALING:
        hurt = target >= 0 and w.floats[b, target, c.HEALTH] < w.spec[target, c.S_HEALTH]
        if hurt and w.ints[b, target, c.ALIVE] == 1:
            return target
        return _find_wounded(w, b, i)
    if target >= 0 and w.ints[b, target, c.ALIVE] == 1:
        edge = edge_distance(w, b, i, target)
        if w.ints[b, i, c.WINDING] == 1 or edge <= w.spec[i, c.S_REACH] + RANGE_TOLERANCE:
            return target
        if (clock + i - w.n_allies) % RESCAN_LOOPS != 0 and edge <= MAX_FOLLOW_GAP:
            return target
        is_blocked = w.floats[b, i, c.BLOCKED] >= STUCK_FROM
        other = _find_nearest(w, b, i, w.spec[i, c.S_SCAN] if is_blocked else w.spec[i, c.S_REACH])
        if other >= 0:
            return other
        if edge <= MAX_FOLLOW_GAP:
            return target
    if (clock + i - w.n_allies + FIRST_SEARCH_LOOPS) % ACQUIRE_LOOPS != 0:
        return -1
    other = _find_nearest(w, b, i, w.spec[i, c.S_SCAN])
    if other >= 0:
        return other
    return _find_attacker(w, b, i)
