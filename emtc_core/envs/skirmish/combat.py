"""Combat of one unit in one game loop: timers, orders, weapon cycle, damage and healing.

The enemies' choice of targets is in `orders.py`, movement in `movement.py`, rewards in `observe.py`.
"""

import numpy as np

from emtc_core.envs.skirmish import columns as c
from emtc_core.envs.skirmish.kernels import inlined, uniform
from emtc_core.envs.skirmish.movement import stand, turn_to, walk
from emtc_core.envs.skirmish.orders import edge_distance
from emtc_core.envs.skirmish.units import (
    BEAM_HALF_LENGTH,
    BEAM_HALF_WIDTH,
    DELAY_HIGH,
    DELAY_LOW,
    ENERGY_MAX,
    ENERGY_RATE,
    HEAL_COST,
    HEAL_RATE,
    MIN_DAMAGE,
    RANGE_TOLERANCE,
    SECOND_BLADE,
    SHIELD_DELAY,
    SHIELD_RATE,
    ZERG_RATE,
)


@inlined
def update_timers(w: c.World, b: int, i: int) -> None:
    """Advance the timers of a unit by one loop, and regenerate its shield, health and energy.

    Args:
        w: The battles.
        b: Index of the battle.
        i: Index of the unit.
    """
    w.floats[b, i, c.COOLDOWN] = max(w.floats[b, i, c.COOLDOWN] - 1.0, 0.0)
    w.floats[b, i, c.SINCE_DAMAGE] += 1.0
    if w.floats[b, i, c.SINCE_DAMAGE] >= SHIELD_DELAY:
        w.floats[b, i, c.SHIELD] = min(w.floats[b, i, c.SHIELD] + SHIELD_RATE, w.spec[i, c.S_SHIELD])
    if w.spec[i, c.S_ZERG] > 0.0:
        w.floats[b, i, c.HEALTH] = min(w.floats[b, i, c.HEALTH] + ZERG_RATE, w.spec[i, c.S_HEALTH])
    if w.spec[i, c.S_DELIVERY] == c.HEALING:
        w.floats[b, i, c.ENERGY] = min(w.floats[b, i, c.ENERGY] + ENERGY_RATE, ENERGY_MAX)


@inlined
def apply_hit(w: c.World, b: int, i: int, j: int) -> None:
    """Apply one hit of a unit's weapon: first to the target's shield, then, reduced by armor, to its health.

    Args:
        w: The battles.
        b: Index of the battle.
        i: Index of the unit that fires.
        j: Index of the target.
    """
    if w.ints[b, j, c.ALIVE] == 0:
        return
    damage = w.spec[i, c.S_DAMAGE]
    if w.spec[i, c.S_BONUS_AGAINST] > 0.0 and w.spec[i, c.S_BONUS_AGAINST] == w.spec[j, c.S_ATTRIBUTE]:
        damage += w.spec[i, c.S_BONUS]
    absorbed = min(damage, w.floats[b, j, c.SHIELD])
    w.floats[b, j, c.SHIELD] -= absorbed
    if damage > absorbed:
        w.floats[b, j, c.HEALTH] -= max(damage - absorbed - w.spec[j, c.S_ARMOR], MIN_DAMAGE)
    w.floats[b, j, c.SINCE_DAMAGE] = 0.0
    w.ints[b, j, c.ATTACKER] = i
    if w.floats[b, j, c.HEALTH] <= 0.0:
        w.floats[b, j, c.HEALTH], w.floats[b, j, c.SHIELD] = 0.0, 0.0
        w.ints[b, j, c.ALIVE] = 0


@inlined
def _hit_line(w: c.World, b: int, i: int, target: int) -> None:
    """Apply two hits of a colossus to all opponents on the ground in the beam's rectangle around the target."""
    first, last = (w.n_allies, w.ints.shape[1]) if i < w.n_allies else (0, w.n_allies)
    center_x, center_y = w.floats[b, target, c.X], w.floats[b, target, c.Y]
    dx, dy = center_x - w.floats[b, i, c.X], center_y - w.floats[b, i, c.Y]
    length = max(np.sqrt(dx * dx + dy * dy), 1e-9)
    dx, dy = dx / length, dy / length
    for j in range(first, last):
        if w.ints[b, j, c.ALIVE] == 0 or w.spec[j, c.S_LAYER] == c.AIR:
            continue
        rx, ry = w.floats[b, j, c.X] - center_x, w.floats[b, j, c.Y] - center_y
        along = max(abs(rx * dx + ry * dy) - BEAM_HALF_WIDTH, 0.0)
        across = max(abs(rx * dy - ry * dx) - BEAM_HALF_LENGTH, 0.0)
        if along * along + across * across <= w.spec[j, c.S_RADIUS] * w.spec[j, c.S_RADIUS]:
            apply_hit(w, b, i, j)
            apply_hit(w, b, i, j)


@inlined
def _fire(w: c.World, b: int, i: int, target: int) -> None:
    """Fire unit i's weapon at a target and start the cooldown."""
    delivery = w.spec[i, c.S_DELIVERY]
    if delivery == c.MISSILE:
        gap = max(edge_distance(w, b, i, target), 0.0)
        w.floats[b, i, c.PENDING] = gap / w.spec[i, c.S_MISSILE_SPEED]
        w.ints[b, i, c.PENDING_TARGET] = target
    elif delivery == c.LINE:
        _hit_line(w, b, i, target)
    else:
        apply_hit(w, b, i, target)
        if delivery == c.BLADES:
            w.floats[b, i, c.PENDING] = SECOND_BLADE
            w.ints[b, i, c.PENDING_TARGET] = target
    delay = uniform(w.rng, b, DELAY_LOW, DELAY_HIGH)
    w.floats[b, i, c.COOLDOWN] = w.spec[i, c.S_PERIOD] + delay - np.ceil(w.spec[i, c.S_WIND_UP])
    w.ints[b, i, c.WINDING] = 0
    w.ints[b, i, c.ENGAGED] = target


@inlined
def apply_pending_hit(w: c.World, b: int, i: int) -> None:
    """Apply the hit of a missile, or the second hit of a zealot, when it is due.

    If the unit has died, its missile still hits, but a second hit does not happen.

    Args:
        w: The battles.
        b: Index of the battle.
        i: Index of the unit that fired.
    """
    target = w.ints[b, i, c.PENDING_TARGET]
    if target < 0:
        return
    w.floats[b, i, c.PENDING] -= 1.0
    if w.spec[i, c.S_DELIVERY] == c.BLADES and w.ints[b, i, c.ALIVE] == 0:
        w.ints[b, i, c.PENDING_TARGET] = -1
    elif w.floats[b, i, c.PENDING] <= 0.0:
        w.ints[b, i, c.PENDING_TARGET] = -1
        apply_hit(w, b, i, target)


@inlined
def _attack(w: c.World, b: int, i: int, target: int) -> bool:
    """Advance unit i's weapon cycle against a target. Returns False if the target is out of range."""
    dx, dy = w.floats[b, target, c.X] - w.floats[b, i, c.X], w.floats[b, target, c.Y] - w.floats[b, i, c.Y]
    length = max(np.sqrt(dx * dx + dy * dy), 1e-9)
    edge = length - w.spec[i, c.S_RADIUS] - w.spec[target, c.S_RADIUS]
    if w.ints[b, i, c.ENGAGED] != target:
        w.ints[b, i, c.ENGAGED] = -1
    engaged = w.ints[b, i, c.WINDING] == 1 or w.ints[b, i, c.ENGAGED] == target
    if edge > w.spec[i, c.S_REACH] + (RANGE_TOLERANCE if engaged and w.spec[i, c.S_DELIVERY] != c.LINE else 0.0):
        w.ints[b, i, c.WINDING], w.ints[b, i, c.ENGAGED] = 0, -1
        return False
    faced = turn_to(w, b, i, dx / length, dy / length)
    if w.ints[b, i, c.WINDING] == 1:
        w.floats[b, i, c.WIND_UP_LEFT] -= 1.0
    elif faced and w.floats[b, i, c.COOLDOWN] <= 0.0:
        w.ints[b, i, c.WINDING] = 1
        w.floats[b, i, c.WIND_UP_LEFT] = w.spec[i, c.S_WIND_UP]
    if w.ints[b, i, c.WINDING] == 1 and w.floats[b, i, c.WIND_UP_LEFT] <= 0.0:
        _fire(w, b, i, target)
    stand(w, b, i, c.PLANTED)
    return True


@inlined
def _heal(w: c.World, b: int, i: int, target: int) -> bool:
    """Heal a friend for one loop. Returns False if it is out of range."""
    if edge_distance(w, b, i, target) > w.spec[i, c.S_REACH]:
        return False
    missing = w.spec[target, c.S_HEALTH] - w.floats[b, target, c.HEALTH]
    amount = max(min(HEAL_RATE, missing, w.floats[b, i, c.ENERGY] / HEAL_COST), 0.0)
    w.floats[b, target, c.HEALTH] += amount
    w.floats[b, i, c.ENERGY] = max(w.floats[b, i, c.ENERGY] - amount * HEAL_COST, 0.0)
    stand(w, b, i, c.IDLE)
    return True


@inlined
def follow_order(w: c.World, b: int, i: int) -> None:
    """Apply a unit's order for one loop: stand, walk, attack or heal.

    Args:
        w: The battles.
        b: Index of the battle.
        i: Index of the unit.
    """
    order, target = w.ints[b, i, c.ORDER], w.ints[b, i, c.TARGET]
    if order >= c.ATTACK and (target < 0 or w.ints[b, target, c.ALIVE] == 0):
        w.ints[b, i, c.ORDER], w.ints[b, i, c.TARGET], w.ints[b, i, c.WINDING] = c.STAND, -1, 0
        order = c.STAND
    if order == c.STAND:
        w.ints[b, i, c.WINDING] = 0
        stand(w, b, i, c.IDLE)
    elif order == c.MOVE:
        w.ints[b, i, c.WINDING], w.ints[b, i, c.ENGAGED] = 0, -1
        goal_x, goal_y = w.floats[b, i, c.ORDER_X], w.floats[b, i, c.ORDER_Y]
        # Not the literal -1: numba would compile `walk` a second time for it.
        walk(w, b, i, np.int64(-1), goal_x, goal_y, 0.0)  # type: ignore[arg-type]
    else:
        in_range = _heal(w, b, i, target) if order == c.HEAL else _attack(w, b, i, target)
        if not in_range:
            goal_x, goal_y = w.floats[b, target, c.X], w.floats[b, target, c.Y]
            halt = w.spec[i, c.S_REACH] + w.spec[i, c.S_RADIUS] + w.spec[target, c.S_RADIUS]
            walk(w, b, i, target, goal_x, goal_y, halt)
