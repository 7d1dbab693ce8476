"""Results of a step: SMAC's observation, state, available actions, reward and end flags.

Observation of one agent (zeros if dead); distances are divided by the sight range of 9 cells:
    moves 4 | per enemy: attackable, d, dx, dy, health, [shield], [type] | per other ally: visible, d, dx,
    dy, health, [shield], [type] | own health, [shield], [type]
State: per ally: health, cooldown or energy, x, y, [shield], [type] | per enemy: health, x, y, [shield],
    [type] | last actions, one-hot. Positions are (value - 16) / 32. Rows of dead units are zero.
Available: no-op only for dead units; stop; moves whose cell at distance 1 is walkable; living targets within
    6 cells. The targets of a medivac are allies.
Reward: |enemy health and shield lost + 10 per kill|, +200 on a win, times 20 / max_reward. Regenerated health and
    shield are negative losses before the absolute value, so the return of an episode can exceed 20.
"""

import numpy as np
from numpy.typing import NDArray

from emtc_core.envs.skirmish import columns as c
from emtc_core.envs.skirmish.kernels import inlined, kernel
from emtc_core.envs.skirmish.orders import N_MOVES

SIGHT, SHOOT_RANGE = 9.0, 6.0
"""Range of an agent's observation, and range in which targets are available [cells]."""
MOVE_CHECK_DISTANCE = 1.0
"""A move is available if the point at this distance is walkable [cells]."""
CENTER, WIDTH = 16.0, 32.0
"""Center and width of the map [cells]."""

KILL, WIN = 10.0, 200.0
"""Reward for a kill and for a win, before scaling."""
LOST, DRAWN, WON, OPEN = -1, 0, 1, 2
"""Results of a battle; OPEN: it has not ended."""


@inlined
def _is_walkable(walkable: c.Flags, x: float, y: float) -> bool:
    cx, cy = int(x), int(y)
    return 0 <= cx < walkable.shape[0] and 0 <= cy < walkable.shape[1] and walkable[cx, cy]


@inlined
def _write_avail(w: c.World, walkable: c.Flags, avail: c.Flags, b: int, i: int) -> None:
    n_agents, n_targets = avail.shape[1], avail.shape[2] - N_MOVES
    if w.ints[b, i, c.ALIVE] == 0:
        avail[b, i, 0] = True
        return
    x, y = w.floats[b, i, c.X], w.floats[b, i, c.Y]
    avail[b, i, 1] = True
    avail[b, i, 2] = _is_walkable(walkable, x, y + MOVE_CHECK_DISTANCE)
    avail[b, i, 3] = _is_walkable(walkable, x, y - MOVE_CHECK_DISTANCE)
    avail[b, i, 4] = _is_walkable(walkable, x + MOVE_CHECK_DISTANCE, y)
    avail[b, i, 5] = _is_walkable(walkable, x - MOVE_CHECK_DISTANCE, y)
    heals = w.spec[i, c.S_DELIVERY] == c.HEALING
    for k in range(min(n_targets, n_agents) if heals else n_targets):
        j = k if heals else n_agents + k
        if w.ints[b, j, c.ALIVE] == 0 or (heals and w.spec[j, c.S_DELIVERY] == c.HEALING):
            continue
        dx, dy = w.floats[b, j, c.X] - x, w.floats[b, j, c.Y] - y
        avail[b, i, N_MOVES + k] = np.sqrt(dx * dx + dy * dy) <= SHOOT_RANGE


@inlined
def _write_shield_and_type(w: c.World, out: c.Outputs, b: int, row: int, index: int, j: int, n_bits: int) -> int:
    """Write [shield], [type] of unit j to out[b, row, index:] and return the index after them."""
    if w.spec[j, c.S_SHIELD] > 0.0:
        out[b, row, index] = w.floats[b, j, c.SHIELD] / w.spec[j, c.S_SHIELD]
        index += 1
    if n_bits > 0:
        out[b, row, index + int(w.spec[j, c.S_TYPE_BIT])] = 1.0
    return index + n_bits


@inlined
def _write_obs(w: c.World, avail: c.Flags, obs: c.Outputs, n_bits: int, b: int, i: int) -> None:
    n_agents = obs.shape[1]
    if w.ints[b, i, c.ALIVE] == 0:
        return
    for k in range(4):
        obs[b, i, k] = avail[b, i, 2 + k]
    index = 4
    n_units = w.ints.shape[1]
    for k in range(n_units):
        # Enemies are first, then the other allies.
        j = n_agents + k if k < n_units - n_agents else k - (n_units - n_agents)
        if j == i:
            continue
        end = index + 5 + (1 if w.spec[j, c.S_SHIELD] > 0.0 else 0) + n_bits
        dx, dy = w.floats[b, j, c.X] - w.floats[b, i, c.X], w.floats[b, j, c.Y] - w.floats[b, i, c.Y]
        distance = np.sqrt(dx * dx + dy * dy)
        if w.ints[b, j, c.ALIVE] == 1 and distance < SIGHT:
            obs[b, i, index] = 1.0 if j < n_agents or avail[b, i, N_MOVES + j - n_agents] else 0.0
            obs[b, i, index + 1] = distance / SIGHT
            obs[b, i, index + 2] = dx / SIGHT
            obs[b, i, index + 3] = dy / SIGHT
            obs[b, i, index + 4] = w.floats[b, j, c.HEALTH] / w.spec[j, c.S_HEALTH]
            _write_shield_and_type(w, obs, b, i, index + 5, j, n_bits)
        index = end
    obs[b, i, index] = w.floats[b, i, c.HEALTH] / w.spec[i, c.S_HEALTH]
    _write_shield_and_type(w, obs, b, i, index + 1, i, n_bits)


@inlined
def _write_state(w: c.World, state: c.Outputs, n_agents: int, n_actions: int, n_bits: int, b: int) -> None:
    index = 0
    for j in range(w.ints.shape[1]):
        width = (4 if j < n_agents else 3) + (1 if w.spec[j, c.S_SHIELD] > 0.0 else 0) + n_bits
        if w.ints[b, j, c.ALIVE] == 1:
            state[b, 0, index] = w.floats[b, j, c.HEALTH] / w.spec[j, c.S_HEALTH]
            xy_index = index + 1
            if j < n_agents:
                is_medivac = w.spec[j, c.S_DELIVERY] == c.HEALING
                value = w.floats[b, j, c.ENERGY] if is_medivac else w.floats[b, j, c.COOLDOWN]
                state[b, 0, xy_index] = value / w.spec[j, c.S_SHOWN]
                xy_index += 1
            state[b, 0, xy_index] = (w.floats[b, j, c.X] - CENTER) / WIDTH
            state[b, 0, xy_index + 1] = (w.floats[b, j, c.Y] - CENTER) / WIDTH
            # Not the literal 0: numba would compile the function a second time for it.
            _write_shield_and_type(w, state, b, np.int64(0), xy_index + 2, j, n_bits)  # type: ignore[arg-type]
        index += width
    for i in range(n_agents):
        if w.ints[b, i, c.LAST_ACTION] >= 0:
            state[b, 0, index + w.ints[b, i, c.LAST_ACTION]] = 1.0
        index += n_actions


@kernel
def observe(
    w: c.World,
    walkable: c.Flags,
    obs: c.Outputs,
    state: c.Outputs,
    avail: c.Flags,
    n_bits: int,
) -> None:
    """Write the observations, states and available actions of all battles.

    Source: SMAC's `StarCraft2Env`; the layout is at the top of this module.

    Args:
        w: The battles.
        walkable: [X, Y] boolean, cells where units can walk.
        obs: Output, [B, N, O] [observation features], filled with zeros before the call.
        state: Output, [B, 1, S] [state features], filled with zeros before the call.
        avail: Output, [B, N, A] boolean, filled with False before the call.
        n_bits: Width of the one-hot code of a unit's type.
    """
    for b in range(obs.shape[0]):
        for i in range(obs.shape[1]):
            _write_avail(w, walkable, avail, b, i)
            _write_obs(w, avail, obs, n_bits, b, i)
        _write_state(w, state, obs.shape[1], avail.shape[2], n_bits, b)


@inlined
def _sum_losses(w: c.World, b: int) -> float:
    """Sum the enemies' losses in this step, with KILL for each kill, and store their health and shield in BEFORE."""
    total = 0.0
    for j in range(w.n_allies, w.ints.shape[1]):
        before = w.floats[b, j, c.PREVIOUS_TOTAL]
        if before <= 0.0:
            continue
        now = w.floats[b, j, c.HEALTH] + w.floats[b, j, c.SHIELD] if w.ints[b, j, c.ALIVE] == 1 else 0.0
        total += before - now + (KILL if w.ints[b, j, c.ALIVE] == 0 else 0.0)
        w.floats[b, j, c.PREVIOUS_TOTAL] = now
    return total


@inlined
def _compute_result(w: c.World, b: int) -> int:
    """Return LOST, DRAWN, WON or OPEN. A team of only medivacs loses; a single enemy medivac does not prevent a win."""
    allies, armed_allies, enemies, armed_enemies = 0, 0, 0, 0
    for i in range(w.ints.shape[1]):
        if w.ints[b, i, c.ALIVE] == 0:
            continue
        armed = 0 if w.spec[i, c.S_DELIVERY] == c.HEALING else 1
        if i < w.n_allies:
            allies, armed_allies = allies + 1, armed_allies + armed
        else:
            enemies, armed_enemies = enemies + 1, armed_enemies + armed
    if (allies == 0 and enemies > 0) or (allies > 0 and armed_allies == 0):
        return LOST
    if allies > 0 and (enemies == 0 or (enemies == 1 and armed_enemies == 0)):
        return WON
    return DRAWN if allies == 0 else OPEN


@kernel
def score(
    w: c.World,
    steps: NDArray[np.int64],
    reward: c.Outputs,
    ends: c.Flags,
    limit: int,
    sparse: bool,
    scale: float,
) -> None:
    """Write rewards and end flags after a step, and stop the battles that have ended.

    Source: SMAC's `StarCraft2Env.reward_battle`.

    Args:
        w: The battles.
        steps: [B], steps of each battle [steps]. Increased by one in running battles.
        reward: Output, [B] [reward].
        ends: Output, [B, 3] boolean: terminated, truncated, won. Unchanged for battles that had ended before.
        limit: Maximum number of steps.
        sparse: Whether only the end gives a reward (1 or -1 before scaling).
        scale: Factor of the reward.
    """
    for b in range(w.ints.shape[0]):
        reward[b] = 0.0
        if not w.running[b]:
            continue
        steps[b] += 1
        points = abs(_sum_losses(w, b))
        result = _compute_result(w, b)
        if sparse:
            points = 1.0 if result == WON else (-1.0 if result == LOST else 0.0)
        elif result == WON:
            points += WIN
        reward[b] = points * scale
        ends[b, 0] = result != OPEN
        ends[b, 1] = result == OPEN and steps[b] >= limit
        ends[b, 2] = result == WON
        w.running[b] = not (ends[b, 0] or ends[b, 1])
