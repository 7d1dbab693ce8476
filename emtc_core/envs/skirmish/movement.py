"""Walking: the way through a choke, steering around bodies, pushing apart, and the edge of the ground.

What lives here: where a unit that wants to walk gets to in one loop. What does not: why it walks.
Steering and pushing are an inference of how the game's bodies behave: walkers yield to whoever stands to
attack and to enemies, push idle friends aside, share the way with other walkers, and walk around what
stands in their way.
"""

import numpy as np
from numpy.typing import NDArray

from emtc_core.envs.skirmish import columns as c
from emtc_core.envs.skirmish.kernels import part
from emtc_core.envs.skirmish.maps import CLEARANCE
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
def turn_to(w: c.World, b: int, i: int, dx: float, dy: float) -> bool:
    """Turn unit i towards the unit vector (dx, dy) by at most one loop's turn; return whether it faces it."""
    fx, fy = w.floats[b, i, c.FACE_X], w.floats[b, i, c.FACE_Y]
    if fx * dx + fy * dy >= _COS_TURN:
        w.floats[b, i, c.FACE_X], w.floats[b, i, c.FACE_Y] = dx, dy
        return True
    sine = _SIN_TURN if fx * dy - fy * dx >= 0.0 else -_SIN_TURN
    w.floats[b, i, c.FACE_X] = fx * _COS_TURN - fy * sine
    w.floats[b, i, c.FACE_Y] = fx * sine + fy * _COS_TURN
    return False


@part
def fits(ground: NDArray[np.int8], x: float, y: float) -> bool:
    """Whether a body may stand with its centre at a point."""
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
def _around(w: c.World, b: int, i: int, target: int, dx: float, dy: float, length: float) -> tuple[float, float]:
    nearest, gap, cross = -1, LOOK_AHEAD, 0.0
    x, y, size, layer = w.floats[b, i, c.X], w.floats[b, i, c.Y], w.spec[i, c.S_SEPARATION], w.spec[i, c.S_LAYER]
    for j in range(w.ints.shape[1]):
        stands = w.ints[b, j, c.MOBILITY] != c.WALKING or w.floats[b, j, c.BLOCKED] >= JAMMED
        if j == i or w.ints[b, j, c.ALIVE] == 0 or not stands:
            continue
        friend = (i < w.n_allies) == (j < w.n_allies)
        if j == target or layer != w.spec[j, c.S_LAYER]:
            continue
        if friend and w.ints[b, j, c.MOBILITY] == c.IDLE:
            continue
        rx, ry = w.floats[b, j, c.X] - x, w.floats[b, j, c.Y] - y
        room = GRAZE * (size + w.spec[j, c.S_SEPARATION])
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
        w.ints[b, i, c.SIDE] = 0
        return dx, dy
    if w.ints[b, i, c.SIDE] == 0:
        w.ints[b, i, c.SIDE] = -1 if cross > 0.0 else 1
    rx, ry = w.floats[b, nearest, c.X] - x, w.floats[b, nearest, c.Y] - y
    turn = float(w.ints[b, i, c.SIDE]) / max(np.sqrt(rx * rx + ry * ry), 1e-9)
    return -ry * turn, rx * turn


@part
def stand(w: c.World, b: int, i: int, mobility: int) -> None:
    """Let unit i stand in this loop: PLANTED while it attacks, else IDLE. Flyers drift to a halt."""
    w.ints[b, i, c.MOBILITY] = mobility
    w.ints[b, i, c.SIDE] = 0
    w.floats[b, i, c.BLOCKED] = 0.0
    w.floats[b, i, c.WANT_X], w.floats[b, i, c.WANT_Y] = 0.0, 0.0


@part
def walk(w: c.World, b: int, i: int, target: int, goal_x: float, goal_y: float, halt: float) -> None:
    """Let unit i walk towards a point in this loop, through the choke and around what stands there."""
    x, y = w.floats[b, i, c.X], w.floats[b, i, c.Y]
    line = w.choke[0]
    if (y < line) != (goal_y < line) and fits(w.ground, goal_x, goal_y):
        cross = x + (goal_x - x) * (line - y) / (goal_y - y)
        if cross < w.choke[1] + CLEARANCE or cross > w.choke[2] - CLEARANCE:
            goal_x = min(max(cross, w.choke[1] + 2.0 * CLEARANCE), w.choke[2] - 2.0 * CLEARANCE)
            goal_y = line + (0.2 if goal_y >= line else -0.2)
    dx, dy = goal_x - x, goal_y - y
    distance = np.sqrt(dx * dx + dy * dy)
    if distance < 1e-6:
        stand(w, b, i, c.IDLE)
        return
    length = max(distance - halt, 0.0)
    dx, dy = _around(w, b, i, target, dx / distance, dy / distance, length)
    turn_to(w, b, i, dx, dy)
    speed = min(w.spec[i, c.S_SPEED], distance)
    w.ints[b, i, c.MOBILITY] = c.WALKING
    w.floats[b, i, c.WANT_X], w.floats[b, i, c.WANT_Y] = dx * speed, dy * speed


@part
def _settle(w: c.World, b: int, i: int) -> None:
    x, y = w.floats[b, i, c.X], w.floats[b, i, c.Y]
    if fits(w.ground, x, y):
        return
    old_x, old_y = w.floats[b, i, c.OLD_X], w.floats[b, i, c.OLD_Y]
    if fits(w.ground, x, old_y):
        w.floats[b, i, c.Y] = old_y
    elif fits(w.ground, old_x, y):
        w.floats[b, i, c.X] = old_x
    else:
        w.floats[b, i, c.X], w.floats[b, i, c.Y] = old_x, old_y


@part
def _yields(w: c.World, b: int, i: int, j: int) -> float:
    mine, other = w.ints[b, i, c.MOBILITY], w.ints[b, j, c.MOBILITY]
    if mine == other:
        return 0.0 if mine == c.PLANTED else 0.5
    friends = (i < w.n_allies) == (j < w.n_allies)
    if mine == c.WALKING:
        return 0.5 if friends and other == c.IDLE else 1.0
    if other == c.WALKING:
        return 0.5 if friends and mine == c.IDLE else 0.0
    return 1.0 if mine == c.IDLE and friends else 0.0


@part
def _push_apart(w: c.World, b: int) -> None:
    n_units = w.ints.shape[1]
    for i in range(n_units):
        if w.ints[b, i, c.ALIVE] == 0:
            continue
        x, y, size, layer = w.floats[b, i, c.X], w.floats[b, i, c.Y], w.spec[i, c.S_SEPARATION], w.spec[i, c.S_LAYER]
        for j in range(i + 1, n_units):
            if w.ints[b, j, c.ALIVE] == 0:
                continue
            dx, dy = w.floats[b, j, c.X] - x, w.floats[b, j, c.Y] - y
            room = size + w.spec[j, c.S_SEPARATION]
            if (i < w.n_allies) == (j < w.n_allies):
                room *= SQUEEZE
            square = dx * dx + dy * dy
            if square >= room * room or layer != w.spec[j, c.S_LAYER]:
                continue
            if square < 1e-12:
                dx, dy, square = 1e-6, 0.0, 1e-12
            gap = np.sqrt(square)
            push = (room - gap) / gap
            first, second = _yields(w, b, i, j), _yields(w, b, j, i)
            x -= dx * push * first
            y -= dy * push * first
            w.floats[b, j, c.X] += dx * push * second
            w.floats[b, j, c.Y] += dy * push * second
        w.floats[b, i, c.X], w.floats[b, i, c.Y] = x, y


@part
def move_all(w: c.World, b: int) -> None:
    """Carry out the wanted velocities of one loop, push bodies apart and keep all on the ground."""
    n_units = w.ints.shape[1]
    for i in range(n_units):
        want_x, want_y = w.floats[b, i, c.WANT_X], w.floats[b, i, c.WANT_Y]
        if w.spec[i, c.S_LAYER] == c.AIR:
            dx, dy = want_x - w.floats[b, i, c.VX], want_y - w.floats[b, i, c.VY]
            change = np.sqrt(dx * dx + dy * dy)
            share = min(1.0, w.spec[i, c.S_ACCELERATION] / change) if change > 0.0 else 1.0
            want_x, want_y = w.floats[b, i, c.VX] + dx * share, w.floats[b, i, c.VY] + dy * share
        w.floats[b, i, c.OLD_X], w.floats[b, i, c.OLD_Y] = w.floats[b, i, c.X], w.floats[b, i, c.Y]
        if w.ints[b, i, c.ALIVE] == 1:
            w.floats[b, i, c.X] += want_x
            w.floats[b, i, c.Y] += want_y
            _settle(w, b, i)
    for _ in range(PASSES):
        _push_apart(w, b)
        for i in range(n_units):
            _settle(w, b, i)
    for i in range(n_units):
        _count_headway(w, b, i)


@part
def _count_headway(w: c.World, b: int, i: int) -> None:
    dx, dy = w.floats[b, i, c.X] - w.floats[b, i, c.OLD_X], w.floats[b, i, c.Y] - w.floats[b, i, c.OLD_Y]
    w.floats[b, i, c.VX], w.floats[b, i, c.VY] = dx, dy
    if w.ints[b, i, c.MOBILITY] != c.WALKING:
        return
    least = HEADWAY * w.spec[i, c.S_SPEED]
    if dx * dx + dy * dy >= least * least:
        w.floats[b, i, c.BLOCKED] = max(w.floats[b, i, c.BLOCKED] - 1.0, 0.0)
        return
    w.floats[b, i, c.BLOCKED] += 1.0
    if w.floats[b, i, c.BLOCKED] >= TURN_BACK:
        w.floats[b, i, c.BLOCKED] = 0.0
        w.ints[b, i, c.SIDE] = -w.ints[b, i, c.SIDE]
