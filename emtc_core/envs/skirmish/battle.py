"""B battles of one map as arrays: set up, give orders, advance.

What lives here: ownership of the arrays that the kernels change. What does not: SMAC's interface
(`env.py`). Scripted policies that order at any distance (the calibration) drive this class directly.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from emtc_core.config.env import SkirmishConfig
from emtc_core.envs.skirmish import columns
from emtc_core.envs.skirmish.chance import make_words, uniform_block
from emtc_core.envs.skirmish.maps import MapSpec
from emtc_core.envs.skirmish.scatter import Scatter
from emtc_core.envs.skirmish.simulate import advance
from emtc_core.envs.skirmish.spawn import make_places, order_within_types, shift_places
from emtc_core.envs.skirmish.terrain import get_choke, make_ground, make_walkable
from emtc_core.envs.skirmish.units import ENERGY_START

UNITS_PER_THREAD = 512
"""Units in a batch that are worth a thread of their own; the result does not depend on it."""


class Battle:
    """The arrays of B battles; see `columns.py` for what stands where."""

    def __init__(self, spec: MapSpec, *, n_envs: int, config: SkirmishConfig) -> None:
        allies, enemies = spec.allies, spec.enemies(config.enemy_order)
        self.n_allies = len(allies)
        self.units = (*allies, *enemies)
        bits = [_bit(unit.name, spec.type_bits) for unit in allies]
        bits += [_bit(unit.name, spec.enemy_type_bits) for unit in enemies]
        self.spec = columns.make_spec(self.units, bits)
        self.walkable = make_walkable(spec.terrain)
        self._ground = make_ground(self.walkable)
        self._choke = np.array(get_choke(spec.terrain))
        self._goals = np.tile(np.array(spec.attack_point), (n_envs, 1))
        ally_places = make_places(allies, spec.ally_point, self.walkable)
        self._places = np.concatenate([ally_places, make_places(enemies, spec.enemy_point, self.walkable)])
        self._jitter = config.spawn_jitter
        self._scatter = (
            None
            if config.random_start == "none"
            else Scatter(config.random_start, allies=allies, enemies=enemies, ground=self._ground)
        )
        self._sorts_enemies = config.enemy_order == "sorted"
        self.real = np.zeros((n_envs, len(self.units), columns.N_REAL))
        self.whole = np.zeros((n_envs, len(self.units), columns.N_WHOLE), dtype=np.int64)
        self.clock = np.zeros(n_envs, dtype=np.int64)
        self.running = np.zeros(n_envs, dtype=np.bool_)
        self._rng = make_words(0, n_envs)
        self._n_threads = min(os.cpu_count() or 1, n_envs * len(self.units) // UNITS_PER_THREAD)
        self._pool = ThreadPoolExecutor(self._n_threads) if self._n_threads > 1 else None

    def seed(self, seed: int) -> None:
        """Set the generator of copy b from (seed, b)."""
        self._rng = make_words(seed, len(self._rng))

    def restart(self) -> None:
        """Put every unit in place, whole and ready."""
        self.real[:] = 0.0
        self.whole[:] = -1
        self.clock[:] = 0
        self.running[:] = True
        self.real[..., [columns.X, columns.Y]] = self._draw_places()
        self.real[..., columns.FACE_Y] = -1.0
        self.real[..., columns.HEALTH] = self.spec[:, columns.S_HEALTH]
        self.real[..., columns.SHIELD] = self.spec[:, columns.S_SHIELD]
        self.real[..., columns.BEFORE] = self.spec[:, columns.S_HEALTH] + self.spec[:, columns.S_SHIELD]
        self.real[..., columns.HURT] = 1e6
        self.real[..., columns.ENERGY] = np.where(self.spec[:, columns.S_DELIVERY] == columns.MEND, ENERGY_START, 0.0)
        self.whole[..., columns.ALIVE] = 1
        self.whole[..., columns.ORDER] = columns.STAND
        self.whole[..., columns.WINDING] = 0
        self.whole[..., columns.SIDE] = 0
        self.whole[..., columns.MOBILITY] = columns.IDLE

    def advance(self, loops: int) -> None:
        """Advance every running battle by some game loops; big batches share the cores."""
        if self._pool is None:
            self._advance(loops, 0, len(self.clock))
            return
        bounds = np.linspace(0, len(self.clock), self._n_threads + 1).astype(int).tolist()
        for done in [self._pool.submit(self._advance, loops, *share) for share in pairwise(bounds)]:
            done.result()

    def close(self) -> None:
        """Let the threads go; idempotent."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def _advance(self, loops: int, begin: int, end: int) -> None:
        advance(
            self.real,
            self.whole,
            self._rng,
            self.clock,
            self.running,
            self.spec,
            self._ground,
            self._choke,
            self._goals,
            self.n_allies,
            loops,
            begin,
            end,
        )

    def _draw_places(self) -> NDArray[np.float64]:
        B, U, n = len(self._rng), len(self.units), self.n_allies
        if self._scatter is not None:
            places_BU2 = self._scatter.draw(self._rng)
            self._goals = self._scatter.find_goals(places_BU2)
        else:
            places_BU2 = np.tile(self._places, (B, 1, 1))
        if self._jitter > 0.0 and self._scatter is None:
            shift = uniform_block(self._rng, U * 2, -self._jitter, self._jitter).reshape(B, U, 2)
            places_BU2 = shift_places(places_BU2, shift, self._ground)
        places_BU2[:, :n] = order_within_types(self.units[:n], places_BU2[:, :n])
        if self._sorts_enemies:
            places_BU2[:, n:] = order_within_types(self.units[n:], places_BU2[:, n:])
        return places_BU2


def _bit(name: str, type_bits: tuple[str, ...]) -> int:
    return type_bits.index(name) if type_bits else -1
