"""The two-step cooperative matrix game of the QMIX paper, as a vectorised environment.

First step: agent 0's action chooses game A or B; agent 1's is ignored. Second step: game A pays 7 whatever
is done; game B pays [[0, 1], [1, 8]]. The best return is 8; additive value functions settle for 7.
"""

import numpy as np
from numpy.typing import NDArray

from emtc_core.envs.base import EnvInfo, Observation
from emtc_core.envs.scene import Scene

GAME_B = np.array([[0.0, 1.0], [1.0, 8.0]])
INFO = EnvInfo(
    env="two-step", map="qmix", n_agents=2, n_actions=2, obs_dim=3, state_dim=3, episode_limit=2, reward_range=(0, 8)
)


class TwoStepGame:
    info = INFO

    def __init__(self, n_envs: int) -> None:
        self.n_envs = n_envs

    def reset(self, seed: int | None = None) -> Observation:
        self._stage = np.zeros(self.n_envs, np.int64)
        self._steps = 0
        return self._show(np.zeros(self.n_envs, np.float32))

    def step(self, actions: NDArray[np.integer]) -> Observation:
        reward = np.zeros(self.n_envs, np.float32)
        if self._steps == 0:
            self._stage = 1 + np.asarray(actions)[:, 0]
        elif self._steps == 1:
            reward = np.where(self._stage == 1, 7.0, GAME_B[actions[:, 0], actions[:, 1]]).astype(np.float32)
        self._steps += 1
        return self._show(reward)

    def scene(self, states: NDArray[np.float32]) -> Scene:
        raise AssertionError("this game is never drawn")

    def close(self) -> None:
        self._steps = 2

    def _show(self, reward: NDArray[np.float32]) -> Observation:
        state = np.eye(3, dtype=np.float32)[self._stage]
        ended = np.full(self.n_envs, self._steps >= 2)
        return Observation(
            obs=np.repeat(state[:, None], 2, axis=1),
            state=state,
            avail=np.ones((self.n_envs, 2, 2), bool),
            reward=reward,
            terminated=ended,
            truncated=np.zeros(self.n_envs, bool),
            won=ended & (reward > 7.5),
        )
