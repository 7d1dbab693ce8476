"""The three academy scenarios as data: who stands where, who is controlled, who is observed.

What lives here: line-ups and sizes. What does not: the engine (`engine.py`) and the layout of observations
(`layout.py`). The trimmed counter-attacks are written from the published description: the authors of CDS
train on a squad of four attackers, their keeper, and only the defenders that the observation names.
"""

from dataclasses import dataclass

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
        raise EnvUnavailableError(f"grf has no scenario {map!r}. List them with: emtc envs")
    return SCENARIOS[map]
