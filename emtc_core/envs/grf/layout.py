"""From raw positions to the state, from the state to every agent's observation, and to a pitch that a replay draws.

What lives here: index arithmetic, vectorised over environments and agents. What does not: the engine, which no page
needs to draw a scene.
State: n agents (x, y), n directions, m opponents (x, y), m directions, ball (x, y, z), ball direction (3).
Observation of agent i: own position, teammates relative to it, own direction, teammates' directions,
opponents relative to it, their directions, ball relative in x and y, ball height, ball direction.
Source: the wrappers published with CDS and EMU, as `algorithms` section 4 records them.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from emtc_core.arrays import check_shape
from emtc_core.envs.base import Scene
from emtc_core.envs.grf.scenarios import get_scenario

PITCH = (-1.0, -0.42, 1.0, 0.42)
"""Goal lines at x = -1 and 1, touch lines at y = -0.42 and 0.42, in the engine's units."""

_SURROUND = 0.08  # so that a keeper on his line and a ball in the net stay in sight
_GOAL, _GOAL_DEPTH = 0.044, 0.03  # half the mouth between the posts, and how deep the net is drawn
_BOX, _BOX_DEPTH = 0.24, 0.3  # penalty area: half its width and its depth
_CIRCLE = 0.17

_PLAYER_RADIUS = 0.018  # about a metre
_BALL_RADIUS = 0.009


@dataclass(frozen=True)
class Layout:
    """Where things stand in a state of n agents and m opponents."""

    n_agents: int
    n_opponents: int

    @property
    def opponents_at(self) -> int:
        """Index of the first opponent's x."""
        return 4 * self.n_agents

    @property
    def ball_at(self) -> int:
        """Index of the ball's x."""
        return 4 * (self.n_agents + self.n_opponents)

    @property
    def dim(self) -> int:
        """Length of the state and of an observation."""
        return self.ball_at + 6


def in_own_half(layout: Layout, state_BS: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Where the ball or any agent has crossed to x < 0; this ends an academy episode."""
    agents_x = state_BS[:, 0 : 2 * layout.n_agents : 2]
    return (agents_x < 0).any(axis=1) | (state_BS[:, layout.ball_at] < 0)


class ObservationMap:
    """Observations as one gather and one subtraction: obs = state[source] - state[origin]."""

    def __init__(self, layout: Layout) -> None:
        nowhere = layout.dim  # a zero appended to the state: absolute features subtract nothing
        rows = [_agent_row(layout, agent, nowhere) for agent in range(layout.n_agents)]
        self._source_NO = np.array([[source for source, _ in row] for row in rows])
        self._origin_NO = np.array([[origin for _, origin in row] for row in rows])

    def observe(self, state_BS: NDArray[np.float64]) -> NDArray[np.float32]:
        """Build [B, N, O] observations from [B, S] states."""
        padded = np.concatenate([state_BS, np.zeros((len(state_BS), 1))], axis=1)
        return (padded[:, self._source_NO] - padded[:, self._origin_NO]).astype(np.float32)


def _agent_row(layout: Layout, agent: int, nowhere: int) -> list[tuple[int, int]]:
    """List (source, origin) state indices of one agent's observation, in order."""
    n, m = layout.n_agents, layout.n_opponents
    own = (2 * agent, 2 * agent + 1)
    mates = [i for i in range(n) if i != agent]
    directions_at, opponents, ball = 2 * n, layout.opponents_at, layout.ball_at

    def absolute(at: int, count: int) -> list[tuple[int, int]]:
        return [(at + k, nowhere) for k in range(count)]

    def relative(at: int) -> list[tuple[int, int]]:
        return [(at, own[0]), (at + 1, own[1])]

    row = absolute(own[0], 2)
    for mate in mates:
        row += relative(2 * mate)
    row += absolute(directions_at + own[0], 2)
    for mate in mates:
        row += absolute(directions_at + 2 * mate, 2)
    for opponent in range(m):
        row += relative(opponents + 2 * opponent)
    row += absolute(opponents + 2 * m, 2 * m)
    row += relative(ball)
    row += absolute(ball + 2, 4)
    return row


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
