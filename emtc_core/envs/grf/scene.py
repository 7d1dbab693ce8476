"""A football pitch from stored states. Needs no engine; pages call it through the registry."""

import numpy as np
from numpy.typing import NDArray

from emtc_core.arrays import check_shape
from emtc_core.envs.base import Scene
from emtc_core.envs.grf.layout import Layout
from emtc_core.envs.grf.scenarios import get_scenario

PITCH = (-1.0, -0.42, 1.0, 0.42)
"""Goal lines at x = -1 and 1, touch lines at y = -0.42 and 0.42, in the engine's units."""

_SURROUND = 0.08  # so that a keeper on his line and a ball in the net stay in sight
_GOAL, _GOAL_DEPTH = 0.044, 0.03  # half the mouth between the posts, and how deep the net is drawn
_BOX, _BOX_DEPTH = 0.24, 0.3  # penalty area: half its width and its depth
_CIRCLE = 0.17

_PLAYER_RADIUS = 0.018  # about a metre
_BALL_RADIUS = 0.009


def make_scene(map: str, states: NDArray[np.float32]) -> Scene:
    """Place the observed players and the ball; y points up here, down in the engine."""
    scenario = get_scenario(map)
    layout = Layout(scenario.n_agents, scenario.n_opponents)
    check_shape("states", states, (None, layout.dim))
    n, m, length = scenario.n_agents, scenario.n_opponents, len(states)
    agents = states[:, : 2 * n].reshape(length, n, 2)
    at = layout.opponents_at
    opponents = states[:, at : at + 2 * m].reshape(length, m, 2)
    ball = states[:, layout.ball_at : layout.ball_at + 2].reshape(length, 1, 2)
    position = np.concatenate([agents, opponents, ball], axis=1) * np.array([1.0, -1.0], np.float32)
    units = n + m + 1
    return Scene(
        position=position.astype(np.float32),
        health=np.ones((length, units), np.float32),
        shield=np.zeros((length, units), np.float32),
        alive=np.ones((length, units), bool),
        team=np.array([0] * n + [1] * m + [2], np.int8),
        radius=np.array([_PLAYER_RADIUS] * (n + m) + [_BALL_RADIUS], np.float32),
        kind=("player",) * n + ("keeper",) + ("player",) * (m - 1) + ("ball",),
        bounds=(PITCH[0] - _SURROUND, PITCH[1] - _SURROUND, PITCH[2] + _SURROUND, PITCH[3] + _SURROUND),
        markings=_draw_markings(),
        title=map,
        note="Google Research Football. Only the agents, the observed opponents and the ball are recorded.",
    )


def _draw_markings() -> NDArray[np.float32]:
    """List the painted lines as segments: touch and goal lines, half-way line and circle, boxes, goals."""
    x0, y0, x1, y1 = PITCH
    angle = np.linspace(0, 2 * np.pi, 33)
    ring = np.stack([np.cos(angle), np.sin(angle)], axis=1) * _CIRCLE
    outlines = [_rectangle(*PITCH), np.array([[0.0, y0], [0.0, y1]]), ring]
    for goal_line, inward in ((x0, 1.0), (x1, -1.0)):
        outlines.append(_rectangle(goal_line, -_BOX, goal_line + inward * _BOX_DEPTH, _BOX))
        outlines.append(_rectangle(goal_line, -_GOAL, goal_line - inward * _GOAL_DEPTH, _GOAL))
    return np.concatenate([np.hstack([line[:-1], line[1:]]) for line in outlines]).astype(np.float32)


def _rectangle(x0: float, y0: float, x1: float, y1: float) -> NDArray[np.float64]:
    return np.array([[x0, y0], [x1, y0], [x1, y1], [x0, y1], [x0, y0]])
