"""EMTC Lab's environments as PettingZoo parallel environments; the default is skirmish.

    from emtc_core.envs.pettingzoo_export import parallel_env
    env = parallel_env("3s_vs_5z")

An observation is `{"observation": vector, "action_mask": 0/1 vector}`. Every agent receives the team's reward and
remains until the episode ends; a dead unit has only the no-op action. `state()` is the global state. The infos contain
`won`. An action that the mask forbids is replaced by the first available one, because PettingZoo's tests and many of
its users sample actions without the mask.
"""

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from pettingzoo import ParallelEnv

from emtc_core.config.train import EnvConfig
from emtc_core.envs.base import Observation, VectorEnv
from emtc_core.envs.registry import make_env


def parallel_env(map: str = "3m", *, env: str = "skirmish") -> "ExportedEnv":
    """Make one copy of an EMTC Lab environment as a PettingZoo parallel environment."""
    return ExportedEnv(make_env(EnvConfig(name=env, map=map), n_envs=1))


class ExportedEnv(ParallelEnv[str, dict[str, NDArray[Any]], int]):
    """One copy of a vectorized environment, with PettingZoo's dictionaries in place of arrays."""

    def __init__(self, env: VectorEnv) -> None:
        self._env = env
        info = env.info
        self.metadata = {"name": f"{info.env}_{info.map}_v0", "render_modes": []}
        self.render_mode = None
        self.possible_agents = [f"agent_{i}" for i in range(info.n_agents)]
        self.agents: list[str] = []
        largest = np.finfo(np.float32).max
        self.state_space = spaces.Box(-largest, largest, (info.state_dim,), np.float32)
        obs_space = spaces.Box(-largest, largest, (info.obs_dim,), np.float32)
        mask_space = spaces.Box(0, 1, (info.n_actions,), np.int8)
        agents = self.possible_agents
        self._obs_spaces = {agent: spaces.Dict(observation=obs_space, action_mask=mask_space) for agent in agents}
        self._action_spaces = {agent: spaces.Discrete(info.n_actions) for agent in agents}

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        """Return an agent's observation space. PettingZoo requires the same object at every call."""
        return self._obs_spaces[agent]

    def action_space(self, agent: str) -> spaces.Space[Any]:
        """Return an agent's action space. PettingZoo requires the same object at every call."""
        return self._action_spaces[agent]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        """Start an episode and return observations and infos by agent; `options` are ignored."""
        self._last = self._env.reset(seed)
        self.agents = list(self.possible_agents)
        return self._observe(self._last), {agent: {"won": False} for agent in self.agents}

    def step(self, actions: dict[str, int]) -> tuple[Any, Any, Any, Any, Any]:
        """Step and return observations, rewards, terminations, truncations and infos by agent."""
        avail = self._last.avail[0]
        requested = np.array([actions[agent] for agent in self.possible_agents])
        is_available = np.take_along_axis(avail, requested[:, None], axis=1)[:, 0]
        self._last = self._env.step(np.where(is_available, requested, avail.argmax(axis=1))[None])
        agents = self.agents
        terminated, truncated = bool(self._last.terminated[0]), bool(self._last.truncated[0])
        if terminated or truncated:
            self.agents = []
        return (
            self._observe(self._last),
            dict.fromkeys(agents, float(self._last.reward[0])),
            dict.fromkeys(agents, terminated),
            dict.fromkeys(agents, truncated),
            {agent: {"won": bool(self._last.won[0])} for agent in agents},
        )

    def state(self) -> NDArray[np.float32]:
        """Return the global state [S] after the last reset or step [state features].

        Source: the Parallel API of PettingZoo.
        """
        return self._last.state[0]

    def close(self) -> None:
        """Release the environment."""
        self._env.close()

    def _observe(self, last: Observation) -> dict[str, dict[str, NDArray[Any]]]:
        masks = last.avail[0].astype(np.int8)
        return {
            agent: {"observation": last.obs[0, row], "action_mask": masks[row]}
            for row, agent in enumerate(self.possible_agents)
        }
