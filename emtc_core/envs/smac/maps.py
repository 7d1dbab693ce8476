"""SMAC's and SMACv2's maps: sizes, and what the packages are asked for. Facts of both packages' registries.

What lives here: what is known of a map without the game. What does not: processes, paths.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from emtc_core.envs.base import EnvInfo
from emtc_core.envs.skirmish.maps import MOVES

Race = Literal["terran", "protoss", "zerg"]
REWARD_RANGE = (0.0, 20.0)
_RACES: dict[str, Race] = {"T": "terran", "P": "protoss", "Z": "zerg"}


@dataclass(frozen=True)
class SmacMap:
    """One map; `type_bits` is the width of the one-hot of unit types."""

    n_agents: int
    n_enemies: int
    episode_limit: int
    race: Race
    enemy_race: Race
    type_bits: int
    sees_own_place: bool = False

    @property
    def ally_row(self) -> int:
        """Width of one agent's own block of the state."""
        return 4 + (self.race == "protoss") + self.type_bits

    @property
    def enemy_row(self) -> int:
        """Width of one enemy's block of the state."""
        return 3 + (self.enemy_race == "protoss") + self.type_bits

    def sizes(self) -> dict[str, int]:
        """Compute the sizes that the package's `get_env_info` gives."""
        n, e, actions = self.n_agents, self.n_enemies, len(MOVES) + self.n_enemies
        own = self.ally_row - 3 + 2 * self.sees_own_place
        return {
            "n_agents": n,
            "n_actions": actions,
            "obs_shape": 4 + e * (self.enemy_row + 2) + (n - 1) * (self.ally_row + 1) + own,
            "state_shape": n * self.ally_row + e * self.enemy_row + n * actions,
            "episode_limit": self.episode_limit,
            "agent_block": self.ally_row,
        }


def describe(env: str, map: str, sizes: Mapping[str, int]) -> EnvInfo:
    """Describe a map by its sizes, computed or measured."""
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


def _smac(n_agents: int, n_enemies: int, limit: int, races: str = "TT", type_bits: int = 0) -> SmacMap:
    return SmacMap(n_agents, n_enemies, limit, _RACES[races[0]], _RACES[races[1]], type_bits)


SMAC_MAPS: dict[str, SmacMap] = {
    "3m": _smac(3, 3, 60),
    "8m": _smac(8, 8, 120),
    "25m": _smac(25, 25, 150),
    "5m_vs_6m": _smac(5, 6, 70),
    "8m_vs_9m": _smac(8, 9, 120),
    "10m_vs_11m": _smac(10, 11, 150),
    "27m_vs_30m": _smac(27, 30, 180),
    "MMM": _smac(10, 10, 150, "TT", 3),
    "MMM2": _smac(10, 12, 180, "TT", 3),
    "2s3z": _smac(5, 5, 120, "PP", 2),
    "3s5z": _smac(8, 8, 150, "PP", 2),
    "3s5z_vs_3s6z": _smac(8, 9, 170, "PP", 2),
    "3s_vs_3z": _smac(3, 3, 150, "PP"),
    "3s_vs_4z": _smac(3, 4, 200, "PP"),
    "3s_vs_5z": _smac(3, 5, 250, "PP"),
    "1c3s5z": _smac(9, 9, 180, "PP", 3),
    "2m_vs_1z": _smac(2, 1, 150, "TP"),
    "corridor": _smac(6, 24, 400, "PZ"),
    "6h_vs_8z": _smac(6, 8, 150, "ZP"),
    "2s_vs_1sc": _smac(2, 1, 300, "PZ"),
    "so_many_baneling": _smac(7, 32, 100, "PZ"),
    "bane_vs_bane": _smac(24, 24, 200, "ZZ", 2),
    "2c_vs_64zg": _smac(2, 64, 400, "PZ"),
}
"""Of SMAC, in the order of its registry."""

ARENA = "32x32_flat"
"""The map file on which SMACv2 places its random teams."""
ARENAS = frozenset(
    {ARENA, "32x32_flat_test", "32x32_small", "10gen_empty", *(f"10gen_{race}" for race in _RACES.values())}
)
"""Map files that hold no battle of their own."""


@dataclass(frozen=True)
class Team:
    """Whom SMACv2 draws for a race: types, their weights, and those that may not be a whole team."""

    types: tuple[str, ...]
    weights: tuple[float, ...]
    not_alone: tuple[str, ...] = ()


TEAMS: dict[Race, Team] = {
    "terran": Team(("marine", "marauder", "medivac"), (0.45, 0.45, 0.1), ("medivac",)),
    "protoss": Team(("stalker", "zealot", "colossus"), (0.45, 0.45, 0.1)),
    "zerg": Team(("zergling", "baneling", "hydralisk"), (0.45, 0.1, 0.45), ("baneling",)),
}


def _smacv2() -> Iterator[tuple[str, SmacMap]]:
    for n_agents, n_enemies in ((5, 5), (10, 10), (20, 20), (10, 11), (20, 23)):
        for race in TEAMS:
            known = SmacMap(n_agents, n_enemies, 200, race, race, type_bits=3)
            yield f"{race}_{n_agents}_vs_{n_enemies}", replace(known, sees_own_place=True)


SMACV2_MAPS: dict[str, SmacMap] = dict(_smacv2())
"""The fifteen scenarios of SMACv2's table, named as there."""


def smac_arguments(map: str) -> dict[str, Any]:
    """Write what SMAC's environment is made with: its defaults; the flag only marks the time limit in a step's info."""
    return {"map_name": map, "continuing_episode": True}


def smacv2_arguments(map: str) -> dict[str, Any]:
    """Write what SMACv2's environment is made with: the settings of its authors' experiments."""
    known = SMACV2_MAPS[map]
    team = TEAMS[known.race]
    return {
        "map_name": f"10gen_{known.race}",
        "continuing_episode": True,
        "conic_fov": False,
        "obs_own_pos": True,
        "use_unit_ranges": True,
        "min_attack_range": 2,
        "capability_config": {
            "n_units": known.n_agents,
            "n_enemies": known.n_enemies,
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


def state_names(known: SmacMap) -> tuple[str, ...]:
    """Names of the entries of the state, in order."""
    kinds = tuple(f"type {k}" for k in range(known.type_bits))
    ally = ("health", "energy or cooldown", "x", "y", *(("shield",) if known.race == "protoss" else ()), *kinds)
    enemy = ("health", "x", "y", *(("shield",) if known.enemy_race == "protoss" else ()), *kinds)
    actions = (*MOVES, *(f"attack {k}" for k in range(known.n_enemies)))
    return (
        *(f"agent {i} {name}" for i in range(known.n_agents) for name in ally),
        *(f"enemy {k} {name}" for k in range(known.n_enemies) for name in enemy),
        *(f"agent {i} did {name}" for i in range(known.n_agents) for name in actions),
    )
