"""A football pitch from stored states. Needs no engine; pages call it through the registry."""

import numpy as np
from numpy.typing import NDArray

from emtc_core.arrays import check_shape
from emtc_core.envs.base import Scene
from emtc_core.envs.grf.layout import Layout
from emtc_core.envs.grf.scenarios import get_scenario

PITCH = (-1.0, -0.42, 1.0, 0.42)
"""Goal lines at x = -1 and 1, touch lines at y = -0.42 and 0.42, in the engine's units."""

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
        bounds=PITCH,
        title=map,
        note="Google Research Football. Only the agents, the observed opponents and the ball are recorded.",
    )
