"""Google Research Football's academy scenarios as a vectorized environment.

Description: n attackers against a keeper and one or two defenders, in the real gfootball engine. One step is 0.1 s.
    A map is a key of `scenarios.SCENARIOS`.
Actions: gfootball's default set of 19; all are always available. Directions, sprint and dribble are sticky.
Observations: the agent's position, the other players' positions relative to it, directions, ball; see `scenarios.py`.
State: absolute positions and directions of the agents, the observed opponents and the ball.
Rewards: `env.grf.reward` = paper: +1 for our goal, -1 for theirs, 0 otherwise; emu: +100 for our goal and -1
    at any other end.
Episode end: terminated by a goal, the ball out of play, a change of possession, or the ball or an agent in
    our own half; truncated after 150 steps.
Arguments: `env.grf.*` of the configuration, see `config/train.py`.
Differences from the original: the wrappers published with CDS and EMU treat the time limit as an end of the
    game. Here it is a truncation, and `train.bootstrap_on_timeout` selects whether the learner bootstraps. The engine
    of copy b is seeded with `engine_seed(seed, b, episode)`.
"""

import secrets
from importlib.util import find_spec

import numpy as np
from numpy.typing import NDArray

from emtc_core.arrays import check_shape, derive_seed
from emtc_core.config.train import EnvConfig, GrfConfig
from emtc_core.envs.base import EnvInfo, Observation, VectorEnv, check_can_run, check_map, check_was_reset
from emtc_core.envs.grf.engine import Squad, load_engine
from emtc_core.envs.grf.engine_group import make_group
from emtc_core.envs.grf.scenarios import (
    ACTION_NAMES,
    EPISODE_LIMIT,
    N_ACTIONS,
    SCENARIOS,
    ObservationMap,
    Scenario,
    StateLayout,
    get_scenario,
    in_own_half,
)
from emtc_core.envs.grf.scenarios import make_scene as make_scenario_scene
from emtc_core.envs.scene import Scene

HOW_TO_GET = (
    "apt-get install -y build-essential cmake libgl1-mesa-dev libsdl2-dev libsdl2-image-dev libsdl2-ttf-dev "
    "libsdl2-gfx-dev libboost-python-dev libboost-thread-dev libboost-filesystem-dev libboost-system-dev; "
    "then, with the virtual environment activated: pip install psutil setuptools wheel six 'gym<0.26'; "
    "CXXFLAGS='-fno-semantic-interposition -fno-math-errno -fvisibility-inlines-hidden -flto=auto' "
    "LDFLAGS=-Wl,-Bsymbolic pip install --no-build-isolation gfootball"
)
"""The compiler flags are optional. They make the engine a third faster and do not change any result."""


def list_maps() -> list[str]:
    """List the academy scenarios."""
    return list(SCENARIOS)


def find_unavailable_reason() -> str:
    """Check that the engine can be imported. The result is not cached, because the package may be installed later."""
    if find_spec("gfootball_engine") is None:
        return "the package gfootball is not installed."
    try:
        load_engine()
    except ImportError as error:
        return f"the football engine does not load ({error})."
    return ""


def find_info(config: EnvConfig) -> EnvInfo:
    """Return the sizes of a scenario."""
    check_map("grf", config.map, list_maps())
    return make_info(get_scenario(config.map), config.grf)


def make_env(config: EnvConfig, *, n_envs: int) -> VectorEnv:
    """Start `n_envs` matches."""
    check_map("grf", config.map, list_maps())
    check_can_run("grf", find_unavailable_reason(), HOW_TO_GET)
    return GrfEnv(config.map, n_envs=n_envs, config=config.grf)


def make_scene(map: str, states: NDArray[np.float32]) -> Scene:
    """Make the frames of one episode from its stored states.

    Args:
        map: Name of the scenario.
        states: [T, S] [state features]. Source: `scenarios.py`, which defines the layout.
    """
    check_map("grf", map, list_maps())
    return make_scenario_scene(map, states)


def engine_seed(seed: int, copy: int, episode: int = 0) -> int:
    """Derive gfootball's `game_engine_random_seed`.

    Args:
        seed: Seed of the last `reset(seed)`.
        copy: Index of the copy.
        episode: Number of episodes of this copy since `reset(seed)`.
    """
    return derive_seed(seed, "grf", copy, episode)


def make_info(scenario: Scenario, config: GrfConfig) -> EnvInfo:
    """Make the sizes and bounds of a scenario. Needs no engine."""
    defenders = tuple(f"defender {j}" for j in range(1, scenario.n_opponents))
    return EnvInfo(
        env="grf",
        map=scenario.name,
        n_agents=scenario.n_agents,
        n_actions=N_ACTIONS,
        obs_dim=scenario.dim,
        state_dim=scenario.dim,
        episode_limit=EPISODE_LIMIT,
        reward_range=(-1.0, 1.0) if config.reward == "paper" else (-1.0, 100.0),
        action_names=ACTION_NAMES,
        enemy_names=("keeper", *defenders),
    )


class GrfEnv:
    """B football matches that are stepped together."""

    def __init__(self, map: str, *, n_envs: int, config: GrfConfig) -> None:
        scenario = get_scenario(map)
        self._config = config
        self.info = make_info(scenario, config)
        self._layout = StateLayout(scenario.n_agents, scenario.n_opponents)
        self._observations = ObservationMap(self._layout)
        lineup = scenario.trimmed if config.trimmed else scenario.full
        squad = Squad(lineup, scenario.n_agents, scenario.n_opponents)
        self._group = make_group(squad, n_envs=n_envs, workers=config.workers)
        self.n_envs = n_envs
        self._seed = secrets.randbits(31)
        self._episode = -1
        self._t = 0
        self._terminated = np.zeros(n_envs, bool)
        self._truncated = np.zeros(n_envs, bool)
        self._won = np.zeros(n_envs, bool)
        self._avail = np.ones((n_envs, scenario.n_agents, N_ACTIONS), bool)

    def reset(self, seed: int | None = None) -> Observation:
        """Start a new match in every copy."""
        self._episode += 1
        if seed is not None:
            self._seed, self._episode = seed, 0
        shared = self._group.shared
        shared.seed[:] = [engine_seed(self._seed, copy, self._episode) for copy in range(self.n_envs)]
        self._group.reset()
        self._t = 0
        self._terminated[:] = False
        self._truncated[:] = False
        self._won[:] = False
        return self._observe(np.zeros(self.n_envs, np.float32))

    def step(self, actions: NDArray[np.integer]) -> Observation:
        """Advance every match that has not ended by one step of 0.1 s.

        Source: the wrappers of lich14/CDS and HyunghoNa/EMU, CDS_GRF/envs/grf.

        Args:
            actions: [B, N], action index of each agent.

        Raises:
            ResetNeededError: If `reset` was never called.
            ValueError: If the action of a running match is not in 0..18.
        """
        check_was_reset(self._episode >= 0)
        check_shape("actions", actions, (self.n_envs, self.info.n_agents))
        shared = self._group.shared
        running = ~(self._terminated | self._truncated)
        if ((actions < 0) | (actions >= N_ACTIONS))[running].any():
            raise ValueError(f"actions must lie in 0..{N_ACTIONS - 1}, got {actions[running].tolist()}")
        shared.action[:] = actions
        shared.running[:] = running
        shared.goal[:] = 0
        self._group.step()
        self._t += 1
        return self._observe(self._score_step(running))

    def scene(self, states: NDArray[np.float32]) -> Scene:
        """Make the frames of one episode from its stored states.

        Args:
            states: [T, S] [state features]. Source: `scenarios.py`, which defines the layout.
        """
        return make_scenario_scene(self.info.map, states)

    def close(self) -> None:
        """End the worker processes and release the engines."""
        self._group.close()

    def _score_step(self, running: NDArray[np.bool_]) -> NDArray[np.float32]:
        """Update the end flags and return the rewards [B] of the step. `running` [B]: matches before the step."""
        shared = self._group.shared
        ended = shared.ended | in_own_half(self._layout, shared.state)
        self._terminated |= running & ended
        self._truncated |= running & ~ended & (self._t >= EPISODE_LIMIT)
        goal = np.where(running, shared.goal, 0)
        self._won |= goal > 0
        if self._config.reward == "paper":
            return np.sign(goal).astype(np.float32)
        over = running & (self._terminated | self._truncated)
        return np.where(goal > 0, 100.0, np.where(over, -1.0, 0.0)).astype(np.float32)

    def _observe(self, reward: NDArray[np.float32]) -> Observation:
        state = self._group.shared.state
        return Observation(
            obs=self._observations.observe(state),
            state=state.astype(np.float32),
            avail=self._avail.copy(),
            reward=reward,
            terminated=self._terminated.copy(),
            truncated=self._truncated.copy(),
            won=self._won.copy(),
        )
