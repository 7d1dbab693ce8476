"""The environment `skirmish`: SMAC's interface over the simulated battles.

Description:
    A team of units, one agent each, against the built-in enemy, on eleven of SMAC's maps. It is our own
    simulator, not StarCraft II.
Actions:
    0 no-op (the dead), 1 stop, 2-5 north, south, east, west, 6+k attack enemy k (a medivac: heal ally k).
Observations, State:
    As SMAC; see `observe.py`.
Rewards:
    As SMAC, shaped or sparse; see `observe.py`.
Episode end:
    `terminated` when a side is gone; `truncated` at the map's limit; an ended copy is absorbing.
Chance:
    The random delay after each shot, no more, as in SMAC; `env.skirmish` can shift or scatter the starts.
Differences from the original:
    Bodies, steering, the enemy's acquisition and spawn offsets are inferences, calibrated by
    `emtc bench calibration`. Time limits are told from terminations. Flyers and colossi keep to walkable
    ground.
"""

import secrets

import numpy as np
from numpy.typing import NDArray

from emtc_core.arrays import check_shape
from emtc_core.config.train import SkirmishConfig
from emtc_core.envs.base import Observation, Scene
from emtc_core.envs.skirmish.battle import Battle
from emtc_core.envs.skirmish.maps import MapSpec, get_map, make_info, make_scene
from emtc_core.envs.skirmish.observe import observe, score
from emtc_core.envs.skirmish.orders import give_orders

STEP_LOOPS = 8
"""Game loops per environment step."""


class SkirmishEnv:
    """B battles of one map behind the vectorised environment interface."""

    def __init__(self, spec: MapSpec, *, n_envs: int, config: SkirmishConfig) -> None:
        self._spec = spec
        self.info, self.n_envs = make_info(spec, config), n_envs
        self._battle = Battle(spec, n_envs=n_envs, config=config)
        self._sparse = config.reward_sparse
        self._scale = 20.0 / spec.max_reward
        self._steps = np.zeros(n_envs, dtype=np.int64)
        self._ends = np.zeros((n_envs, 3), dtype=np.bool_)
        self._avail = np.zeros((n_envs, self.info.n_agents, self.info.n_actions), dtype=np.bool_)
        self._seeded = False

    def reset(self, seed: int | None = None) -> Observation:
        """Start a new battle in every copy; copy b's chance depends on (seed, b) alone."""
        if seed is not None or not self._seeded:
            self._battle.seed(secrets.randbits(31) if seed is None else seed)
            self._seeded = True
        self._battle.restart()
        self._steps[:] = 0
        self._ends[:] = False
        return self._show(np.zeros(self.n_envs, dtype=np.float32))

    def step(self, actions: NDArray[np.integer]) -> Observation:
        """Advance one step with actions [B, N].

        Raises:
            ValueError: If a running copy is given an action that `avail` forbids; nothing has moved then.
        """
        check_shape("actions", actions, (self.n_envs, self.info.n_agents))
        battle = self._battle
        wanted = np.ascontiguousarray(actions, dtype=np.int64)
        illegal = give_orders(battle.world, wanted, self._avail)
        if illegal >= 0:
            b, i = divmod(illegal, self.info.n_agents)
            allowed = np.flatnonzero(self._avail[b, i]).tolist()
            raise ValueError(f"action of agent {i} in copy {b} must be one of {allowed}, got {int(wanted[b, i])}.")
        battle.advance(STEP_LOOPS)
        reward = np.empty(self.n_envs, dtype=np.float32)
        limit = self._spec.episode_limit
        score(battle.world, self._steps, reward, self._ends, limit, self._sparse, self._scale)
        return self._show(reward)

    def scene(self, states: NDArray[np.float32]) -> Scene:
        """Turn the stored states [T, S] of one episode into frames."""
        return make_scene(self._spec, states)

    def close(self) -> None:
        """Release the threads of big batches; idempotent."""
        self._battle.close()

    def _show(self, reward: NDArray[np.float32]) -> Observation:
        info, battle = self.info, self._battle
        obs = np.zeros((self.n_envs, info.n_agents, info.obs_dim), dtype=np.float32)
        state = np.zeros((self.n_envs, 1, info.state_dim), dtype=np.float32)
        avail = np.zeros_like(self._avail)
        observe(battle.world, battle.walkable, obs, state, avail, len(self._spec.type_bits))
        self._avail = avail
        ends = self._ends.copy()
        return Observation(obs, state[:, 0], avail.copy(), reward, ends[:, 0], ends[:, 1], ends[:, 2])


def make_skirmish(map: str, *, n_envs: int, config: SkirmishConfig) -> SkirmishEnv:
    """Make B copies of a map.

    Raises:
        EnvUnavailableError: If there is no such map.
    """
    return SkirmishEnv(get_map(map), n_envs=n_envs, config=config)


def warm_up() -> None:
    """Compile every kernel, or load it from the cache, so that the first step of a run is quick."""
    env = make_skirmish("3m", n_envs=1, config=SkirmishConfig())
    env.reset(0)
    env.step(np.ones((1, 3), dtype=np.int64))
