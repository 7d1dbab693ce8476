"""What a step gives to agents and learners: SMAC's observation, state, availability, rewards and ends.

Observation of one agent (zeros if dead), distances over the sight of 9:
    moves 4 | per enemy: attackable, d, dx, dy, health, [shield], [type] | per other ally: visible, d, dx,
    dy, health, [shield], [type] | own health, [shield], [type]
State: per ally: health, cooldown or energy, x, y, [shield], [type] | per enemy: health, x, y, [shield],
    [type] | last actions one-hot. Positions are (value - 16) / 32. Rows of the dead are zero.
Available: no-op for the dead only; stop; moves whose cell at distance 1 is walkable; living targets within
    6. A medivac's target slots name allies.
Reward: |enemy health and shield lost + 10 per kill|, +200 on a win, times 20 / max_reward. What regenerates
    counts negatively before the absolute value, so an episode may return more than 20.
"""

import numpy as np
from numpy.typing import NDArray

from emtc_core.envs.skirmish import columns as c
from emtc_core.envs.skirmish.kernels import kernel, part
from emtc_core.envs.skirmish.orders import N_MOVES

SIGHT, SHOOT_RANGE = 9.0, 6.0
LOOK = 1.0
"""Distance at which the mask of a move tests the ground."""
CENTRE, WIDTH = 16.0, 32.0

KILL, WIN = 10.0, 200.0
LOST, DRAWN, WON, OPEN = -1, 0, 1, 2


@part
def _walkable(walkable: c.Flags, x: float, y: float) -> bool:
    cx, cy = int(x), int(y)
    return 0 <= cx < walkable.shape[0] and 0 <= cy < walkable.shape[1] and walkable[cx, cy]


@part
def _write_avail(w: c.World, walkable: c.Flags, avail: c.Flags, b: int, i: int) -> None:
    n_agents, n_targets = avail.shape[1], avail.shape[2] - N_MOVES
    if w.ints[b, i, c.ALIVE] == 0:
        avail[b, i, 0] = True
        return
    x, y = w.floats[b, i, c.X], w.floats[b, i, c.Y]
    avail[b, i, 1] = True
    avail[b, i, 2] = _walkable(walkable, x, y + LOOK)
    avail[b, i, 3] = _walkable(walkable, x, y - LOOK)
    avail[b, i, 4] = _walkable(walkable, x + LOOK, y)
    avail[b, i, 5] = _walkable(walkable, x - LOOK, y)
    heals = w.spec[i, c.S_DELIVERY] == c.MEND
    for k in range(min(n_targets, n_agents) if heals else n_targets):
        j = k if heals else n_agents + k
        if w.ints[b, j, c.ALIVE] == 0 or (heals and w.spec[j, c.S_DELIVERY] == c.MEND):
            continue
        dx, dy = w.floats[b, j, c.X] - x, w.floats[b, j, c.Y] - y
        avail[b, i, N_MOVES + k] = np.sqrt(dx * dx + dy * dy) <= SHOOT_RANGE


@part
def _write_vitals(w: c.World, out: c.Outputs, b: int, row: int, at: int, j: int, n_bits: int) -> int:
    """Write [shield], [type] of unit j at out[b, row, at:] and return where they end."""
    if w.spec[j, c.S_SHIELD] > 0.0:
        out[b, row, at] = w.floats[b, j, c.SHIELD] / w.spec[j, c.S_SHIELD]
        at += 1
    if n_bits > 0:
        out[b, row, at + int(w.spec[j, c.S_TYPE_BIT])] = 1.0
    return at + n_bits


@part
def _write_obs(w: c.World, avail: c.Flags, obs: c.Outputs, n_bits: int, b: int, i: int) -> None:
    n_agents = obs.shape[1]
    if w.ints[b, i, c.ALIVE] == 0:
        return
    for k in range(4):
        obs[b, i, k] = avail[b, i, 2 + k]
    at = 4
    n_units = w.ints.shape[1]
    for k in range(n_units):
        # Enemies come first, then the other allies.
        j = n_agents + k if k < n_units - n_agents else k - (n_units - n_agents)
        if j == i:
            continue
        end = at + 5 + (1 if w.spec[j, c.S_SHIELD] > 0.0 else 0) + n_bits
        dx, dy = w.floats[b, j, c.X] - w.floats[b, i, c.X], w.floats[b, j, c.Y] - w.floats[b, i, c.Y]
        distance = np.sqrt(dx * dx + dy * dy)
        if w.ints[b, j, c.ALIVE] == 1 and distance < SIGHT:
            obs[b, i, at] = 1.0 if j < n_agents or avail[b, i, N_MOVES + j - n_agents] else 0.0
            obs[b, i, at + 1] = distance / SIGHT
            obs[b, i, at + 2] = dx / SIGHT
            obs[b, i, at + 3] = dy / SIGHT
            obs[b, i, at + 4] = w.floats[b, j, c.HEALTH] / w.spec[j, c.S_HEALTH]
            _write_vitals(w, obs, b, i, at + 5, j, n_bits)
        at = end
    obs[b, i, at] = w.floats[b, i, c.HEALTH] / w.spec[i, c.S_HEALTH]
    _write_vitals(w, obs, b, i, at + 1, i, n_bits)


@part
def _write_state(w: c.World, state: c.Outputs, n_agents: int, n_actions: int, n_bits: int, b: int) -> None:
    at = 0
    for j in range(w.ints.shape[1]):
        width = (4 if j < n_agents else 3) + (1 if w.spec[j, c.S_SHIELD] > 0.0 else 0) + n_bits
        if w.ints[b, j, c.ALIVE] == 1:
            state[b, 0, at] = w.floats[b, j, c.HEALTH] / w.spec[j, c.S_HEALTH]
            place = at + 1
            if j < n_agents:
                clock = w.floats[b, j, c.ENERGY] if w.spec[j, c.S_DELIVERY] == c.MEND else w.floats[b, j, c.COOLDOWN]
                state[b, 0, place] = clock / w.spec[j, c.S_SHOWN]
                place += 1
            state[b, 0, place] = (w.floats[b, j, c.X] - CENTRE) / WIDTH
            state[b, 0, place + 1] = (w.floats[b, j, c.Y] - CENTRE) / WIDTH
            _write_vitals(w, state, b, 0, place + 2, j, n_bits)
        at += width
    for i in range(n_agents):
        if w.ints[b, i, c.LAST_ACTION] >= 0:
            state[b, 0, at + w.ints[b, i, c.LAST_ACTION]] = 1.0
        at += n_actions


@kernel
def observe(
    w: c.World,
    walkable: c.Flags,
    obs: c.Outputs,
    state: c.Outputs,
    avail: c.Flags,
    n_bits: int,
) -> None:
    """Fill obs [B, N, O], state [B, 1, S] and avail [B, N, A], which must come zeroed."""
    for b in range(obs.shape[0]):
        for i in range(obs.shape[1]):
            _write_avail(w, walkable, avail, b, i)
            _write_obs(w, avail, obs, n_bits, b, i)
        _write_state(w, state, obs.shape[1], avail.shape[2], n_bits, b)


@part
def _take_losses(w: c.World, b: int) -> float:
    """Sum what enemies lost since the last boundary, kills included, and remember where they stand."""
    total = 0.0
    for j in range(w.n_allies, w.ints.shape[1]):
        before = w.floats[b, j, c.BEFORE]
        if before <= 0.0:
            continue
        now = w.floats[b, j, c.HEALTH] + w.floats[b, j, c.SHIELD] if w.ints[b, j, c.ALIVE] == 1 else 0.0
        total += before - now + (KILL if w.ints[b, j, c.ALIVE] == 0 else 0.0)
        w.floats[b, j, c.BEFORE] = now
    return total


@part
def _judge(w: c.World, b: int) -> int:
    allies, fighters, enemies, hostile = 0, 0, 0, 0
    for i in range(w.ints.shape[1]):
        if w.ints[b, i, c.ALIVE] == 0:
            continue
        armed = 0 if w.spec[i, c.S_DELIVERY] == c.MEND else 1
        if i < w.n_allies:
            allies, fighters = allies + 1, fighters + armed
        else:
            enemies, hostile = enemies + 1, hostile + armed
    if (allies == 0 and enemies > 0) or (allies > 0 and fighters == 0):
        return LOST
    if allies > 0 and (enemies == 0 or (enemies == 1 and hostile == 0)):
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
    """Write the reward [B] of this step and the flags ends [B, 3]: terminated, truncated, won."""
    for b in range(w.ints.shape[0]):
        reward[b] = 0.0
        if not w.running[b]:
            continue
        steps[b] += 1
        points = abs(_take_losses(w, b))
        verdict = _judge(w, b)
        if sparse:
            points = 1.0 if verdict == WON else (-1.0 if verdict == LOST else 0.0)
        elif verdict == WON:
            points += WIN
        reward[b] = points * scale
        ends[b, 0] = verdict != OPEN
        ends[b, 1] = verdict == OPEN and steps[b] >= limit
        ends[b, 2] = verdict == WON
        w.running[b] = not (ends[b, 0] or ends[b, 1])
