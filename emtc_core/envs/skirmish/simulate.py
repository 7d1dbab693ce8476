"""The loop of game loops: the one entry through which battles advance.

Stage before: `orders.py` gave the agents' orders. Stage after: `score.py` and `observe.py`.
"""

import numpy as np
from numpy.typing import NDArray

from emtc_core.envs.skirmish.columns import (
    ALIVE,
    ATTACK,
    HEAL,
    MEND,
    MOVE,
    ORDER,
    ORDER_X,
    ORDER_Y,
    S_DELIVERY,
    STAND,
    TARGET,
    WINDING,
    X,
    Y,
)
from emtc_core.envs.skirmish.combat import act, land_pending, tick
from emtc_core.envs.skirmish.compiled import kernel, part
from emtc_core.envs.skirmish.movement import move_all
from emtc_core.envs.skirmish.targeting import choose_target

ARRIVED = 1.5
"""Distance from the point of the attack-move at which an enemy is content (inference)."""


@part
def _command_enemy(
    real: NDArray[np.float64],
    whole: NDArray[np.int64],
    spec: NDArray[np.float64],
    goals: NDArray[np.float64],
    n_allies: int,
    b: int,
    i: int,
    clock: int,
) -> None:
    """Attack-move: a target if there is one, else on to the point; a medivac keeps to its friends."""
    target = choose_target(real, whole, spec, n_allies, b, i, clock)
    mends = spec[i, S_DELIVERY] == MEND
    if target != whole[b, i, TARGET]:
        whole[b, i, TARGET], whole[b, i, WINDING] = target, 0
    if target >= 0:
        whole[b, i, ORDER] = HEAL if mends else ATTACK
        return
    goal_x, goal_y = goals[b, 0], goals[b, 1]
    if mends:
        goal_x, goal_y = _centre_of_friends(real, whole, spec, n_allies, b, i)
    dx, dy = goal_x - real[b, i, X], goal_y - real[b, i, Y]
    whole[b, i, ORDER] = MOVE if dx * dx + dy * dy > ARRIVED * ARRIVED else STAND
    real[b, i, ORDER_X], real[b, i, ORDER_Y] = goal_x, goal_y


@part
def _centre_of_friends(
    real: NDArray[np.float64],
    whole: NDArray[np.int64],
    spec: NDArray[np.float64],
    n_allies: int,
    b: int,
    i: int,
) -> tuple[float, float]:
    x, y, count = 0.0, 0.0, 0.0
    for j in range(n_allies, whole.shape[1]):
        if whole[b, j, ALIVE] == 1 and spec[j, S_DELIVERY] != MEND:
            x, y, count = x + real[b, j, X], y + real[b, j, Y], count + 1.0
    if count == 0.0:
        return real[b, i, X], real[b, i, Y]
    return x / count, y / count


@kernel
def advance(
    real: NDArray[np.float64],
    whole: NDArray[np.int64],
    rng: NDArray[np.uint64],
    clock: NDArray[np.int64],
    running: NDArray[np.bool_],
    spec: NDArray[np.float64],
    ground: NDArray[np.int8],
    choke: NDArray[np.float64],
    goals: NDArray[np.float64],
    n_allies: int,
    loops: int,
    begin: int,
    end: int,
) -> None:
    """Advance the running ones of battles begin..end-1 by some game loops under the present orders."""
    n_units = whole.shape[1]
    for b in range(begin, end):
        if not running[b]:
            continue
        for _ in range(loops):
            clock[b] += 1
            for i in range(n_allies, n_units):
                if whole[b, i, ALIVE] == 1:
                    _command_enemy(real, whole, spec, goals, n_allies, b, i, clock[b])
            # Units act one after the other; each begins in its turn, so that no side is always first.
            first = clock[b] % n_units
            for k in range(n_units):
                i = (first + k) % n_units
                if whole[b, i, ALIVE] == 1:
                    tick(real, whole, spec, b, i)
                    act(real, whole, rng, spec, ground, choke, n_allies, b, i)
            move_all(real, whole, spec, ground, n_allies, b)
            for i in range(n_units):
                land_pending(real, whole, spec, b, i)
