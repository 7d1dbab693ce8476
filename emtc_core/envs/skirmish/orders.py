"""Agents' actions become orders: legality first, then stop, move, attack or heal."""

import numpy as np
from numpy.typing import NDArray

from emtc_core.envs.skirmish import columns as c
from emtc_core.envs.skirmish.compiled import kernel, part
from emtc_core.envs.skirmish.targeting import can_hit

MOVE_AMOUNT = 2.0
N_MOVES = 6


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
