"""The facts of SMAC's maps from which every size follows; shared by the simulator and the real game.

What lives here: army sizes, time limits and the arithmetic of the layouts. What does not: units and terrain.
Source: oxwhirl/smac, `maps/smac_maps.py` and `starcraft2.py`.
"""

from dataclasses import dataclass

from emtc_core.envs.base import EnvInfo

N_FIXED_ACTIONS = 6
"""no-op, stop and four moves stand before the attack actions."""


@dataclass(frozen=True)
class SmacMap:
    """Army sizes and feature bits of one map."""

    n_agents: int
    n_enemies: int
    episode_limit: int
    ally_shield: int
    enemy_shield: int
    type_bits: int

    @property
    def n_actions(self) -> int:
        """Six fixed actions and one attack per enemy."""
        return N_FIXED_ACTIONS + self.n_enemies

    @property
    def agent_block(self) -> int:
        """Width of one agent's own block at the start of the state."""
        return 4 + self.ally_shield + self.type_bits

    @property
    def state_dim(self) -> int:
        """Agent blocks, enemy blocks, last actions."""
        enemy_block = 3 + self.enemy_shield + self.type_bits
        return self.n_agents * (self.agent_block + self.n_actions) + self.n_enemies * enemy_block

    @property
    def obs_dim(self) -> int:
        """Move mask, enemy rows, ally rows, own features."""
        enemies = self.n_enemies * (5 + self.enemy_shield + self.type_bits)
        allies = (self.n_agents - 1) * (5 + self.ally_shield + self.type_bits)
        return 4 + enemies + allies + 1 + self.ally_shield + self.type_bits


SMAC_MAPS: dict[str, SmacMap] = {
    "3m": SmacMap(3, 3, 60, 0, 0, 0),
    "8m": SmacMap(8, 8, 120, 0, 0, 0),
    "2s3z": SmacMap(5, 5, 120, 1, 1, 2),
    "1c3s5z": SmacMap(9, 9, 180, 1, 1, 3),
    "3s5z": SmacMap(8, 8, 150, 1, 1, 2),
    "3s_vs_5z": SmacMap(3, 5, 250, 1, 1, 0),
    "5m_vs_6m": SmacMap(5, 6, 70, 0, 0, 0),
    "MMM2": SmacMap(10, 12, 180, 0, 0, 3),
    "6h_vs_8z": SmacMap(6, 8, 150, 0, 1, 0),
    "3s5z_vs_3s6z": SmacMap(8, 9, 170, 1, 1, 2),
    "corridor": SmacMap(6, 24, 400, 1, 0, 0),
}


def make_info(env: str, map: str, *, reward_range: tuple[float, float] = (0.0, 20.0)) -> EnvInfo:
    """Build the EnvInfo of a map in SMAC's default layout."""
    facts = SMAC_MAPS[map]
    attacks = tuple(f"attack {k}" for k in range(facts.n_enemies))
    return EnvInfo(
        env=env,
        map=map,
        n_agents=facts.n_agents,
        n_actions=facts.n_actions,
        obs_dim=facts.obs_dim,
        state_dim=facts.state_dim,
        episode_limit=facts.episode_limit,
        reward_range=reward_range,
        agent_block=facts.agent_block,
        action_names=("no-op", "stop", "north", "south", "east", "west", *attacks),
        enemy_names=tuple(f"enemy {k}" for k in range(facts.n_enemies)),
    )
