"""Fighting: timers, orders, the weapon cycle, damage and healing of one unit in one loop.

What lives here: what each unit does in a loop besides moving. What does not: whom enemies choose
(`targeting.py`), where bodies end up (`movement.py`), rewards (`score.py`).
"""

import numpy as np
from numpy.typing import NDArray

from emtc_core.envs.skirmish.chance import uniform
from emtc_core.envs.skirmish.columns import (
    AIR,
    ALIVE,
    ATTACK,
    ATTACKER,
    BLADES,
    COOLDOWN,
    ENERGY,
    ENGAGED,
    HEAL,
    HEALTH,
    HURT,
    IDLE,
    LINE,
    MEND,
    MISSILE,
    MOVE,
    ORDER,
    ORDER_X,
    ORDER_Y,
    PENDING,
    PENDING_TARGET,
    PLANTED,
    S_ARMOR,
    S_ATTRIBUTE,
    S_BONUS,
    S_BONUS_AGAINST,
    S_DAMAGE,
    S_DELIVERY,
    S_HEALTH,
    S_LAYER,
    S_MISSILE_SPEED,
    S_PERIOD,
    S_RADIUS,
    S_REACH,
    S_SHIELD,
    S_WIND_UP,
    S_ZERG,
    SHIELD,
    STAND,
    TARGET,
    WIND,
    WINDING,
    X,
    Y,
)
from emtc_core.envs.skirmish.compiled import part
from emtc_core.envs.skirmish.movement import stand, turn_to, walk
from emtc_core.envs.skirmish.targeting import edge_distance
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
    RANGE_SLOP,
    SECOND_BLADE,
    SHIELD_DELAY,
    SHIELD_RATE,
    ZERG_RATE,
)


@part
def tick(real: NDArray[np.float64], whole: NDArray[np.int64], spec: NDArray[np.float64], b: int, i: int) -> None:
    """Advance the timers of unit i by one loop and regenerate it."""
    real[b, i, COOLDOWN] = max(real[b, i, COOLDOWN] - 1.0, 0.0)
    real[b, i, HURT] += 1.0
    if real[b, i, HURT] >= SHIELD_DELAY:
        real[b, i, SHIELD] = min(real[b, i, SHIELD] + SHIELD_RATE, spec[i, S_SHIELD])
    if spec[i, S_ZERG] > 0.0:
        real[b, i, HEALTH] = min(real[b, i, HEALTH] + ZERG_RATE, spec[i, S_HEALTH])
    if spec[i, S_DELIVERY] == MEND:
        real[b, i, ENERGY] = min(real[b, i, ENERGY] + ENERGY_RATE, ENERGY_MAX)


@part
def hit(real: NDArray[np.float64], whole: NDArray[np.int64], spec: NDArray[np.float64], b: int, i: int, j: int) -> None:
    """Let one hit of unit i's weapon take effect on unit j: shield first, then armor and health."""
    if whole[b, j, ALIVE] == 0:
        return
    damage = spec[i, S_DAMAGE]
    if spec[i, S_BONUS_AGAINST] > 0.0 and spec[i, S_BONUS_AGAINST] == spec[j, S_ATTRIBUTE]:
        damage += spec[i, S_BONUS]
    absorbed = min(damage, real[b, j, SHIELD])
    real[b, j, SHIELD] -= absorbed
    if damage > absorbed:
        real[b, j, HEALTH] -= max(damage - absorbed - spec[j, S_ARMOR], MIN_DAMAGE)
    real[b, j, HURT] = 0.0
    whole[b, j, ATTACKER] = i
    if real[b, j, HEALTH] <= 0.0:
        real[b, j, HEALTH], real[b, j, SHIELD] = 0.0, 0.0
        whole[b, j, ALIVE] = 0


@part
def _sweep(
    real: NDArray[np.float64],
    whole: NDArray[np.int64],
    spec: NDArray[np.float64],
    n_allies: int,
    b: int,
    i: int,
    target: int,
) -> None:
    first, last = (n_allies, whole.shape[1]) if i < n_allies else (0, n_allies)
    at_x, at_y = real[b, target, X], real[b, target, Y]
    dx, dy = at_x - real[b, i, X], at_y - real[b, i, Y]
    length = max(np.sqrt(dx * dx + dy * dy), 1e-9)
    dx, dy = dx / length, dy / length
    for j in range(first, last):
        if whole[b, j, ALIVE] == 0 or spec[j, S_LAYER] == AIR:
            continue
        rx, ry = real[b, j, X] - at_x, real[b, j, Y] - at_y
        along = max(abs(rx * dx + ry * dy) - BEAM_HALF_WIDTH, 0.0)
        across = max(abs(rx * dy - ry * dx) - BEAM_HALF_LENGTH, 0.0)
        if along * along + across * across <= spec[j, S_RADIUS] * spec[j, S_RADIUS]:
            hit(real, whole, spec, b, i, j)
            hit(real, whole, spec, b, i, j)


@part
def _launch(
    real: NDArray[np.float64],
    whole: NDArray[np.int64],
    rng: NDArray[np.uint64],
    spec: NDArray[np.float64],
    n_allies: int,
    b: int,
    i: int,
    target: int,
) -> None:
    delivery = spec[i, S_DELIVERY]
    if delivery == MISSILE:
        gap = max(edge_distance(real, spec, b, i, target), 0.0)
        real[b, i, PENDING] = gap / spec[i, S_MISSILE_SPEED]
        whole[b, i, PENDING_TARGET] = target
    elif delivery == LINE:
        _sweep(real, whole, spec, n_allies, b, i, target)
    else:
        hit(real, whole, spec, b, i, target)
        if delivery == BLADES:
            real[b, i, PENDING] = SECOND_BLADE
            whole[b, i, PENDING_TARGET] = target
    delay = uniform(rng, b, DELAY_LOW, DELAY_HIGH)
    real[b, i, COOLDOWN] = spec[i, S_PERIOD] + delay - np.ceil(spec[i, S_WIND_UP])
    whole[b, i, WINDING] = 0
    whole[b, i, ENGAGED] = target


@part
def land_pending(
    real: NDArray[np.float64], whole: NDArray[np.int64], spec: NDArray[np.float64], b: int, i: int
) -> None:
    """Let a missile or second blade under way land when due; blades need a living arm, missiles do not."""
    target = whole[b, i, PENDING_TARGET]
    if target < 0:
        return
    real[b, i, PENDING] -= 1.0
    if spec[i, S_DELIVERY] == BLADES and whole[b, i, ALIVE] == 0:
        whole[b, i, PENDING_TARGET] = -1
    elif real[b, i, PENDING] <= 0.0:
        whole[b, i, PENDING_TARGET] = -1
        hit(real, whole, spec, b, i, target)


@part
def _attack(
    real: NDArray[np.float64],
    whole: NDArray[np.int64],
    rng: NDArray[np.uint64],
    spec: NDArray[np.float64],
    n_allies: int,
    b: int,
    i: int,
    target: int,
) -> bool:
    """Advance the weapon cycle against a target; False where the unit must walk to it first."""
    dx, dy = real[b, target, X] - real[b, i, X], real[b, target, Y] - real[b, i, Y]
    length = max(np.sqrt(dx * dx + dy * dy), 1e-9)
    edge = length - spec[i, S_RADIUS] - spec[target, S_RADIUS]
    if whole[b, i, ENGAGED] != target:
        whole[b, i, ENGAGED] = -1
    engaged = whole[b, i, WINDING] == 1 or whole[b, i, ENGAGED] == target
    if edge > spec[i, S_REACH] + (RANGE_SLOP if engaged and spec[i, S_DELIVERY] != LINE else 0.0):
        whole[b, i, WINDING], whole[b, i, ENGAGED] = 0, -1
        return False
    faced = turn_to(real, b, i, dx / length, dy / length)
    if whole[b, i, WINDING] == 1:
        real[b, i, WIND] -= 1.0
    elif faced and real[b, i, COOLDOWN] <= 0.0:
        whole[b, i, WINDING] = 1
        real[b, i, WIND] = spec[i, S_WIND_UP]
    if whole[b, i, WINDING] == 1 and real[b, i, WIND] <= 0.0:
        _launch(real, whole, rng, spec, n_allies, b, i, target)
    stand(real, whole, b, i, PLANTED)
    return True


@part
def _mend(
    real: NDArray[np.float64], whole: NDArray[np.int64], spec: NDArray[np.float64], b: int, i: int, target: int
) -> bool:
    """Heal a friend in reach; False where the medivac must fly to it first."""
    if edge_distance(real, spec, b, i, target) > spec[i, S_REACH]:
        return False
    missing = spec[target, S_HEALTH] - real[b, target, HEALTH]
    amount = max(min(HEAL_RATE, missing, real[b, i, ENERGY] / HEAL_COST), 0.0)
    real[b, target, HEALTH] += amount
    real[b, i, ENERGY] = max(real[b, i, ENERGY] - amount * HEAL_COST, 0.0)
    stand(real, whole, b, i, IDLE)
    return True


@part
def act(
    real: NDArray[np.float64],
    whole: NDArray[np.int64],
    rng: NDArray[np.uint64],
    spec: NDArray[np.float64],
    ground: NDArray[np.int8],
    choke: NDArray[np.float64],
    n_allies: int,
    b: int,
    i: int,
) -> None:
    """Let unit i follow its order in this loop: stand, walk, attack or heal."""
    order, target = whole[b, i, ORDER], whole[b, i, TARGET]
    if order >= ATTACK and (target < 0 or whole[b, target, ALIVE] == 0):
        whole[b, i, ORDER], whole[b, i, TARGET], whole[b, i, WINDING] = STAND, -1, 0
        order = STAND
    if order == STAND:
        whole[b, i, WINDING] = 0
        stand(real, whole, b, i, IDLE)
    elif order == MOVE:
        whole[b, i, WINDING], whole[b, i, ENGAGED] = 0, -1
        goal_x, goal_y = real[b, i, ORDER_X], real[b, i, ORDER_Y]
        walk(real, whole, spec, ground, choke, n_allies, b, i, -1, goal_x, goal_y, 0.0)
    else:
        done = (
            _mend(real, whole, spec, b, i, target)
            if order == HEAL
            else _attack(real, whole, rng, spec, n_allies, b, i, target)
        )
        if not done:
            goal_x, goal_y = real[b, target, X], real[b, target, Y]
            halt = spec[i, S_REACH] + spec[i, S_RADIUS] + spec[target, S_RADIUS]
            walk(real, whole, spec, ground, choke, n_allies, b, i, target, goal_x, goal_y, halt)
