"""A stand-in for `smac.env.StarCraft2Env` where the package is absent: its documented interface over a
skirmish battle, whose layouts, rewards and ends are SMAC's own."""

from collections.abc import Sequence

import numpy as np

from emtc_core.config.env import EnvConfig
from emtc_core.envs.registry import make_env


class StarCraft2Env:
    """One battle in SMAC's words: rewards and ends from `step`, everything else by asking."""

    launched = 0

    def __init__(self, map_name: str = "8m", seed: int | None = None, continuing_episode: bool = False):
        self._battle = make_env(EnvConfig(map=map_name), n_envs=1)
        self._seed, self._continuing = seed, continuing_episode
        self._episode_count = 0
        self.closed = 0

    def get_env_info(self) -> dict:
        info = self._battle.info
        return {
            "state_shape": info.state_dim,
            "obs_shape": info.obs_dim,
            "n_actions": info.n_actions,
            "n_agents": info.n_agents,
            "episode_limit": info.episode_limit,
            "agent_features": ["feature"] * info.agent_block,
        }

    def reset(self) -> tuple[list[np.ndarray], np.ndarray]:
        if self._episode_count == 0:
            StarCraft2Env.launched += 1
        self._seen = self._battle.reset(self._seed if self._episode_count == 0 else None)
        return self.get_obs(), self.get_state()

    def step(self, actions: Sequence[int]) -> tuple[float, bool, dict]:
        assert all(isinstance(action, int) for action in actions)
        self._seen = self._battle.step(np.array([actions]))
        over = bool(self._seen.terminated[0] | self._seen.truncated[0])
        self._episode_count += over
        info = {"battle_won": bool(self._seen.won[0])}
        if self._seen.truncated[0] and self._continuing:
            info["episode_limit"] = True
        return float(self._seen.reward[0]), over, info

    def get_obs(self) -> list[np.ndarray]:
        return list(self._seen.obs[0])

    def get_state(self) -> np.ndarray:
        return self._seen.state[0]

    def get_avail_actions(self) -> list[list[int]]:
        return self._seen.avail[0].astype(int).tolist()

    def close(self) -> None:
        self.closed += 1
