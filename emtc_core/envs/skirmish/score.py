"""Rewards and ends at a step boundary, as SMAC computes them.

The shaped reward is |enemy health and shield lost + 10 per kill|, +200 on a win, times 20 / max_reward.
What regenerates counts negatively before the absolute value, so an episode may return more than 20.
"""

import numpy as np
from numpy.typing import NDArray

from emtc_core.envs.skirmish import columns as c
from emtc_core.envs.skirmish.compiled import kernel, part

KILL, WIN = 10.0, 200.0
LOST, DRAWN, WON, OPEN = -1, 0, 1, 2


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
