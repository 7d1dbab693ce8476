"""The eleven maps: teams, start points, walkable ground, step limits and sizes; and the conversion of states to scenes.

This module contains no simulation and does not import numba. So pages and tables can read sizes and draw replays
without loading it.

The ground has 32 by 32 cells, indexed [x, y], with the origin at the lower left. The grids follow a rule that
reproduces the game's pathing bitmap: a cell is walkable if its four corners are on the high plateau and it is at least
two cells away from the border.
"""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from emtc_core.arrays import check_shape
from emtc_core.config.train import SkirmishConfig
from emtc_core.envs.base import EnvInfo
from emtc_core.envs.scene import Scene, keep_last_position
from emtc_core.envs.skirmish.units import (
    ALLY_MEDIVAC,
    COLOSSUS,
    ENEMY_MEDIVAC,
    HYDRALISK,
    MARAUDER,
    MARINE,
    STALKER,
    ZEALOT,
    ZERGLING,
    UnitName,
    UnitType,
)
from emtc_core.errors import EnvUnavailableError

SIZE = 32
CLEARANCE = 0.375
"""Minimum distance between a unit's center and blocked cells [cells]: the radius of most units."""
TerrainName = Literal["plain", "open", "arena", "corridor"]

# Rows of a terrain: y -> first and last walkable x.
_ARENA_ROWS = {
    7: (10, 19), 8: (9, 20), 9: (8, 21), **dict.fromkeys(range(10, 18), (7, 22)),
    18: (8, 21), 19: (9, 20), 20: (10, 19),
}  # fmt: skip
_CORRIDOR_ROWS = {
    2: (2, 13), **dict.fromkeys(range(3, 11), (2, 12)), 11: (2, 13), 12: (2, 14),
    13: (11, 25), 14: (12, 26), 15: (13, 27), 16: (13, 28), 17: (12, 29),
    **dict.fromkeys(range(18, 22), (11, 29)), 22: (12, 29), **{y: (y - 10, 29) for y in range(23, 30)},
}  # fmt: skip
_ROWS: dict[TerrainName, dict[int, tuple[int, int]]] = {
    "plain": dict.fromkeys(range(7, 25), (2, 29)),
    "open": dict.fromkeys(range(2, 30), (2, 29)),
    "arena": _ARENA_ROWS,
    "corridor": _CORRIDOR_ROWS,
}

Choke = tuple[float, float, float]
"""The passage between two rooms: y, first x, end x."""
CORRIDOR_CHOKE: Choke = (13.0, 11.0, 15.0)
"""The rooms of corridor touch only along y = 13 for x in [11, 15)."""
NO_CHOKE: Choke = (-1.0, 0.0, 0.0)

Group = tuple[tuple[UnitType, int], ...]
"""A team: unit types and their counts."""
Point = tuple[float, float]
MOVES = ("no-op", "stop", "north", "south", "east", "west")
N_MOVES = len(MOVES)
WEST_POINT, EAST_POINT = (9.0, 16.0), (23.0, 16.0)
_SPAWN_ORDER: tuple[UnitName, ...] = (
    "colossus", "stalker", "zealot", "marine", "marauder", "medivac", "hydralisk", "zergling",
)  # fmt: skip
"""Order in which a map's script creates the unit types."""
_AGENT_ORDER: tuple[UnitName, ...] = (
    "colossus", "stalker", "zealot", "marauder", "marine", "medivac", "hydralisk", "zergling",
)  # fmt: skip
"""Order of the unit types among the agents."""
_ENEMY_BITS: dict[tuple[str, ...], tuple[UnitName, ...]] = {("stalker", "zealot"): ("zealot", "stalker")}
"""Allies' type order in the one-hot code -> enemies' type order, if SMAC uses different ones."""

NOTE = "A simulator with StarCraft II's unit statistics, not StarCraft II."


def make_walkable(name: TerrainName) -> NDArray[np.bool_]:
    """Make the grid of one terrain.

    Source: the rows in `_ROWS`.

    Returns:
        [X, Y] boolean, True where units can walk. One cell is one map unit.
    """
    grid = np.zeros((SIZE, SIZE), dtype=np.bool_)
    for y, (first, last) in _ROWS[name].items():
        grid[first : last + 1, y] = True
    return grid


def get_choke(name: TerrainName) -> Choke:
    """Get the passage between the rooms of a terrain; NO_CHOKE if it has only one room."""
    return CORRIDOR_CHOKE if name == "corridor" else NO_CHOKE


def make_ground(walkable: NDArray[np.bool_]) -> NDArray[np.int8]:
    """Classify the cells of a map for movement.

    Source: implementation detail.

    Args:
        walkable: [X, Y] boolean, cells where units can walk.

    Returns:
        [X, Y], dimensionless: 0 blocked, 1 next to a blocked cell, 2 with walkable cells all around.
    """
    padded = np.pad(walkable, 1)
    free = np.ones_like(walkable)
    for dx in range(3):
        for dy in range(3):
            free &= padded[dx : dx + SIZE, dy : dy + SIZE]
    return walkable.astype(np.int8) + free.astype(np.int8)


def is_on_ground(ground: NDArray[np.int8], positions: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Check whether units may be at positions. The kernel `movement.is_point_on_ground` does this for one.

    Source: implementation detail.

    Args:
        ground: [X, Y], from `make_ground`, dimensionless.
        positions: [..., 2], positions of unit centers in cells [map units].

    Returns:
        [...] boolean.
    """
    allowed = np.ones(positions.shape[:-1], dtype=np.bool_)
    for offset in ((0.0, 0.0), (CLEARANCE, 0.0), (-CLEARANCE, 0.0), (0.0, CLEARANCE), (0.0, -CLEARANCE)):
        cells = (positions + offset).astype(np.int64)
        allowed &= ground[cells[..., 0], cells[..., 1]] > 0
    return allowed


@dataclass(frozen=True)
class MapSpec:
    """One map as SMAC registers it."""

    name: str
    ally_groups: Group
    enemy_groups: Group
    episode_limit: int
    terrain: TerrainName = "plain"
    ally_point: Point = WEST_POINT
    """Point around which the allies start."""
    enemy_point: Point = EAST_POINT
    """Point around which the enemies start."""
    attack_point: Point = WEST_POINT
    """Target point of the enemies' attack-move."""
    type_bits: tuple[UnitName, ...] = field(default=())
    """Unit types in the order of the allies' one-hot code; empty if all units have one type."""

    @property
    def allies(self) -> tuple[UnitType, ...]:
        """Types of the agents, in agent order."""
        return _list_units(self.ally_groups, _AGENT_ORDER)

    def enemies(self, order: Literal["sorted", "official"]) -> tuple[UnitType, ...]:
        """List the types of the enemies in slot order: sorted by `stock_id`, or as the map's script creates them."""
        units = _list_units(self.enemy_groups, _SPAWN_ORDER)
        return tuple(sorted(units, key=lambda unit: unit.stock_id)) if order == "sorted" else units

    @property
    def enemy_type_bits(self) -> tuple[UnitName, ...]:
        """Unit types in the order of the enemies' one-hot code; SMAC swaps stalker and zealot in it."""
        return _ENEMY_BITS.get(self.type_bits, self.type_bits)

    @property
    def ally_shield(self) -> int:
        """1 if allies have shields; then each ally's row has an entry for it."""
        return int(self.allies[0].shield > 0)

    @property
    def enemy_shield(self) -> int:
        """1 if enemies have shields; then each enemy's row has an entry for it."""
        return int(self.enemies("official")[0].shield > 0)

    @property
    def max_reward(self) -> float:
        """Largest possible return (undiscounted), before scaling."""
        enemies = self.enemies("official")
        return 10.0 * len(enemies) + 200.0 + sum(unit.health + unit.shield for unit in enemies)


def spawn_order(units: tuple[UnitType, ...]) -> list[int]:
    """List the indices of units in the order in which the map's script creates them."""
    return sorted(range(len(units)), key=lambda index: _SPAWN_ORDER.index(units[index].name))


_TWO_TYPES: tuple[UnitName, ...] = ("stalker", "zealot")
_SPECS = (
    MapSpec("3m", ((MARINE, 3),), ((MARINE, 3),), 60),
    MapSpec("8m", ((MARINE, 8),), ((MARINE, 8),), 120),
    MapSpec("2s3z", ((STALKER, 2), (ZEALOT, 3)), ((STALKER, 2), (ZEALOT, 3)), 120, type_bits=_TWO_TYPES),
    MapSpec(
        "1c3s5z",
        ((COLOSSUS, 1), (STALKER, 3), (ZEALOT, 5)),
        ((COLOSSUS, 1), (STALKER, 3), (ZEALOT, 5)),
        180,
        type_bits=("colossus", "stalker", "zealot"),
    ),
    MapSpec("3s5z", ((STALKER, 3), (ZEALOT, 5)), ((STALKER, 3), (ZEALOT, 5)), 150, type_bits=_TWO_TYPES),
    MapSpec("3s_vs_5z", ((STALKER, 3),), ((ZEALOT, 5),), 250, terrain="open"),
    MapSpec("5m_vs_6m", ((MARINE, 5),), ((MARINE, 6),), 70),
    MapSpec(
        "MMM2",
        ((MARINE, 7), (MARAUDER, 2), (ALLY_MEDIVAC, 1)),
        ((MARINE, 8), (MARAUDER, 3), (ENEMY_MEDIVAC, 1)),
        180,
        type_bits=("marauder", "marine", "medivac"),
    ),
    MapSpec(
        "6h_vs_8z",
        ((HYDRALISK, 6),),
        ((ZEALOT, 8),),
        150,
        terrain="arena",
        ally_point=(14.60, 9.49),
        enemy_point=(14.41, 16.76),
        attack_point=(14.60, 9.49),
    ),
    MapSpec("3s5z_vs_3s6z", ((STALKER, 3), (ZEALOT, 5)), ((STALKER, 3), (ZEALOT, 6)), 170, type_bits=_TWO_TYPES),
    MapSpec(
        "corridor",
        ((ZEALOT, 6),),
        ((ZERGLING, 24),),
        400,
        terrain="corridor",
        ally_point=(19.04, 19.12),
        enemy_point=(27.91, 28.24),
        attack_point=(4.47, 4.33),
    ),
)
MAPS: dict[str, MapSpec] = {spec.name: spec for spec in _SPECS}


def make_info(spec: MapSpec, config: SkirmishConfig) -> EnvInfo:
    """Compute the sizes and bounds of a map. The layouts are documented in `observe.py`."""
    n, e, bits = len(spec.allies), len(spec.enemies("official")), len(spec.type_bits)
    ally_row, enemy_row = 4 + spec.ally_shield + bits, 3 + spec.enemy_shield + bits
    n_actions = N_MOVES + e
    sparse_reward = 20.0 / spec.max_reward
    return EnvInfo(
        env="skirmish",
        map=spec.name,
        n_agents=n,
        n_actions=n_actions,
        obs_dim=4 + e * (enemy_row + 2) + (n - 1) * (ally_row + 1) + (ally_row - 3),
        state_dim=n * ally_row + e * enemy_row + n * n_actions,
        episode_limit=spec.episode_limit,
        reward_range=(-sparse_reward, sparse_reward) if config.reward_sparse else (0.0, 20.0),
        agent_block=ally_row,
        action_names=(*MOVES, *(f"attack {k}" for k in range(e))),
        enemy_names=tuple(f"{unit.name} {k}" for k, unit in enumerate(spec.enemies(config.enemy_order))),
    )


def get_map(name: str) -> MapSpec:
    """Get a map by its name.

    Raises:
        EnvUnavailableError: If the map does not exist. The message lists the maps.
    """
    if name not in MAPS:
        raise EnvUnavailableError(f'skirmish has no map "{name}". Maps: {", ".join(MAPS)}.')
    return MAPS[name]


def make_scene(spec: MapSpec, states: NDArray[np.float32]) -> Scene:
    """Make the frames of one episode from its stored states.

    Args:
        spec: The map.
        states: [T, S] [state features]. Source: `observe.py`, which documents the layout.

    Raises:
        ShapeError: If the states are of another map.
    """
    info = make_info(spec, SkirmishConfig())
    check_shape("states", states, (None, info.state_dim))
    n, e, bits = info.n_agents, info.n_actions - N_MOVES, len(spec.type_bits)
    rows = np.asarray(states, dtype=np.float32)
    enemies_at = n * info.agent_block  # index of the first enemy's entry
    enemy_row = 3 + spec.enemy_shield + bits
    actions_at = enemies_at + e * enemy_row
    ally_TNR = rows[:, :enemies_at].reshape(len(rows), n, info.agent_block)
    enemy_TER = rows[:, enemies_at:actions_at].reshape(len(rows), e, enemy_row)
    enemy_TER = np.insert(enemy_TER, 1, 0.0, axis=2)  # enemies have no cooldown; now both layouts are equal
    health = np.concatenate([ally_TNR[..., 0], enemy_TER[..., 0]], axis=1)
    alive = health > 0.0
    position = np.concatenate([ally_TNR[..., 2:4], enemy_TER[..., 2:4]], axis=1) * SIZE + SIZE / 2
    shield = np.zeros_like(health)
    shield[:, :n] = ally_TNR[..., 4] if spec.ally_shield else 0.0
    shield[:, n:] = enemy_TER[..., 4] if spec.enemy_shield else 0.0
    kinds = (
        *_decode_kinds(ally_TNR, spec.type_bits, spec.allies[0].name),
        *_decode_kinds(enemy_TER, spec.enemy_type_bits, spec.enemies("sorted")[0].name),
    )
    units = {unit.name: unit for unit in (*spec.allies, *spec.enemies("sorted"))}
    return Scene(
        position=keep_last_position(position, alive),
        health=health,
        shield=shield,
        alive=alive,
        team=np.repeat(np.array([0, 1], dtype=np.int8), [n, e]),
        radius=np.array([units[kind].radius for kind in kinds], dtype=np.float32),
        reach=np.array([units[kind].radius + units[kind].reach for kind in kinds], dtype=np.float32),
        kind=kinds,
        bounds=(0.0, 0.0, float(SIZE), float(SIZE)),
        walkable=make_walkable(spec.terrain),
        title=f"skirmish {spec.name}",
        note=NOTE,
        target=_decode_targets(rows[:, actions_at:].reshape(len(rows), n, -1), kinds, n, e),
    )


def _list_units(groups: Group, order: tuple[UnitName, ...]) -> tuple[UnitType, ...]:
    """List the types of a team's units, sorted by the order of their names."""
    ranked = sorted(groups, key=lambda group: order.index(group[0].name))
    return tuple(unit for unit, count in ranked for _ in range(count))


def _decode_kinds(rows_TUR: NDArray[np.float32], type_bits: tuple[str, ...], only_kind: str) -> tuple[str, ...]:
    """Decode the units' kinds [U] from their one-hot codes; `only_kind` is used if there are none."""
    if not type_bits:
        return (only_kind,) * rows_TUR.shape[1]
    return tuple(type_bits[bit] for bit in rows_TUR[..., -len(type_bits) :].max(axis=0).argmax(axis=-1))


def _decode_targets(action_TNA: NDArray[np.float32], kinds: tuple[str, ...], n: int, e: int) -> NDArray[np.int16]:
    """Decode the target of each unit after each frame [T, U] from the last actions in the next state; -1: none."""
    target = np.full((len(action_TNA), n + e), -1, dtype=np.int16)
    slot_TN = action_TNA[1:].argmax(axis=-1) - N_MOVES
    heals_N = np.array([kind == "medivac" for kind in kinds[:n]])
    target[:-1, :n] = np.where(slot_TN < 0, -1, np.where(heals_N, slot_TN, slot_TN + n))
    return target
