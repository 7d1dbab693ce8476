"""B battles of one map as arrays: set up, give orders, advance.

What lives here: ownership of the arrays that the kernels change, and `advance`, the loop of game loops and the one
entry through which battles go on. Stage before: `orders.py` gave the agents' orders. Stage after:
`observe.py`. What does not: SMAC's interface (`env.py`). Scripted policies that order at any distance (the
calibration) drive this class directly.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from emtc_core.config.train import SkirmishConfig
from emtc_core.envs.skirmish import columns
from emtc_core.envs.skirmish import columns as c
from emtc_core.envs.skirmish.combat import act, land_pending, tick
from emtc_core.envs.skirmish.kernels import kernel, make_words, part, uniform_block
from emtc_core.envs.skirmish.maps import MapSpec, get_choke, make_ground, make_walkable
from emtc_core.envs.skirmish.movement import move_all
from emtc_core.envs.skirmish.orders import choose_target
from emtc_core.envs.skirmish.starts import Scatter, make_places, order_within_types, shift_places
from emtc_core.envs.skirmish.units import ENERGY_START

UNITS_PER_THREAD = 512
"""Units in a batch that are worth a thread of their own; the result does not depend on it."""

ARRIVED = 1.5
"""Distance from the point of the attack-move at which an enemy is content (inference)."""


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
        ally_places = make_places(allies, spec.ally_point, self.walkable)
        self._places = np.concatenate([ally_places, make_places(enemies, spec.enemy_point, self.walkable)])
        self._jitter = config.spawn_jitter
        self._sorts_enemies = config.enemy_order == "sorted"
        B, U = n_envs, len(self.units)
        self.world = columns.World(
            floats=np.zeros((B, U, columns.N_FLOATS)),
            ints=np.zeros((B, U, columns.N_INTS), np.int64),
            spec=self.spec,
            ground=make_ground(self.walkable),
            choke=np.array(get_choke(spec.terrain)),
            goals=np.tile(np.array(spec.attack_point), (B, 1)),
            rng=make_words(0, B),
            clock=np.zeros(B, np.int64),
            running=np.zeros(B, np.bool_),
            n_allies=self.n_allies,
        )
        self.floats, self.ints = self.world.floats, self.world.ints
        self._scatter = (
            None
            if config.random_start == "none"
            else Scatter(config.random_start, allies=allies, enemies=enemies, ground=self.world.ground)
        )
        self._n_threads = min(os.cpu_count() or 1, n_envs * len(self.units) // UNITS_PER_THREAD)
        self._pool = ThreadPoolExecutor(self._n_threads) if self._n_threads > 1 else None

    def seed(self, seed: int) -> None:
        """Set the generator of copy b from (seed, b)."""
        self.world.rng[:] = make_words(seed, len(self.world.rng))

    def restart(self) -> None:
        """Put every unit in place, whole and ready."""
        self.floats[:] = 0.0
        self.ints[:] = -1
        self.world.clock[:] = 0
        self.world.running[:] = True
        self.floats[..., [columns.X, columns.Y]] = self._draw_places()
        self.floats[..., columns.FACE_Y] = -1.0
        self.floats[..., columns.HEALTH] = self.spec[:, columns.S_HEALTH]
        self.floats[..., columns.SHIELD] = self.spec[:, columns.S_SHIELD]
        self.floats[..., columns.BEFORE] = self.spec[:, columns.S_HEALTH] + self.spec[:, columns.S_SHIELD]
        self.floats[..., columns.HURT] = 1e6
        self.floats[..., columns.ENERGY] = np.where(self.spec[:, columns.S_DELIVERY] == columns.MEND, ENERGY_START, 0.0)
        self.ints[..., columns.ALIVE] = 1
        self.ints[..., columns.ORDER] = columns.STAND
        self.ints[..., columns.WINDING] = 0
        self.ints[..., columns.SIDE] = 0
        self.ints[..., columns.MOBILITY] = columns.IDLE

    def advance(self, loops: int) -> None:
        """Advance every running battle by some game loops; big batches share the cores."""
        if self._pool is None:
            self._advance(loops, 0, len(self.world.clock))
            return
        bounds = np.linspace(0, len(self.world.clock), self._n_threads + 1).astype(int).tolist()
        for done in [self._pool.submit(self._advance, loops, *share) for share in pairwise(bounds)]:
            done.result()

    def close(self) -> None:
        """Let the threads go; idempotent."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def _advance(self, loops: int, begin: int, end: int) -> None:
        advance(self.world, loops, begin, end)

    def _draw_places(self) -> NDArray[np.float64]:
        B, U, n = len(self.world.rng), len(self.units), self.n_allies
        if self._scatter is not None:
            places_BU2 = self._scatter.draw(self.world.rng)
            self.world.goals[:] = self._scatter.find_goals(places_BU2)
        else:
            places_BU2 = np.tile(self._places, (B, 1, 1))
        if self._jitter > 0.0 and self._scatter is None:
            shift = uniform_block(self.world.rng, U * 2, -self._jitter, self._jitter).reshape(B, U, 2)
            places_BU2 = shift_places(places_BU2, shift, self.world.ground)
        places_BU2[:, :n] = order_within_types(self.units[:n], places_BU2[:, :n])
        if self._sorts_enemies:
            places_BU2[:, n:] = order_within_types(self.units[n:], places_BU2[:, n:])
        return places_BU2


def _bit(name: str, type_bits: tuple[str, ...]) -> int:
    return type_bits.index(name) if type_bits else -1


@part
def _command_enemy(w: c.World, b: int, i: int, clock: int) -> None:
    """Attack-move: a target if there is one, else on to the point; a medivac keeps to its friends."""
    target = choose_target(w, b, i, clock)
    mends = w.spec[i, c.S_DELIVERY] == c.MEND
    if target != w.ints[b, i, c.TARGET]:
        w.ints[b, i, c.TARGET], w.ints[b, i, c.WINDING] = target, 0
    if target >= 0:
        w.ints[b, i, c.ORDER] = c.HEAL if mends else c.ATTACK
        return
    goal_x, goal_y = w.goals[b, 0], w.goals[b, 1]
    if mends:
        goal_x, goal_y = _centre_of_friends(w, b, i)
    dx, dy = goal_x - w.floats[b, i, c.X], goal_y - w.floats[b, i, c.Y]
    w.ints[b, i, c.ORDER] = c.MOVE if dx * dx + dy * dy > ARRIVED * ARRIVED else c.STAND
    w.floats[b, i, c.ORDER_X], w.floats[b, i, c.ORDER_Y] = goal_x, goal_y


@part
def _centre_of_friends(w: c.World, b: int, i: int) -> tuple[float, float]:
    x, y, count = 0.0, 0.0, 0.0
    for j in range(w.n_allies, w.ints.shape[1]):
        if w.ints[b, j, c.ALIVE] == 1 and w.spec[j, c.S_DELIVERY] != c.MEND:
            x, y, count = x + w.floats[b, j, c.X], y + w.floats[b, j, c.Y], count + 1.0
    if count == 0.0:
        return w.floats[b, i, c.X], w.floats[b, i, c.Y]
    return x / count, y / count


@kernel
def advance(w: c.World, loops: int, begin: int, end: int) -> None:
    """Advance the running ones of battles begin..end-1 by some game loops under the present orders."""
    n_units = w.ints.shape[1]
    for b in range(begin, end):
        if not w.running[b]:
            continue
        for _ in range(loops):
            w.clock[b] += 1
            for i in range(w.n_allies, n_units):
                if w.ints[b, i, c.ALIVE] == 1:
                    _command_enemy(w, b, i, w.clock[b])
            # Units act one after the other; each begins in its turn, so that no side is always first.
            first = w.clock[b] % n_units
            for k in range(n_units):
                i = (first + k) % n_units
                if w.ints[b, i, c.ALIVE] == 1:
                    tick(w, b, i)
                    act(w, b, i)
            move_all(w, b)
            for i in range(n_units):
                land_pending(w, b, i)
