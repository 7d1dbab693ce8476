"""From stored states back to drawable units. Loads no compiler and needs no running battle."""

import numpy as np
from numpy.typing import NDArray

from emtc_core.arrays import check_shape
from emtc_core.config.train import SkirmishConfig
from emtc_core.envs.base import Scene
from emtc_core.envs.skirmish.maps import N_MOVES, SIZE, MapSpec, make_info, make_walkable

NOTE = "A simulator with StarCraft II's unit statistics, not StarCraft II."


def make_scene(spec: MapSpec, states: NDArray[np.float32]) -> Scene:
    """Decode the stored states [T, S] of one episode on a map."""
    info = make_info(spec, SkirmishConfig())
    check_shape("states", states, (None, info.state_dim))
    n, e, bits = info.n_agents, info.n_actions - N_MOVES, len(spec.type_bits)
    rows = np.asarray(states, dtype=np.float32)
    split = n * info.agent_block
    enemy_row = 3 + spec.enemy_shield + bits
    ally_TNR = rows[:, :split].reshape(len(rows), n, info.agent_block)
    enemy_TER = rows[:, split : split + e * enemy_row].reshape(len(rows), e, enemy_row)
    enemy_TER = np.insert(enemy_TER, 1, 0.0, axis=2)
    health = np.concatenate([ally_TNR[..., 0], enemy_TER[..., 0]], axis=1)
    alive = health > 0.0
    place = np.concatenate([ally_TNR[..., 2:4], enemy_TER[..., 2:4]], axis=1) * SIZE + SIZE / 2
    shield = np.zeros_like(health)
    shield[:, :n] = ally_TNR[..., 4] if spec.ally_shield else 0.0
    shield[:, n:] = enemy_TER[..., 4] if spec.enemy_shield else 0.0
    kinds = (
        *_kinds(ally_TNR, spec.type_bits, spec.allies[0].name),
        *_kinds(enemy_TER, spec.enemy_type_bits, spec.enemies("sorted")[0].name),
    )
    radii = {unit.name: unit.radius for unit in (*spec.allies, *spec.enemies("sorted"))}
    return Scene(
        position=_hold_last(place, alive),
        health=health,
        shield=shield,
        alive=alive,
        team=np.repeat(np.array([0, 1], dtype=np.int8), [n, e]),
        radius=np.array([radii[kind] for kind in kinds], dtype=np.float32),
        kind=kinds,
        bounds=(0.0, 0.0, float(SIZE), float(SIZE)),
        walkable=make_walkable(spec.terrain),
        title=f"skirmish {spec.name}",
        note=NOTE,
        target=_targets(rows[:, split + e * enemy_row :].reshape(len(rows), n, -1), kinds, n, e),
    )


def _kinds(rows_TUR: NDArray[np.float32], type_bits: tuple[str, ...], only: str) -> tuple[str, ...]:
    if not type_bits:
        return (only,) * rows_TUR.shape[1]
    return tuple(type_bits[bit] for bit in rows_TUR[..., -len(type_bits) :].max(axis=0).argmax(axis=-1))


def _hold_last(place_TU2: NDArray[np.float32], alive_TU: NDArray[np.bool_]) -> NDArray[np.float32]:
    """Let the dead lie where they were seen last."""
    frame = np.where(alive_TU, np.arange(len(alive_TU))[:, None], 0)
    last_TU = np.maximum.accumulate(frame, axis=0)
    return np.take_along_axis(place_TU2, last_TU[..., None], axis=0)


def _targets(action_TNA: NDArray[np.float32], kinds: tuple[str, ...], n: int, e: int) -> NDArray[np.int16]:
    """Unit aimed at after each frame: the last actions that stand in the following state."""
    target = np.full((len(action_TNA), n + e), -1, dtype=np.int16)
    slot_TN = action_TNA[1:].argmax(axis=-1) - N_MOVES
    heals_N = np.array([kind == "medivac" for kind in kinds[:n]])
    target[:-1, :n] = np.where(slot_TN < 0, -1, np.where(heals_N, slot_TN, slot_TN + n))
    return target
