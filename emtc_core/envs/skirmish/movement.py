"""Walking: the way through a choke, steering around bodies, pushing apart, and the edge of the ground.

What lives here: where a unit that wants to walk gets to in one loop. What does not: why it walks.
Steering and pushing are an inference of how the game's bodies behave: walkers yield to whoever stands to
attack and to enemies, push idle friends aside, share the way with other walkers, and walk around what
stands in their way.
"""

import numpy as np
from numpy.typing import NDArray

from emtc_core.envs.skirmish.columns import (
    AIR,
    ALIVE,
    BLOCKED,
    FACE_X,
    FACE_Y,
    IDLE,
    MOBILITY,
    OLD_X,
    OLD_Y,
    PLANTED,
    S_ACCELERATION,
    S_LAYER,
    S_SEPARATION,
    S_SPEED,
    SIDE,
    VX,
    VY,
    WALKING,
    WANT_X,
    WANT_Y,
    X,
    Y,
)
from emtc_core.envs.skirmish.compiled import part
from emtc_core.envs.skirmish.terrain import CLEARANCE
from emtc_core.envs.skirmish.units import TURN_DEGREES

LOOK_AHEAD = 0.8
"""Gap at which a walking unit begins to walk around a standing body (inference)."""
GRAZE = 0.9
"""Share of the two bodies' width within which a standing body is in the way (inference)."""
SQUEEZE = 0.6
"""Share of the two bodies' width that friends keep between their centres (inference)."""
JAMMED = 3.0
"""Blocked loops after which others treat a walking unit as a standing body (inference)."""
HEADWAY = 0.35
"""Share of the full speed below which a loop counts as blocked (inference)."""
TURN_BACK = 24.0
"""Blocked loops after which a unit tries the other side (inference)."""
PASSES = 2
"""Relaxation passes of the pushing."""
_COS_TURN = float(np.cos(np.radians(TURN_DEGREES)))
_SIN_TURN = float(np.sin(np.radians(TURN_DEGREES)))


@part
def turn_to(real: NDArray[np.float64], b: int, i: int, dx: float, dy: float) -> bool:
    """Turn unit i towards the unit vector (dx, dy) by at most one loop's turn; say whether it faces it."""
    fx, fy = real[b, i, FACE_X], real[b, i, FACE_Y]
    if fx * dx + fy * dy >= _COS_TURN:
        real[b, i, FACE_X], real[b, i, FACE_Y] = dx, dy
        return True
    sine = _SIN_TURN if fx * dy - fy * dx >= 0.0 else -_SIN_TURN
    real[b, i, FACE_X] = fx * _COS_TURN - fy * sine
    real[b, i, FACE_Y] = fx * sine + fy * _COS_TURN
    return False


@part
def fits(ground: NDArray[np.int8], x: float, y: float) -> bool:
    """Say whether a body may stand with its centre at a point."""
    if x < 0.0 or y < 0.0 or x >= ground.shape[0] or y >= ground.shape[1]:
        return False
    grade = ground[int(x), int(y)]
    if grade != 1:
        return grade == 2
    west, east, south, north = int(x - CLEARANCE), int(x + CLEARANCE), int(y - CLEARANCE), int(y + CLEARANCE)
    return (
        ground[west, int(y)] > 0
        and ground[east, int(y)] > 0
        and ground[int(x), south] > 0
        and ground[int(x), north] > 0
    )


@part
def _around(
    real: NDArray[np.float64],
    whole: NDArray[np.int64],
    spec: NDArray[np.float64],
    n_allies: int,
    b: int,
    i: int,
    target: int,
    dx: float,
    dy: float,
    length: float,
) -> tuple[float, float]:
    nearest, gap, cross = -1, LOOK_AHEAD, 0.0
    x, y, size, layer = real[b, i, X], real[b, i, Y], spec[i, S_SEPARATION], spec[i, S_LAYER]
    for j in range(whole.shape[1]):
        stands = whole[b, j, MOBILITY] != WALKING or real[b, j, BLOCKED] >= JAMMED
        if j == i or whole[b, j, ALIVE] == 0 or not stands:
            continue
        friend = (i < n_allies) == (j < n_allies)
        if j == target or layer != spec[j, S_LAYER]:
            continue
        if friend and whole[b, j, MOBILITY] == IDLE:
            continue
        rx, ry = real[b, j, X] - x, real[b, j, Y] - y
        room = GRAZE * (size + spec[j, S_SEPARATION])
        if friend:
            room *= SQUEEZE
        ahead, side = rx * dx + ry * dy, dx * ry - dy * rx
        beyond = ahead - min(ahead, length)
        if ahead <= 0.0 or beyond * beyond + side * side >= room * room:
            continue
        edge = ahead - np.sqrt(room * room - side * side) if abs(side) < room else ahead
        if edge < gap:
            nearest, gap, cross = j, edge, side
    if nearest < 0:
        whole[b, i, SIDE] = 0
        return dx, dy
    if whole[b, i, SIDE] == 0:
        whole[b, i, SIDE] = -1 if cross > 0.0 else 1
    rx, ry = real[b, nearest, X] - x, real[b, nearest, Y] - y
    turn = float(whole[b, i, SIDE]) / max(np.sqrt(rx * rx + ry * ry), 1e-9)
    return -ry * turn, rx * turn


@part
def stand(real: NDArray[np.float64], whole: NDArray[np.int64], b: int, i: int, mobility: int) -> None:
    """Let unit i stand in this loop: PLANTED while it attacks, else IDLE. Flyers drift to a halt."""
    whole[b, i, MOBILITY] = mobility
    whole[b, i, SIDE] = 0
    real[b, i, BLOCKED] = 0.0
    real[b, i, WANT_X], real[b, i, WANT_Y] = 0.0, 0.0


@part
def walk(
    real: NDArray[np.float64],
    whole: NDArray[np.int64],
    spec: NDArray[np.float64],
    ground: NDArray[np.int8],
    choke: NDArray[np.float64],
    n_allies: int,
    b: int,
    i: int,
    target: int,
    goal_x: float,
    goal_y: float,
    halt: float,
) -> None:
    """Let unit i walk towards a point in this loop, through the choke and around what stands there."""
    x, y = real[b, i, X], real[b, i, Y]
    line = choke[0]
    if (y < line) != (goal_y < line) and fits(ground, goal_x, goal_y):
        cross = x + (goal_x - x) * (line - y) / (goal_y - y)
        if cross < choke[1] + CLEARANCE or cross > choke[2] - CLEARANCE:
            goal_x = min(max(cross, choke[1] + 2.0 * CLEARANCE), choke[2] - 2.0 * CLEARANCE)
            goal_y = line + (0.2 if goal_y >= line else -0.2)
    dx, dy = goal_x - x, goal_y - y
    distance = np.sqrt(dx * dx + dy * dy)
    if distance < 1e-6:
        stand(real, whole, b, i, IDLE)
        return
    length = max(distance - halt, 0.0)
    dx, dy = _around(real, whole, spec, n_allies, b, i, target, dx / distance, dy / distance, length)
    turn_to(real, b, i, dx, dy)
    speed = min(spec[i, S_SPEED], distance)
    whole[b, i, MOBILITY] = WALKING
    real[b, i, WANT_X], real[b, i, WANT_Y] = dx * speed, dy * speed


@part
def _settle(real: NDArray[np.float64], ground: NDArray[np.int8], b: int, i: int) -> None:
    x, y = real[b, i, X], real[b, i, Y]
    if fits(ground, x, y):
        return
    old_x, old_y = real[b, i, OLD_X], real[b, i, OLD_Y]
    if fits(ground, x, old_y):
        real[b, i, Y] = old_y
    elif fits(ground, old_x, y):
        real[b, i, X] = old_x
    else:
        real[b, i, X], real[b, i, Y] = old_x, old_y


@part
def _yields(whole: NDArray[np.int64], n_allies: int, b: int, i: int, j: int) -> float:
    mine, other = whole[b, i, MOBILITY], whole[b, j, MOBILITY]
    if mine == other:
        return 0.0 if mine == PLANTED else 0.5
    friends = (i < n_allies) == (j < n_allies)
    if mine == WALKING:
        return 0.5 if friends and other == IDLE else 1.0
    if other == WALKING:
        return 0.5 if friends and mine == IDLE else 0.0
    return 1.0 if mine == IDLE and friends else 0.0


@part
def _push_apart(
    real: NDArray[np.float64], whole: NDArray[np.int64], spec: NDArray[np.float64], n_allies: int, b: int
) -> None:
    n_units = whole.shape[1]
    for i in range(n_units):
        if whole[b, i, ALIVE] == 0:
            continue
        x, y, size, layer = real[b, i, X], real[b, i, Y], spec[i, S_SEPARATION], spec[i, S_LAYER]
        for j in range(i + 1, n_units):
            if whole[b, j, ALIVE] == 0:
                continue
            dx, dy = real[b, j, X] - x, real[b, j, Y] - y
            room = size + spec[j, S_SEPARATION]
            if (i < n_allies) == (j < n_allies):
                room *= SQUEEZE
            square = dx * dx + dy * dy
            if square >= room * room or layer != spec[j, S_LAYER]:
                continue
            if square < 1e-12:
                dx, dy, square = 1e-6, 0.0, 1e-12
            gap = np.sqrt(square)
            push = (room - gap) / gap
            first, second = _yields(whole, n_allies, b, i, j), _yields(whole, n_allies, b, j, i)
            x -= dx * push * first
            y -= dy * push * first
            real[b, j, X] += dx * push * second
            real[b, j, Y] += dy * push * second
        real[b, i, X], real[b, i, Y] = x, y


@part
def move_all(
    real: NDArray[np.float64],
    whole: NDArray[np.int64],
    spec: NDArray[np.float64],
    ground: NDArray[np.int8],
    n_allies: int,
    b: int,
) -> None:
    """Carry out the wanted velocities of one loop, push bodies apart and keep all on the ground."""
    n_units = whole.shape[1]
    for i in range(n_units):
        want_x, want_y = real[b, i, WANT_X], real[b, i, WANT_Y]
        if spec[i, S_LAYER] == AIR:
            dx, dy = want_x - real[b, i, VX], want_y - real[b, i, VY]
            change = np.sqrt(dx * dx + dy * dy)
            share = min(1.0, spec[i, S_ACCELERATION] / change) if change > 0.0 else 1.0
            want_x, want_y = real[b, i, VX] + dx * share, real[b, i, VY] + dy * share
        real[b, i, OLD_X], real[b, i, OLD_Y] = real[b, i, X], real[b, i, Y]
        if whole[b, i, ALIVE] == 1:
            real[b, i, X] += want_x
            real[b, i, Y] += want_y
            _settle(real, ground, b, i)
    for _ in range(PASSES):
        _push_apart(real, whole, spec, n_allies, b)
        for i in range(n_units):
            _settle(real, ground, b, i)
    for i in range(n_units):
        _count_headway(real, whole, spec, b, i)


@part
def _count_headway(
    real: NDArray[np.float64], whole: NDArray[np.int64], spec: NDArray[np.float64], b: int, i: int
) -> None:
    dx, dy = real[b, i, X] - real[b, i, OLD_X], real[b, i, Y] - real[b, i, OLD_Y]
    real[b, i, VX], real[b, i, VY] = dx, dy
    if whole[b, i, MOBILITY] != WALKING:
        return
    least = HEADWAY * spec[i, S_SPEED]
    if dx * dx + dy * dy >= least * least:
        real[b, i, BLOCKED] = max(real[b, i, BLOCKED] - 1.0, 0.0)
        return
    real[b, i, BLOCKED] += 1.0
    if real[b, i, BLOCKED] >= TURN_BACK:
        real[b, i, BLOCKED] = 0.0
        whole[b, i, SIDE] = -whole[b, i, SIDE]
