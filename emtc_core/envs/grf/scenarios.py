"""The three academy scenarios as data: start positions, controlled and observed players, and the state layout.

Contents: line-ups, sizes, the conversion from a state to every agent's observation (vectorized over environments and
agents), and the conversion from states to a scene. A scene needs no engine (`engine.py`).

The trimmed counter-attacks follow the published description: the authors of CDS train with four attackers, their
keeper, and only those defenders that are in the observation.

State: n agents (x, y), n directions, m opponents (x, y), m directions, ball (x, y, z), ball direction (3).
Observation of agent i: own position, teammates relative to it, own direction, teammates' directions,
opponents relative to it, their directions, ball relative in x and y, ball height, ball direction.
Source: the wrappers published with CDS and EMU; see section 4 of the project's `algorithms` notes.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from emtc_core.arrays import check_shape
from emtc_core.envs.scene import Scene
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

# Sizes of a scene, in the engine's units.
_MARGIN = 0.08  # around the pitch, so that a keeper on the goal line and a ball in the net are visible
_GOAL_HALF_WIDTH, _GOAL_DEPTH = 0.044, 0.03
_BOX_HALF_WIDTH, _BOX_DEPTH = 0.24, 0.3  # penalty area
_CIRCLE_RADIUS = 0.17
_PLAYER_RADIUS = 0.018  # about 1 m
_BALL_RADIUS = 0.009
_CONTROL_DISTANCE = 0.03  # a player nearer to the ball has it, about 1.6 m


@dataclass(frozen=True)
class Player:
    """One player at kick-off. The player's team attacks in the direction of +x."""

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
    """One map. The last `n_agents` left players are agents, the first `n_opponents` right players are observed."""

    name: str
    n_agents: int
    n_opponents: int
    trimmed: Lineup
    full: Lineup

    @property
    def dim(self) -> int:
        """Length of an observation and of the state: four numbers per player and six for the ball."""
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

# The line-ups in gfootball's scenario files, for `env.grf.trimmed = false`: eleven against eleven players, most of
# them neither observed nor controlled. Easy and hard differ in the start position of one center back.
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


def _make_full_right(low_back: Player) -> tuple[Player, ...]:
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


_FULL_EASY = Lineup(_FULL_LEFT, _make_full_right(Player(0.4, -0.06356, "CB")), _COUNTER_BALL)
_FULL_HARD = Lineup(_FULL_LEFT, _make_full_right(_LOW_BACK), _COUNTER_BALL)

SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario("academy_3_vs_1_with_keeper", 3, 2, _KEEPER_DUEL, _KEEPER_DUEL),
        Scenario("academy_counterattack_easy", 4, 2, _COUNTER_EASY, _FULL_EASY),
        Scenario("academy_counterattack_hard", 4, 3, _COUNTER_HARD, _FULL_HARD),
    )
}


def get_scenario(map: str) -> Scenario:
    """Get a scenario by its map name.

    Raises:
        EnvUnavailableError: If the map does not exist.
    """
    if map not in SCENARIOS:
        raise EnvUnavailableError(f"grf has no scenario {map!r}.", hint="List all scenarios with: emtc envs")
    return SCENARIOS[map]


@dataclass(frozen=True)
class StateLayout:
    """Indices of the entries in a state of n agents and m opponents."""

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


def in_own_half(layout: StateLayout, state_BS: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Find the matches in which the ball or any agent is at x < 0. This ends an academy episode.

    Source: the wrappers of lich14/CDS, CDS_GRF/envs/grf.

    Args:
        layout: Indices of the state entries.
        state_BS: [B, S] in the engine's units [state features].

    Returns:
        [B] boolean.
    """
    agents_x = state_BS[:, 0 : 2 * layout.n_agents : 2]
    return (agents_x < 0).any(axis=1) | (state_BS[:, layout.ball_at] < 0)


class ObservationMap:
    """Computes observations with one gather and one subtraction: obs = state[source] - state[origin]."""

    def __init__(self, layout: StateLayout) -> None:
        rows = [_list_feature_indices(layout, agent) for agent in range(layout.n_agents)]
        self._source_NO = np.array([[source for source, _ in row] for row in rows])
        self._origin_NO = np.array([[origin for _, origin in row] for row in rows])

    def observe(self, state_BS: NDArray[np.float64]) -> NDArray[np.float32]:
        """Compute the observations of all agents.

        Source: the wrappers of lich14/CDS, CDS_GRF/envs/grf.

        Args:
            state_BS: [B, S] in the engine's units [state features].

        Returns:
            [B, N, O] in the engine's units [observation features].
        """
        padded = np.concatenate([state_BS, np.zeros((len(state_BS), 1))], axis=1)
        return (padded[:, self._source_NO] - padded[:, self._origin_NO]).astype(np.float32)


def _list_feature_indices(layout: StateLayout, agent: int) -> list[tuple[int, int]]:
    """List the state indices (source, origin) of one agent's observation, in the order of its features."""
    n, m = layout.n_agents, layout.n_opponents
    x, y = 2 * agent, 2 * agent + 1
    teammates = [i for i in range(n) if i != agent]
    directions, opponents, ball = 2 * n, layout.opponents_at, layout.ball_at
    zero = layout.dim  # index of the zero that `observe` appends to the state; absolute features subtract it

    def absolute(index: int, count: int) -> list[tuple[int, int]]:
        return [(index + k, zero) for k in range(count)]

    def relative(index: int) -> list[tuple[int, int]]:
        return [(index, x), (index + 1, y)]

    indices = absolute(x, 2)
    for teammate in teammates:
        indices += relative(2 * teammate)
    indices += absolute(directions + x, 2)
    for teammate in teammates:
        indices += absolute(directions + 2 * teammate, 2)
    for opponent in range(m):
        indices += relative(opponents + 2 * opponent)
    indices += absolute(opponents + 2 * m, 2 * m)
    indices += relative(ball)
    indices += absolute(ball + 2, 4)
    return indices


def make_scene(map: str, states: NDArray[np.float32]) -> Scene:
    """Make the frames of one episode: observed players, ball and pitch markings.

    Args:
        map: Name of the scenario.
        states: [T, S] in the engine's units [state features]; y points down there and up in the scene. Source: the
            layout at the top of this module.

    Raises:
        EnvUnavailableError: If the scenario does not exist.
        ShapeError: If the states are of another scenario.
    """
    scenario = get_scenario(map)
    layout = StateLayout(scenario.n_agents, scenario.n_opponents)
    check_shape("states", states, (None, layout.dim))
    n, m, length = scenario.n_agents, scenario.n_opponents, len(states)
    agents = states[:, : 2 * n].reshape(length, n, 2)
    opponents = states[:, layout.opponents_at : layout.opponents_at + 2 * m].reshape(length, m, 2)
    ball = states[:, layout.ball_at : layout.ball_at + 2].reshape(length, 1, 2)
    position = np.concatenate([agents, opponents, ball], axis=1) * np.array([1.0, -1.0], np.float32)
    distance = np.hypot(*np.moveaxis(position[:, :-1] - position[:, -1:], 2, 0))
    carrier = np.where(distance.min(axis=1) < _CONTROL_DISTANCE, distance.argmin(axis=1), -1)
    units = n + m + 1
    return Scene(
        position=position.astype(np.float32),
        health=np.ones((length, units), np.float32),
        shield=np.zeros((length, units), np.float32),
        alive=np.ones((length, units), bool),
        team=np.array([0] * n + [1] * m + [2], np.int8),
        radius=np.array([_PLAYER_RADIUS] * (n + m) + [_BALL_RADIUS], np.float32),
        kind=("player",) * n + ("keeper",) + ("player",) * (m - 1) + ("ball",),
        bounds=(PITCH[0] - _MARGIN, PITCH[1] - _MARGIN, PITCH[2] + _MARGIN, PITCH[3] + _MARGIN),
        markings=_make_markings(),
        title=map,
        note="Google Research Football. Only the agents, the observed opponents and the ball are recorded.",
        carrier=carrier.astype(np.int16),
    )


def _make_markings() -> NDArray[np.float32]:
    """Make the lines of the pitch as segments [L, 4]: touch, goal and half-way lines, circle, boxes, goals."""
    x0, y0, x1, y1 = PITCH

    def rectangle(x0: float, y0: float, x1: float, y1: float) -> NDArray[np.float64]:
        return np.array([[x0, y0], [x1, y0], [x1, y1], [x0, y1], [x0, y0]])

    angle = np.linspace(0, 2 * np.pi, 33)
    circle = np.stack([np.cos(angle), np.sin(angle)], axis=1) * _CIRCLE_RADIUS
    outlines = [rectangle(*PITCH), np.array([[0.0, y0], [0.0, y1]]), circle]
    for goal_line, inward in ((x0, 1.0), (x1, -1.0)):
        outlines.append(
            rectangle(goal_line, -_BOX_HALF_WIDTH, goal_line + inward * _BOX_DEPTH, _BOX_HALF_WIDTH),
        )
        outlines.append(
            rectangle(goal_line, -_GOAL_HALF_WIDTH, goal_line - inward * _GOAL_DEPTH, _GOAL_HALF_WIDTH),
        )
    return np.concatenate([np.hstack([line[:-1], line[1:]]) for line in outlines]).astype(np.float32)
