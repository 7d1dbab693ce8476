"""Agents' actions become orders: legality first, then stop, move, attack or heal."""

import numpy as np
from numpy.typing import NDArray

from emtc_core.envs.skirmish.columns import (
    ATTACK,
    HEAL,
    LAST_ACTION,
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
from emtc_core.envs.skirmish.compiled import kernel, part
from emtc_core.envs.skirmish.targeting import can_hit

MOVE_AMOUNT = 2.0
N_MOVES = 6


@kernel
def give_orders(
    real: NDArray[np.float64],
    whole: NDArray[np.int64],
    spec: NDArray[np.float64],
    running: NDArray[np.bool_],
    actions: NDArray[np.int64],
    avail: NDArray[np.bool_],
) -> int:
    """Give the agents of running battles their orders.

    Returns:
        -1, or the flat index b * N + i of the first illegal action; then no order was given.
    """
    n_envs, n_agents = actions.shape
    for b in range(n_envs):
        for i in range(n_agents):
            action = actions[b, i]
            if running[b] and (action < 0 or action >= avail.shape[2] or not avail[b, i, action]):
                return b * n_agents + i
    for b in range(n_envs):
        if running[b]:
            for i in range(n_agents):
                whole[b, i, LAST_ACTION] = actions[b, i]
                _give_order(real, whole, spec, n_agents, b, i, actions[b, i])
    return -1


@part
def _give_order(
    real: NDArray[np.float64],
    whole: NDArray[np.int64],
    spec: NDArray[np.float64],
    n_agents: int,
    b: int,
    i: int,
    action: int,
) -> None:
    if action >= N_MOVES:
        heals = spec[i, S_DELIVERY] == MEND
        target = action - N_MOVES + (0 if heals else n_agents)
        # The game rejects an order that the weapon cannot carry out; the unit goes on with its last one.
        if heals or can_hit(spec, i, target):
            if whole[b, i, TARGET] != target:
                whole[b, i, WINDING] = 0
            whole[b, i, ORDER], whole[b, i, TARGET] = (HEAL if heals else ATTACK), target
        return
    whole[b, i, TARGET], whole[b, i, ORDER] = -1, STAND
    if action > 1:
        whole[b, i, ORDER] = MOVE
        step_x = MOVE_AMOUNT if action == 4 else (-MOVE_AMOUNT if action == 5 else 0.0)
        step_y = MOVE_AMOUNT if action == 2 else (-MOVE_AMOUNT if action == 3 else 0.0)
        real[b, i, ORDER_X], real[b, i, ORDER_Y] = real[b, i, X] + step_x, real[b, i, Y] + step_y
