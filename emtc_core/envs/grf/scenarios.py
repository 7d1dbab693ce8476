"""The three academy scenarios as data: who stands where, who is controlled and observed, and what a state says of it.

What lives here: line-ups, sizes, and index arithmetic, vectorised over environments and agents, from raw positions to
the state, from the state to every agent's observation, and to a pitch that a replay draws. What does not: the engine
(`engine.py`), which no page needs to draw a scene. The trimmed counter-attacks are written from the published
description: the authors of CDS train on a squad of four attackers, their keeper, and only the defenders that the
observation names.

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
from emtc_core.errors import EnvUnavailableError

EPISODE_LIMIT = 150
N_ACTIONS = 19
ACTION_NAMES = (
    "idle",
    "left",
    "top left",
    "top",
    "top right",
    "right",
    "bottom right",
    "bottom",
    "bottom left",
    "long pass",
    "high pass",
    "short pass",
    "shot",
    "sprint",
    "release direction",
    "release sprint",
    "sliding",
    "dribble",
    "release dribble",
)

PITCH = (-1.0, -0.42, 1.0, 0.42)
"""Goal lines at x = -1 and 1, touch lines at y = -0.42 and 0.42, in the engine's units."""

_SURROUND = 0.08  # so that a keeper on his line and a ball in the net stay in sight
_GOAL, _GOAL_DEPTH = 0.044, 0.03  # half the mouth between the posts, and how deep the net is drawn
_BOX, _BOX_DEPTH = 0.24, 0.3  # penalty area: half its width and its depth
_CIRCLE = 0.17

_PLAYER_RADIUS = 0.018  # about a metre
_BALL_RADIUS = 0.009


@dataclass(frozen=True)
class Player:
    """One player at kick-off; x and y are in the frame of the player's own team, attacking towards +x."""

    x: float
    y: float
    role: str


@dataclass(frozen=True)
class Lineup:
    """Both teams and the ball at kick-off."""

    left: tuple[Player, ...]
    right: tuple[Player, ...]
    ball: tuple[float, float]


@dataclass(frozen=True)
class Scenario:
    """One map: the last `n_agents` left players act, the first `n_opponents` right players are seen."""

    name: str
    n_agents: int
    n_opponents: int
    trimmed: Lineup
    full: Lineup

    @property
    def dim(self) -> int:
        """Length of an observation and of the state: two vectors per player, six numbers for the ball."""
        return 4 * (self.n_agents + self.n_opponents) + 6


_KEEPER = Player(-1.0, 0.0, "GK")
_COUNTER_ATTACKERS = (
    _KEEPER,
    Player(0.5, -0.3161, "CM"),
    Player(0.25, -0.1, "LM"),
    Player(0.25, 0.1, "RM"),
    Player(0.35, 0.316102, "CF"),
)
_COUNTER_BALL = (0.26, -0.11)
_LOW_BACK = Player(-0.4, -0.06356, "CB")
_HIGH_BACK = Player(-0.4, 0.063559, "CB")

_KEEPER_DUEL = Lineup(
    left=(_KEEPER, Player(0.6, 0.0, "CM"), Player(0.7, 0.2, "CM"), Player(0.7, -0.2, "CM")),
    right=(_KEEPER, Player(-0.75, 0.0, "CB")),
    ball=(0.62, 0.0),
)
_COUNTER_EASY = Lineup(left=_COUNTER_ATTACKERS, right=(_KEEPER, _HIGH_BACK), ball=_COUNTER_BALL)
_COUNTER_HARD = Lineup(left=_COUNTER_ATTACKERS, right=(_KEEPER, _LOW_BACK, _HIGH_BACK), ball=_COUNTER_BALL)

# The engine's own files, for `env.grf.trimmed = false`: eleven against eleven, so that most of both squads
# is neither observed nor controlled. The two differ in where one centre back starts.
_FULL_LEFT = (
    _KEEPER,
    Player(-0.672, -0.19576, "LB"),
    Player(-0.75, -0.06356, "CB"),
    Player(-0.75, 0.063559, "CB"),
    Player(-0.672, 0.19576, "RB"),
    Player(-0.434, -0.10568, "CM"),
    Player(-0.434, 0.10568, "CM"),
    *_COUNTER_ATTACKERS[1:],
)


def _full_right(low_back: Player) -> tuple[Player, ...]:
    return (
        _KEEPER,
        Player(0.128, -0.19576, "LB"),
        low_back,
        _HIGH_BACK,
        Player(0.128, -0.19576, "RB"),
        Player(0.365, -0.10568, "CM"),
        Player(0.282, 0.0, "CM"),
        Player(0.365, 0.10568, "CM"),
        Player(0.54, -0.3161, "LM"),
        Player(0.51, 0.0, "RM"),
        Player(0.54, 0.316102, "CF"),
    )


_FULL_EASY = Lineup(_FULL_LEFT, _full_right(Player(0.4, -0.06356, "CB")), _COUNTER_BALL)
_FULL_HARD = Lineup(_FULL_LEFT, _full_right(_LOW_BACK), _COUNTER_BALL)

SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario("academy_3_vs_1_with_keeper", 3, 2, _KEEPER_DUEL, _KEEPER_DUEL),
        Scenario("academy_counterattack_easy", 4, 2, _COUNTER_EASY, _FULL_EASY),
        Scenario("academy_counterattack_hard", 4, 3, _COUNTER_HARD, _FULL_HARD),
    )
}


def get_scenario(map: str) -> Scenario:
    """Look a scenario up.

    Raises:
        EnvUnavailableError: If no scenario has that name.
    """
    if map not in SCENARIOS:
        raise EnvUnavailableError(
            f"grf has no scenario {map!r}.",
            hint="List all scenarios with: emtc envs",
            reason="unknown_map",
            subject="env.map",
        )
    return SCENARIOS[map]


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
