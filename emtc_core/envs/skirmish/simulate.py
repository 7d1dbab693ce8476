"""The loop of game loops: the one entry through which battles advance.

Stage before: `orders.py` gave the agents' orders. Stage after: `score.py` and `observe.py`.
"""

from emtc_core.envs.skirmish import columns as c
from emtc_core.envs.skirmish.combat import act, land_pending, tick
from emtc_core.envs.skirmish.compiled import kernel, part
from emtc_core.envs.skirmish.movement import move_all
from emtc_core.envs.skirmish.targeting import choose_target

ARRIVED = 1.5
"""Distance from the point of the attack-move at which an enemy is content (inference)."""


@part
def _command_enemy(w: c.World, b: int, i: int, clock: int) -> None:
    """Attack-move: a target if there is one, else on to the point; a medivac keeps to its friends."""
    target = choose_target(w, b, i, clock)
    mends = w.spec[i, c.S_DELIVERY] == c.MEND
    if target != w.ints[b, i, c.TARGET]:
        w.ints[b, i, c.TARGET], w.ints[b, i, c.WINDING] = target, 0
    if target >= 0:
        w.ints[b, i, c.ORDER] = c.HEAL if mends else c.ATTACK
        return
    goal_x, goal_y = w.goals[b, 0], w.goals[b, 1]
    if mends:
        goal_x, goal_y = _centre_of_friends(w, b, i)
    dx, dy = goal_x - w.floats[b, i, c.X], goal_y - w.floats[b, i, c.Y]
    w.ints[b, i, c.ORDER] = c.MOVE if dx * dx + dy * dy > ARRIVED * ARRIVED else c.STAND
    w.floats[b, i, c.ORDER_X], w.floats[b, i, c.ORDER_Y] = goal_x, goal_y


@part
def _centre_of_friends(w: c.World, b: int, i: int) -> tuple[float, float]:
    x, y, count = 0.0, 0.0, 0.0
    for j in range(w.n_allies, w.ints.shape[1]):
        if w.ints[b, j, c.ALIVE] == 1 and w.spec[j, c.S_DELIVERY] != c.MEND:
            x, y, count = x + w.floats[b, j, c.X], y + w.floats[b, j, c.Y], count + 1.0
    if count == 0.0:
        return w.floats[b, i, c.X], w.floats[b, i, c.Y]
    return x / count, y / count


@kernel
def advance(w: c.World, loops: int, begin: int, end: int) -> None:
    """Advance the running ones of battles begin..end-1 by some game loops under the present orders."""
    n_units = w.ints.shape[1]
    for b in range(begin, end):
        if not w.running[b]:
            continue
        for _ in range(loops):
            w.clock[b] += 1
            for i in range(w.n_allies, n_units):
                if w.ints[b, i, c.ALIVE] == 1:
                    _command_enemy(w, b, i, w.clock[b])
            # Units act one after the other; each begins in its turn, so that no side is always first.
            first = w.clock[b] % n_units
            for k in range(n_units):
                i = (first + k) % n_units
                if w.ints[b, i, c.ALIVE] == 1:
                    tick(w, b, i)
                    act(w, b, i)
            move_all(w, b)
            for i in range(n_units):
                land_pending(w, b, i)
