"""EMTC Lab's environments as PettingZoo parallel environments, skirmish first.

    from emtc_core.envs.pettingzoo_export import parallel_env
    env = parallel_env("3s_vs_5z")

An observation is `{"observation": vector, "action_mask": 0/1 vector}`; every agent gets the team's reward and
stays until the episode is over (a dead unit can only do nothing); `state()` is the global state; infos say
`won`. An action that the mask forbids is replaced by the first that it allows, because PettingZoo's own
tests and many of its users sample without looking at masks.
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
    """Make one copy of an environment of ours as a PettingZoo parallel environment."""
    return ExportedEnv(make_env(EnvConfig(name=env, map=map), n_envs=1))


class ExportedEnv(ParallelEnv[str, dict[str, NDArray[Any]], int]):
    """One copy of a vectorised environment, spoken to in dictionaries."""

    def __init__(self, env: VectorEnv) -> None:
        if env.n_envs != 1:
            raise ValueError(f"env.n_envs must be 1, got {env.n_envs}")
        self._env = env
        info = env.info
        self.metadata = {"name": f"{info.env}_{info.map}_v0", "render_modes": []}
        self.render_mode = None
        self.possible_agents = [f"agent_{i}" for i in range(info.n_agents)]
        self.agents: list[str] = []
        everything = np.finfo(np.float32).max
        self.state_space = spaces.Box(-everything, everything, (info.state_dim,), np.float32)
        self._observation_spaces = {
            agent: spaces.Dict(
                observation=spaces.Box(-everything, everything, (info.obs_dim,), np.float32),
                action_mask=spaces.Box(0, 1, (info.n_actions,), np.int8),
            )
            for agent in self.possible_agents
        }
        self._action_spaces = {agent: spaces.Discrete(info.n_actions) for agent in self.possible_agents}
        self._state = np.zeros(info.state_dim, np.float32)
        self._avail = np.ones((info.n_agents, info.n_actions), bool)

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        """The same object at every call, as PettingZoo asks."""
        return self._observation_spaces[agent]

    def action_space(self, agent: str) -> spaces.Space[Any]:
        """The same object at every call, as PettingZoo asks."""
        return self._action_spaces[agent]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, dict[str, NDArray[Any]]], dict[str, dict[str, bool]]]:
        """Start an episode; `options` has no meaning here."""
        seen = self._env.reset(seed)
        self.agents = list(self.possible_agents)
        return self._observe(seen), {agent: {"won": False} for agent in self.agents}

    def step(self, actions: dict[str, int]) -> tuple[Any, Any, Any, Any, Any]:
        """Step with one action per agent; PettingZoo's five dictionaries."""
        wanted = np.array([actions[agent] for agent in self.possible_agents])
        allowed = np.take_along_axis(self._avail, wanted[:, None], axis=1)[:, 0]
        seen = self._env.step(np.where(allowed, wanted, self._avail.argmax(axis=1))[None])
        agents = self.agents
        terminated, truncated = bool(seen.terminated[0]), bool(seen.truncated[0])
        if terminated or truncated:
            self.agents = []
        return (
            self._observe(seen),
            dict.fromkeys(agents, float(seen.reward[0])),
            dict.fromkeys(agents, terminated),
            dict.fromkeys(agents, truncated),
            {agent: {"won": bool(seen.won[0])} for agent in agents},
        )

    def state(self) -> NDArray[np.float32]:
        """The global state after the last reset or step."""
        return self._state

    def render(self) -> None:
        """Nothing to see here: replays are drawn from stored states."""

    def close(self) -> None:
        """Release the environment."""
        self._env.close()

    def _observe(self, seen: Observation) -> dict[str, dict[str, NDArray[Any]]]:
        self._state, self._avail = seen.state[0], seen.avail[0]
        return {
            agent: {"observation": seen.obs[0, row], "action_mask": seen.avail[0, row].astype(np.int8)}
            for row, agent in enumerate(self.possible_agents)
        }
