"""The maps of SMAC and SMACv2: sizes and constructor arguments, copied from the registries of both packages.

Nothing here needs the game.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from emtc_core.envs.base import EnvInfo
from emtc_core.envs.skirmish.maps import MOVES

Race = Literal["terran", "protoss", "zerg"]
REWARD_RANGE = (0.0, 20.0)
_RACES: dict[str, Race] = {"T": "terran", "P": "protoss", "Z": "zerg"}


@dataclass(frozen=True)
class SmacMap:
    """One map."""

    n_agents: int
    n_enemies: int
    episode_limit: int
    race: Race
    enemy_race: Race
    type_bits: int
    """Width of the one-hot code of a unit's type; 0 if all units have the same type."""
    observes_own_position: bool = False

    @property
    def ally_row(self) -> int:
        """Width of one agent's block in the state."""
        return 4 + (self.race == "protoss") + self.type_bits

    @property
    def enemy_row(self) -> int:
        """Width of one enemy's block in the state."""
        return 3 + (self.enemy_race == "protoss") + self.type_bits

    def sizes(self) -> dict[str, int]:
        """Compute the sizes that the package's `get_env_info` returns, and the agent block."""
        n, e, actions = self.n_agents, self.n_enemies, len(MOVES) + self.n_enemies
        own_features = self.ally_row - 3 + 2 * self.observes_own_position
        return {
            "n_agents": n,
            "n_actions": actions,
            "obs_shape": 4 + e * (self.enemy_row + 2) + (n - 1) * (self.ally_row + 1) + own_features,
            "state_shape": n * self.ally_row + e * self.enemy_row + n * actions,
            "episode_limit": self.episode_limit,
            "agent_block": self.ally_row,
        }


def make_info(env: str, map: str, sizes: Mapping[str, int]) -> EnvInfo:
    """Make the sizes and bounds of a map.

    Args:
        env: Name of the environment: "smac" or "smacv2".
        map: Name of the map.
        sizes: Result of `SmacMap.sizes`, or the sizes that a worker sends.
    """
    n_actions = sizes["n_actions"]
    return EnvInfo(
        env=env,
        map=map,
        n_agents=sizes["n_agents"],
        n_actions=n_actions,
        obs_dim=sizes["obs_shape"],
        state_dim=sizes["state_shape"],
        episode_limit=sizes["episode_limit"],
        reward_range=REWARD_RANGE,
        agent_block=sizes["agent_block"],
        action_names=(*MOVES, *(f"attack {k}" for k in range(n_actions - len(MOVES)))),
        repeats_starts=False,
    )


def _make_map(n_agents: int, n_enemies: int, limit: int, races: str = "TT", type_bits: int = 0) -> SmacMap:
    """Make a map; `races` are the first letters of the agents' and the enemies' race."""
    return SmacMap(n_agents, n_enemies, limit, _RACES[races[0]], _RACES[races[1]], type_bits)


SMAC_MAPS: dict[str, SmacMap] = {
    "3m": _make_map(3, 3, 60),
    "8m": _make_map(8, 8, 120),
    "25m": _make_map(25, 25, 150),
    "5m_vs_6m": _make_map(5, 6, 70),
    "8m_vs_9m": _make_map(8, 9, 120),
    "10m_vs_11m": _make_map(10, 11, 150),
    "27m_vs_30m": _make_map(27, 30, 180),
    "MMM": _make_map(10, 10, 150, "TT", 3),
    "MMM2": _make_map(10, 12, 180, "TT", 3),
    "2s3z": _make_map(5, 5, 120, "PP", 2),
    "3s5z": _make_map(8, 8, 150, "PP", 2),
    "3s5z_vs_3s6z": _make_map(8, 9, 170, "PP", 2),
    "3s_vs_3z": _make_map(3, 3, 150, "PP"),
    "3s_vs_4z": _make_map(3, 4, 200, "PP"),
    "3s_vs_5z": _make_map(3, 5, 250, "PP"),
    "1c3s5z": _make_map(9, 9, 180, "PP", 3),
    "2m_vs_1z": _make_map(2, 1, 150, "TP"),
    "corridor": _make_map(6, 24, 400, "PZ"),
    "6h_vs_8z": _make_map(6, 8, 150, "ZP"),
    "2s_vs_1sc": _make_map(2, 1, 300, "PZ"),
    "so_many_baneling": _make_map(7, 32, 100, "PZ"),
    "bane_vs_bane": _make_map(24, 24, 200, "ZZ", 2),
    "2c_vs_64zg": _make_map(2, 64, 400, "PZ"),
}
"""The maps of SMAC, in the order of its registry."""

ARENA = "32x32_flat"
"""The map file on which SMACv2 places random teams."""
ARENAS = frozenset(
    {ARENA, "32x32_flat_test", "32x32_small", "10gen_empty", *(f"10gen_{race}" for race in _RACES.values())}
)
"""Map files that are not SMAC maps: arenas for teams that SMACv2 creates."""


@dataclass(frozen=True)
class Team:
    """How SMACv2 samples a team of one race."""

    types: tuple[str, ...]
    weights: tuple[float, ...]
    """Probability of each type."""
    not_alone: tuple[str, ...] = ()
    """Types that must not form a whole team."""


TEAMS: dict[Race, Team] = {
    "terran": Team(("marine", "marauder", "medivac"), (0.45, 0.45, 0.1), ("medivac",)),
    "protoss": Team(("stalker", "zealot", "colossus"), (0.45, 0.45, 0.1)),
    "zerg": Team(("zergling", "baneling", "hydralisk"), (0.45, 0.1, 0.45), ("baneling",)),
}


SMACV2_MAPS: dict[str, SmacMap] = {
    f"{race}_{n_agents}_vs_{n_enemies}": SmacMap(
        n_agents, n_enemies, 200, race, race, type_bits=3, observes_own_position=True
    )
    for n_agents, n_enemies in ((5, 5), (10, 10), (20, 20), (10, 11), (20, 23))
    for race in TEAMS
}
"""The fifteen scenarios of SMACv2's table, with the same names."""


def smac_arguments(map: str) -> dict[str, Any]:
    """Make the constructor arguments of SMAC's environment.

    These are its defaults. `continuing_episode` only adds the time limit to the info of a step.
    """
    return {"map_name": map, "continuing_episode": True}


def smacv2_arguments(map: str) -> dict[str, Any]:
    """Make the constructor arguments of SMACv2's environment: the settings of its authors' experiments."""
    scenario = SMACV2_MAPS[map]
    team = TEAMS[scenario.race]
    return {
        "map_name": f"10gen_{scenario.race}",
        "continuing_episode": True,
        "conic_fov": False,
        "obs_own_pos": True,
        "use_unit_ranges": True,
        "min_attack_range": 2,
        "capability_config": {
            "n_units": scenario.n_agents,
            "n_enemies": scenario.n_enemies,
            "team_gen": {
                "dist_type": "weighted_teams",
                "unit_types": list(team.types),
                "weights": list(team.weights),
                "exception_unit_types": list(team.not_alone),
                "observe": True,
            },
            "start_positions": {"dist_type": "surrounded_and_reflect", "p": 0.5, "map_x": 32, "map_y": 32},
        },
    }


def state_names(smac_map: SmacMap) -> tuple[str, ...]:
    """List the names of the state's entries, in order."""
    n_agents, n_enemies = smac_map.n_agents, smac_map.n_enemies
    types = tuple(f"type {k}" for k in range(smac_map.type_bits))
    ally = ("health", "energy or cooldown", "x", "y", *(("shield",) if smac_map.race == "protoss" else ()), *types)
    enemy = ("health", "x", "y", *(("shield",) if smac_map.enemy_race == "protoss" else ()), *types)
    actions = (*MOVES, *(f"attack {k}" for k in range(n_enemies)))
    return (
        *(f"agent {i} {name}" for i in range(n_agents) for name in ally),
        *(f"enemy {k} {name}" for k in range(n_enemies) for name in enemy),
        *(f"agent {i} did {name}" for i in range(n_agents) for name in actions),
    )
