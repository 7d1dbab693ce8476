"""The environment `skirmish`: SMAC's interface for simulated battles.

Description:
    A team of units, one agent each, against the built-in enemy, on eleven of SMAC's maps. This is EMTC Lab's
    simulator, not StarCraft II.
Actions:
    0 no-op (only dead units), 1 stop, 2-5 north, south, east, west, 6+k attack enemy k (a medivac: heal ally k).
Observations, State:
    As in SMAC; see `observe.py`.
Rewards:
    As in SMAC, shaped or sparse; see `observe.py`.
Episode end:
    `terminated` when one side has no unit left; `truncated` at the map's limit.
Randomness:
    Only the random delay after each shot, as in SMAC. `env.skirmish` can also shift or randomize the starts.
Differences from the original:
    Collisions, steering, the enemy's choice of targets and the start offsets are inferred, and calibrated with
    `tests/reference/calibration.py`. A time limit is a truncation, not a termination. Flying units and colossi stay on
    walkable ground.

`Battle` contains the arrays of B battles. A step gives the agents' orders (`orders.py`), runs the kernel `advance` for
some game loops, and computes the results (`observe.py`). Scripted policies that give orders at any distance, such as
those of the calibration, use `Battle` directly.
"""

import os
import secrets
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from emtc_core.arrays import check_shape
from emtc_core.config.train import SkirmishConfig
from emtc_core.envs.base import Observation, check_was_reset
from emtc_core.envs.scene import Scene
from emtc_core.envs.skirmish import columns as c
from emtc_core.envs.skirmish.combat import apply_pending_hit, follow_order, update_timers
from emtc_core.envs.skirmish.kernels import inlined, kernel, make_words, uniform_block
from emtc_core.envs.skirmish.maps import MapSpec, get_choke, get_map, make_ground, make_info, make_scene, make_walkable
from emtc_core.envs.skirmish.movement import move_all
from emtc_core.envs.skirmish.observe import observe, score
from emtc_core.envs.skirmish.orders import choose_target, give_orders
from emtc_core.envs.skirmish.starts import Scatter, make_positions, order_within_types, shift_positions
from emtc_core.envs.skirmish.units import ENERGY_START

STEP_LOOPS = 8
"""Game loops per environment step."""
UNITS_PER_THREAD = 512
"""A batch uses one thread per UNITS_PER_THREAD units. The results do not depend on it."""
ARRIVED = 1.5
"""Distance from the target point of the attack-move at which an enemy stops [cells] (inferred)."""


class SkirmishEnv:
    """B battles of one map with the vectorized environment interface."""

    def __init__(self, spec: MapSpec, *, n_envs: int, config: SkirmishConfig) -> None:
        self._spec = spec
        self.info, self.n_envs = make_info(spec, config), n_envs
        self._battle = Battle(spec, n_envs=n_envs, config=config)
        self._sparse = config.reward_sparse
        self._scale = 20.0 / spec.max_reward
        self._steps = np.zeros(n_envs, dtype=np.int64)
        self._ends = np.zeros((n_envs, 3), dtype=np.bool_)
        self._avail = np.zeros((n_envs, self.info.n_agents, self.info.n_actions), dtype=np.bool_)
        self._was_reset = False

    def reset(self, seed: int | None = None) -> Observation:
        """Start a new battle in every copy. The random numbers of copy b depend only on (seed, b)."""
        if seed is not None or not self._was_reset:
            self._battle.seed(secrets.randbits(31) if seed is None else seed)
            self._was_reset = True
        self._battle.restart()
        self._steps[:] = 0
        self._ends[:] = False
        return self._observe(np.zeros(self.n_envs, dtype=np.float32))

    def step(self, actions: NDArray[np.integer]) -> Observation:
        """Advance every battle that has not ended by one step.

        Source: the step of SMAC's `StarCraft2Env`.

        Args:
            actions: [B, N], action index of each agent.

        Raises:
            ResetNeededError: If `reset` was never called.
            ValueError: If `avail` forbids the action of an agent in a running copy. Then no battle has advanced.
        """
        check_was_reset(self._was_reset)
        check_shape("actions", actions, (self.n_envs, self.info.n_agents))
        battle = self._battle
        actions = np.ascontiguousarray(actions, dtype=np.int64)
        illegal = give_orders(battle.world, actions, self._avail)
        if illegal >= 0:
            b, i = divmod(illegal, self.info.n_agents)
            allowed = np.flatnonzero(self._avail[b, i]).tolist()
            raise ValueError(f"action of agent {i} in copy {b} must be one of {allowed}, got {int(actions[b, i])}.")
        battle.advance(STEP_LOOPS)
        reward = np.empty(self.n_envs, dtype=np.float32)
        limit = self._spec.episode_limit
        score(battle.world, self._steps, reward, self._ends, limit, self._sparse, self._scale)
        return self._observe(reward)

    def scene(self, states: NDArray[np.float32]) -> Scene:
        """Make the frames of one episode from its stored states.

        Args:
            states: [T, S] [state features]. Source: `observe.py`, which documents the layout.
        """
        return make_scene(self._spec, states)

    def close(self) -> None:
        """Release the threads of a large batch. A second call has no effect."""
        self._battle.close()

    def _observe(self, reward: NDArray[np.float32]) -> Observation:
        info, battle = self.info, self._battle
        obs = np.zeros((self.n_envs, info.n_agents, info.obs_dim), dtype=np.float32)
        state = np.zeros((self.n_envs, 1, info.state_dim), dtype=np.float32)
        avail = np.zeros_like(self._avail)
        observe(battle.world, battle.walkable, obs, state, avail, len(self._spec.type_bits))
        self._avail = avail
        ends = self._ends.copy()
        return Observation(obs, state[:, 0], avail.copy(), reward, ends[:, 0], ends[:, 1], ends[:, 2])


def make_skirmish(map: str, *, n_envs: int, config: SkirmishConfig) -> SkirmishEnv:
    """Make an environment with `n_envs` copies of a map.

    Args:
        map: Name of the map.
        n_envs: Number of battles, B.
        config: Settings of the simulator.

    Raises:
        EnvUnavailableError: If the map does not exist.
    """
    return SkirmishEnv(get_map(map), n_envs=n_envs, config=config)


def warm_up() -> None:
    """Compile every kernel, or load it from the cache, so that the first step of a run is fast."""
    env = make_skirmish("3m", n_envs=1, config=SkirmishConfig())
    env.reset(0)
    env.step(np.ones((1, 3), dtype=np.int64))


class Battle:
    """The arrays of B battles; see `columns.py` for their columns."""

    def __init__(self, spec: MapSpec, *, n_envs: int, config: SkirmishConfig) -> None:
        allies, enemies = spec.allies, spec.enemies(config.enemy_order)
        self.n_allies = len(allies)
        self.units = (*allies, *enemies)
        bits = [spec.type_bits.index(unit.name) if spec.type_bits else -1 for unit in allies]
        bits += [spec.enemy_type_bits.index(unit.name) if spec.enemy_type_bits else -1 for unit in enemies]
        self.spec = c.make_spec(self.units, bits)
        self.walkable = make_walkable(spec.terrain)
        ally_positions = make_positions(allies, spec.ally_point, self.walkable)
        self._start_positions = np.concatenate(
            [ally_positions, make_positions(enemies, spec.enemy_point, self.walkable)]
        )
        self._jitter = config.spawn_jitter
        self._sorts_enemies = config.enemy_order == "sorted"
        B, U = n_envs, len(self.units)
        self.world = c.World(
            floats=np.zeros((B, U, c.N_FLOATS)),
            ints=np.zeros((B, U, c.N_INTS), np.int64),
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
        """Initialize the generator of copy b from (seed, b)."""
        self.world.rng[:] = make_words(seed, len(self.world.rng))

    def restart(self) -> None:
        """Move every unit to its start position, with full health and shield, and clear all timers and orders."""
        self.floats[:] = 0.0
        self.ints[:] = -1
        self.world.clock[:] = 0
        self.world.running[:] = True
        self.floats[..., [c.X, c.Y]] = self._sample_start_positions()
        self.floats[..., c.FACE_Y] = -1.0
        self.floats[..., c.HEALTH] = self.spec[:, c.S_HEALTH]
        self.floats[..., c.SHIELD] = self.spec[:, c.S_SHIELD]
        self.floats[..., c.PREVIOUS_TOTAL] = self.spec[:, c.S_HEALTH] + self.spec[:, c.S_SHIELD]
        self.floats[..., c.SINCE_DAMAGE] = 1e6
        self.floats[..., c.ENERGY] = np.where(self.spec[:, c.S_DELIVERY] == c.HEALING, ENERGY_START, 0.0)
        self.ints[..., c.ALIVE] = 1
        self.ints[..., c.ORDER] = c.STAND
        self.ints[..., c.WINDING] = 0
        self.ints[..., c.SIDE] = 0
        self.ints[..., c.MOBILITY] = c.IDLE

    def advance(self, loops: int) -> None:
        """Advance every running battle by `loops` game loops. Large batches use several threads."""
        if self._pool is None:
            advance(self.world, loops, 0, len(self.world.clock))
            return
        bounds = np.linspace(0, len(self.world.clock), self._n_threads + 1).astype(int).tolist()
        futures = [self._pool.submit(advance, self.world, loops, *share) for share in pairwise(bounds)]
        for future in futures:
            future.result()

    def close(self) -> None:
        """End the threads. A second call has no effect."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def _sample_start_positions(self) -> NDArray[np.float64]:
        """Return the start positions [B, U, 2] and set the target points of the enemies."""
        B, U, n = len(self.world.rng), len(self.units), self.n_allies
        if self._scatter is not None:
            positions_BU2 = self._scatter.draw(self.world.rng)
            self.world.goals[:] = self._scatter.find_goals(positions_BU2)
        else:
            positions_BU2 = np.tile(self._start_positions, (B, 1, 1))
        if self._jitter > 0.0 and self._scatter is None:
            shift = uniform_block(self.world.rng, U * 2, -self._jitter, self._jitter).reshape(B, U, 2)
            positions_BU2 = shift_positions(positions_BU2, shift, self.world.ground)
        positions_BU2[:, :n] = order_within_types(self.units[:n], positions_BU2[:, :n])
        if self._sorts_enemies:
            positions_BU2[:, n:] = order_within_types(self.units[n:], positions_BU2[:, n:])
        return positions_BU2


@inlined
def _command_enemy(w: c.World, b: int, i: int, clock: int) -> None:
    """Give enemy i the order of an attack-move.

    It attacks or heals its target if it has one. If not, it moves to the target point, or, if it is a medivac, to the
    center of its friends.
    """
    target = choose_target(w, b, i, clock)
    heals = w.spec[i, c.S_DELIVERY] == c.HEALING
    if target != w.ints[b, i, c.TARGET]:
        w.ints[b, i, c.TARGET], w.ints[b, i, c.WINDING] = target, 0
    if target >= 0:
        w.ints[b, i, c.ORDER] = c.HEAL if heals else c.ATTACK
        return
    goal_x, goal_y = w.goals[b, 0], w.goals[b, 1]
    if heals:
        goal_x, goal_y = _find_center_of_friends(w, b, i)
    dx, dy = goal_x - w.floats[b, i, c.X], goal_y - w.floats[b, i, c.Y]
    w.ints[b, i, c.ORDER] = c.MOVE if dx * dx + dy * dy > ARRIVED * ARRIVED else c.STAND
    w.floats[b, i, c.ORDER_X], w.floats[b, i, c.ORDER_Y] = goal_x, goal_y


@inlined
def _find_center_of_friends(w: c.World, b: int, i: int) -> tuple[float, float]:
    """Return the center of the enemies that are not medivacs; the position of medivac i if there are none."""
    x, y, count = 0.0, 0.0, 0.0
    for j in range(w.n_allies, w.ints.shape[1]):
        if w.ints[b, j, c.ALIVE] == 1 and w.spec[j, c.S_DELIVERY] != c.HEALING:
            x, y, count = x + w.floats[b, j, c.X], y + w.floats[b, j, c.Y], count + 1.0
    if count == 0.0:
        return w.floats[b, i, c.X], w.floats[b, i, c.Y]
    return x / count, y / count


@kernel
def advance(w: c.World, loops: int, begin: int, end: int) -> None:
    """Advance battles.

    Args:
        w: The battles. Those that have ended are skipped.
        loops: Number of game loops.
        begin: First battle.
        end: Last battle + 1.
    """
    n_units = w.ints.shape[1]
    for b in range(begin, end):
        if not w.running[b]:
            continue
        for _ in range(loops):
            w.clock[b] += 1
            for i in range(w.n_allies, n_units):
                if w.ints[b, i, c.ALIVE] == 1:
                    _command_enemy(w, b, i, w.clock[b])
            # Units act one after the other. The first unit changes in each loop, so that no side is always first.
            first = w.clock[b] % n_units
            for k in range(n_units):
                i = (first + k) % n_units
                if w.ints[b, i, c.ALIVE] == 1:
                    update_timers(w, b, i)
                    follow_order(w, b, i)
            move_all(w, b)
            for i in range(n_units):
                apply_pending_hit(w, b, i)
