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
        if env.n_envs != 1:
            raise ValueError(f"env.n_envs must be 1, got {env.n_envs}")
        self._env = env
        info = env.info
        self.metadata = {"name": f"{info.env}_{info.map}_v0", "render_modes": []}
        self.render_mode = None
        self.possible_agents = [f"agent_{i}" for i in range(info.n_agents)]
        self.agents: list[str] = []
        largest = np.finfo(np.float32).max
        self.state_space = spaces.Box(-largest, largest, (info.state_dim,), np.float32)
        self._observation_spaces = {
            agent: spaces.Dict(
                observation=spaces.Box(-largest, largest, (info.obs_dim,), np.float32),
                action_mask=spaces.Box(0, 1, (info.n_actions,), np.int8),
            )
            for agent in self.possible_agents
        }
        self._action_spaces = {agent: spaces.Discrete(info.n_actions) for agent in self.possible_agents}
        self._state = np.zeros(info.state_dim, np.float32)
        self._avail = np.ones((info.n_agents, info.n_actions), bool)

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        """Return an agent's observation space. PettingZoo requires the same object at every call."""
        return self._observation_spaces[agent]

    def action_space(self, agent: str) -> spaces.Space[Any]:
        """Return an agent's action space. PettingZoo requires the same object at every call."""
        return self._action_spaces[agent]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, dict[str, NDArray[Any]]], dict[str, dict[str, bool]]]:
        """Start an episode. Source: the Parallel API of PettingZoo.

        Args:
            seed: Seed of the game. None: the game continues with its random generator.
            options: Ignored.

        Returns:
            Per agent `observation` of shape [O] [observation features] and `action_mask` of shape [A], 0 or 1,
            dimensionless; and per agent the info `won`.
        """
        observation = self._env.reset(seed)
        self.agents = list(self.possible_agents)
        return self._store_and_split(observation), {agent: {"won": False} for agent in self.agents}

    def step(self, actions: dict[str, int]) -> tuple[Any, Any, Any, Any, Any]:
        """Step with one action per agent.

        Returns:
            PettingZoo's dictionaries by agent: observations, rewards, terminations, truncations, infos.
        """
        requested = np.array([actions[agent] for agent in self.possible_agents])
        allowed = np.take_along_axis(self._avail, requested[:, None], axis=1)[:, 0]
        observation = self._env.step(np.where(allowed, requested, self._avail.argmax(axis=1))[None])
        agents = self.agents
        terminated, truncated = bool(observation.terminated[0]), bool(observation.truncated[0])
        if terminated or truncated:
            self.agents = []
        return (
            self._store_and_split(observation),
            dict.fromkeys(agents, float(observation.reward[0])),
            dict.fromkeys(agents, terminated),
            dict.fromkeys(agents, truncated),
            {agent: {"won": bool(observation.won[0])} for agent in agents},
        )

    def state(self) -> NDArray[np.float32]:
        """Return the global state [S] after the last reset or step [state features].

        Source: the Parallel API of PettingZoo.
        """
        return self._state

    def render(self) -> None:
        """Draw nothing. Replays are drawn from stored states."""

    def close(self) -> None:
        """Release the environment."""
        self._env.close()

    def _store_and_split(self, observation: Observation) -> dict[str, dict[str, NDArray[Any]]]:
        """Store the state and the available actions; return the observations by agent."""
        self._state, self._avail = observation.state[0], observation.avail[0]
        return {
            agent: {"observation": observation.obs[0, row], "action_mask": observation.avail[0, row].astype(np.int8)}
            for row, agent in enumerate(self.possible_agents)
        }
