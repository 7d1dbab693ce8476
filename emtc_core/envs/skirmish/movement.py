"""Movement in one game loop: the way through a choke, steering, collisions, and the edge of the ground.

Orders, the reason for a movement, are in `orders.py` and `combat.py`.

Steering and collisions are inferred from the game's behavior. A walking unit is pushed away by planted units and by
enemies that stand. It pushes idle friends aside, shares the way with other walking units, and walks around obstacles.
"""

import numpy as np
from numpy.typing import NDArray

from emtc_core.envs.skirmish import columns as c
from emtc_core.envs.skirmish.kernels import inlined
from emtc_core.envs.skirmish.maps import CLEARANCE
from emtc_core.envs.skirmish.units import TURN_DEGREES

# "Inferred": chosen so that the behavior resembles the game's, because the value is not published.
LOOK_AHEAD = 0.8
"""Gap to a standing unit at which a walking unit begins to walk around it [cells] (inferred)."""
OBSTACLE_FRACTION = 0.9
"""A standing unit is an obstacle if it is closer to the path than this fraction of the S_SEPARATION sum (inferred)."""
MIN_FRIEND_FRACTION = 0.6
"""Minimum distance between the centers of friends, as a fraction of their S_SEPARATION sum (inferred)."""
STUCK_FROM = 3.0
"""Value of BLOCKED from which a walking unit is treated as a standing one (inferred)."""
MIN_PROGRESS = 0.35
"""A loop counts as blocked if the unit moves less than this fraction of its full speed (inferred)."""
CHANGE_SIDE_AT = 24.0
"""Value of BLOCKED at which a unit tries to pass on the other side (inferred)."""
PASSES = 2
"""Number of passes over all pairs of units when overlapping units are pushed apart."""
_COS_TURN = float(np.cos(np.radians(TURN_DEGREES)))
_SIN_TURN = float(np.sin(np.radians(TURN_DEGREES)))


@inlined
def turn_to(w: c.World, b: int, i: int, dx: float, dy: float) -> bool:
    """Turn a unit towards a direction, by at most TURN_DEGREES.

    Args:
        w: The battles.
        b: Index of the battle.
        i: Index of the unit.
        dx: x of the unit vector of the direction.
        dy: y of the unit vector of the direction.

    Returns:
        Whether the unit faces the direction now.
    """
    fx, fy = w.floats[b, i, c.FACE_X], w.floats[b, i, c.FACE_Y]
    if fx * dx + fy * dy >= _COS_TURN:
        w.floats[b, i, c.FACE_X], w.floats[b, i, c.FACE_Y] = dx, dy
        return True
    sine = _SIN_TURN if fx * dy - fy * dx >= 0.0 else -_SIN_TURN
    w.floats[b, i, c.FACE_X] = fx * _COS_TURN - fy * sine
    w.floats[b, i, c.FACE_Y] = fx * sine + fy * _COS_TURN
    return False


@inlined
def is_point_on_ground(ground: NDArray[np.int8], x: float, y: float) -> bool:
    """Check whether a unit's center may be at a point. `maps.is_on_ground` is the same check for arrays.

    Source: implementation detail.

    Args:
        ground: [X, Y], from `maps.make_ground`, dimensionless.
        x: x of the point in cells [map units].
        y: y of the point in cells [map units].
    """
    if x < 0.0 or y < 0.0 or x >= ground.shape[0] or y >= ground.shape[1]:
        return False
    grade = ground[int(x), int(y)]  # 0 blocked, 1 next to a blocked cell, 2 free around
    if grade != 1:
        return grade == 2
    west, east, south, north = int(x - CLEARANCE), int(x + CLEARANCE), int(y - CLEARANCE), int(y + CLEARANCE)
    return (
        ground[west, int(y)] > 0
        and ground[east, int(y)] > 0
        and ground[int(x), south] > 0
        and ground[int(x), north] > 0
    )


@inlined
def _steer_around(w: c.World, b: int, i: int, target: int, dx: float, dy: float, length: float) -> tuple[float, float]:
    """Return the direction in which unit i walks: (dx, dy), or along the tangent of the nearest obstacle.

    The path has the length `length`. `target` is the unit that i walks to; it is not an obstacle. -1: none.
    """
    nearest, gap, side_offset = -1, LOOK_AHEAD, 0.0
    x, y, size, layer = w.floats[b, i, c.X], w.floats[b, i, c.Y], w.spec[i, c.S_SEPARATION], w.spec[i, c.S_LAYER]
    for j in range(w.ints.shape[1]):
        is_standing = w.ints[b, j, c.MOBILITY] != c.WALKING or w.floats[b, j, c.BLOCKED] >= STUCK_FROM
        if j == i or w.ints[b, j, c.ALIVE] == 0 or not is_standing:
            continue
        friend = (i < w.n_allies) == (j < w.n_allies)
        if j == target or layer != w.spec[j, c.S_LAYER]:
            continue
        if friend and w.ints[b, j, c.MOBILITY] == c.IDLE:
            continue
        rx, ry = w.floats[b, j, c.X] - x, w.floats[b, j, c.Y] - y
        room = OBSTACLE_FRACTION * (size + w.spec[j, c.S_SEPARATION])
        if friend:
            room *= MIN_FRIEND_FRACTION
        ahead, side = rx * dx + ry * dy, dx * ry - dy * rx
        past_goal = ahead - min(ahead, length)
        if ahead <= 0.0 or past_goal * past_goal + side * side >= room * room:
            continue
        edge = ahead - np.sqrt(room * room - side * side) if abs(side) < room else ahead
        if edge < gap:
            nearest, gap, side_offset = j, edge, side
    if nearest < 0:
        w.ints[b, i, c.SIDE] = 0
        return dx, dy
    if w.ints[b, i, c.SIDE] == 0:
        w.ints[b, i, c.SIDE] = -1 if side_offset > 0.0 else 1
    rx, ry = w.floats[b, nearest, c.X] - x, w.floats[b, nearest, c.Y] - y
    turn = float(w.ints[b, i, c.SIDE]) / max(np.sqrt(rx * rx + ry * ry), 1e-9)
    return -ry * turn, rx * turn


@inlined
def stand(w: c.World, b: int, i: int, mobility: int) -> None:
    """Let a unit stop in this loop. A flying unit does not stop at once: `move_all` limits its change of velocity.

    Args:
        w: The battles.
        b: Index of the battle.
        i: Index of the unit.
        mobility: PLANTED if the unit attacks, else IDLE.
    """
    w.ints[b, i, c.MOBILITY] = mobility
    w.ints[b, i, c.SIDE] = 0
    w.floats[b, i, c.BLOCKED] = 0.0
    w.floats[b, i, c.PLANNED_X], w.floats[b, i, c.PLANNED_Y] = 0.0, 0.0


@inlined
def walk(w: c.World, b: int, i: int, target: int, goal_x: float, goal_y: float, halt: float) -> None:
    """Plan a unit's walk towards a point for this loop, through the choke and around obstacles.

    Args:
        w: The battles.
        b: Index of the battle.
        i: Index of the unit.
        target: Index of the unit at the point; -1: none.
        goal_x: x of the point [cells].
        goal_y: y of the point [cells].
        halt: Distance from the point at which the unit stops [cells].
    """
    x, y = w.floats[b, i, c.X], w.floats[b, i, c.Y]
    choke_y = w.choke[0]
    if (y < choke_y) != (goal_y < choke_y) and is_point_on_ground(w.ground, goal_x, goal_y):
        crossing_x = x + (goal_x - x) * (choke_y - y) / (goal_y - y)
        if crossing_x < w.choke[1] + CLEARANCE or crossing_x > w.choke[2] - CLEARANCE:
            # The straight way hits a wall: first walk to a point in the passage, just behind its middle line.
            goal_x = min(max(crossing_x, w.choke[1] + 2.0 * CLEARANCE), w.choke[2] - 2.0 * CLEARANCE)
            goal_y = choke_y + (0.2 if goal_y >= choke_y else -0.2)
    dx, dy = goal_x - x, goal_y - y
    distance = np.sqrt(dx * dx + dy * dy)
    if distance < 1e-6:
        stand(w, b, i, c.IDLE)
        return
    length = max(distance - halt, 0.0)
    dx, dy = _steer_around(w, b, i, target, dx / distance, dy / distance, length)
    turn_to(w, b, i, dx, dy)
    speed = min(w.spec[i, c.S_SPEED], distance)
    w.ints[b, i, c.MOBILITY] = c.WALKING
    w.floats[b, i, c.PLANNED_X], w.floats[b, i, c.PLANNED_Y] = dx * speed, dy * speed


@inlined
def _keep_on_ground(w: c.World, b: int, i: int) -> None:
    """Undo the movement of unit i in x, in y or in both if it has left the ground."""
    x, y = w.floats[b, i, c.X], w.floats[b, i, c.Y]
    if is_point_on_ground(w.ground, x, y):
        return
    old_x, old_y = w.floats[b, i, c.OLD_X], w.floats[b, i, c.OLD_Y]
    if is_point_on_ground(w.ground, x, old_y):
        w.floats[b, i, c.Y] = old_y
    elif is_point_on_ground(w.ground, old_x, y):
        w.floats[b, i, c.X] = old_x
    else:
        w.floats[b, i, c.X], w.floats[b, i, c.Y] = old_x, old_y


@inlined
def _push_share(w: c.World, b: int, i: int, j: int) -> float:
    """Return the share of their overlap by which unit i is pushed away from unit j.

    unit i     j WALKING            j IDLE                j PLANTED
    WALKING    0.5                  friend 0.5, enemy 1   1
    IDLE       friend 0.5, enemy 0  0.5                   friend 1, enemy 0
    PLANTED    0                    0                     0
    """
    mine, other = w.ints[b, i, c.MOBILITY], w.ints[b, j, c.MOBILITY]
    if mine == other:
        return 0.0 if mine == c.PLANTED else 0.5
    friends = (i < w.n_allies) == (j < w.n_allies)
    if mine == c.WALKING:
        return 0.5 if friends and other == c.IDLE else 1.0
    if other == c.WALKING:
        return 0.5 if friends and mine == c.IDLE else 0.0
    return 1.0 if mine == c.IDLE and friends else 0.0


@inlined
def _push_apart(w: c.World, b: int) -> None:
    """Push all pairs of overlapping units apart, once."""
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
                room *= MIN_FRIEND_FRACTION
            square = dx * dx + dy * dy
            if square >= room * room or layer != w.spec[j, c.S_LAYER]:
                continue
            if square < 1e-12:
                dx, dy, square = 1e-6, 0.0, 1e-12
            gap = np.sqrt(square)
            push = (room - gap) / gap
            share_i, share_j = _push_share(w, b, i, j), _push_share(w, b, j, i)
            x -= dx * push * share_i
            y -= dy * push * share_i
            w.floats[b, j, c.X] += dx * push * share_j
            w.floats[b, j, c.Y] += dy * push * share_j
        w.floats[b, i, c.X], w.floats[b, i, c.Y] = x, y


@inlined
def move_all(w: c.World, b: int) -> None:
    """Move all units by their planned displacements, push them apart and keep them on the ground."""
    n_units = w.ints.shape[1]
    for i in range(n_units):
        planned_x, planned_y = w.floats[b, i, c.PLANNED_X], w.floats[b, i, c.PLANNED_Y]
        if w.spec[i, c.S_LAYER] == c.AIR:
            dx, dy = planned_x - w.floats[b, i, c.VX], planned_y - w.floats[b, i, c.VY]
            change = np.sqrt(dx * dx + dy * dy)
            share = min(1.0, w.spec[i, c.S_ACCELERATION] / change) if change > 0.0 else 1.0
            planned_x, planned_y = w.floats[b, i, c.VX] + dx * share, w.floats[b, i, c.VY] + dy * share
        w.floats[b, i, c.OLD_X], w.floats[b, i, c.OLD_Y] = w.floats[b, i, c.X], w.floats[b, i, c.Y]
        if w.ints[b, i, c.ALIVE] == 1:
            w.floats[b, i, c.X] += planned_x
            w.floats[b, i, c.Y] += planned_y
            _keep_on_ground(w, b, i)
    for _ in range(PASSES):
        _push_apart(w, b)
        for i in range(n_units):
            _keep_on_ground(w, b, i)
    for i in range(n_units):
        _finish_loop(w, b, i)


@inlined
def _finish_loop(w: c.World, b: int, i: int) -> None:
    """Store the displacement of unit i in this loop and update BLOCKED. Change SIDE if the unit is blocked for long."""
    dx, dy = w.floats[b, i, c.X] - w.floats[b, i, c.OLD_X], w.floats[b, i, c.Y] - w.floats[b, i, c.OLD_Y]
    w.floats[b, i, c.VX], w.floats[b, i, c.VY] = dx, dy
    if w.ints[b, i, c.MOBILITY] != c.WALKING:
        return
    min_distance = MIN_PROGRESS * w.spec[i, c.S_SPEED]
    if dx * dx + dy * dy >= min_distance * min_distance:
        w.floats[b, i, c.BLOCKED] = max(w.floats[b, i, c.BLOCKED] - 1.0, 0.0)
        return
    w.floats[b, i, c.BLOCKED] += 1.0
    if w.floats[b, i, c.BLOCKED] >= CHANGE_SIDE_AT:
        w.floats[b, i, c.BLOCKED] = 0.0
        w.ints[b, i, c.SIDE] = -w.ints[b, i, c.SIDE]
