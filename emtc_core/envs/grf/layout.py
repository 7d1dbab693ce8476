"""From raw positions to the state, and from the state to every agent's observation.

What lives here: index arithmetic, vectorised over environments and agents. What does not: the engine.
State: n agents (x, y), n directions, m opponents (x, y), m directions, ball (x, y, z), ball direction (3).
Observation of agent i: own position, teammates relative to it, own direction, teammates' directions,
opponents relative to it, their directions, ball relative in x and y, ball height, ball direction.
Source: the wrappers published with CDS and EMU, as `algorithms` section 4 records them.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


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
