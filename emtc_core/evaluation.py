"""Greedy evaluation: its own environments, its own seeds, no learning, no memory writes."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from emtc_core.config.train import EvalConfig
from emtc_core.envs.base import VectorEnv
from emtc_core.learner.learner import Learner
from emtc_core.recorder import EvaluationRecord, PlaybackRecord
from emtc_core.rollout.collector import Collector
from emtc_core.rollout.episode import Episode, discounted_returns


@dataclass(frozen=True)
class EvaluationStats:
    """Value estimates beside what was then obtained, in the learner's unit."""

    q_start: float
    overestimation: float


class Evaluator:
    """Plays `episodes` greedy episodes and compares them with the values that promised them."""

    def __init__(self, env: VectorEnv, config: EvalConfig, *, gamma: float, reward_scale: float, seed: int) -> None:
        self._env = env
        self._config = config
        self._gamma = gamma
        self._collector = Collector(env, reward_scale=reward_scale, seed=seed, stream="evaluation")

    def evaluate(
        self, learner: Learner, env_step: int, *, between_steps: Callable[[], None] = lambda: None
    ) -> tuple[EvaluationRecord, EvaluationStats]:
        """Evaluate the greedy policy at one moment of training; what `between_steps` raises abandons it."""
        episodes: list[Episode] = []
        while len(episodes) < self._config.episodes:
            episodes += self._collector.collect(
                learner, epsilon=0.0, round=(env_step, len(episodes)), between_steps=between_steps
            )
        episodes = episodes[: self._config.episodes]
        return self._record(episodes, env_step), self._values(learner, episodes)

    def _record(self, episodes: list[Episode], env_step: int) -> EvaluationRecord:
        return EvaluationRecord(
            env_step=env_step,
            returns=np.array([e.episode_return for e in episodes], np.float32),
            lengths=np.array([e.length for e in episodes], np.int64),
            won=np.array([e.won for e in episodes], bool),
            playbacks=tuple(
                PlaybackRecord(
                    state=e.state, action=e.action, reward=e.reward, episode_return=e.episode_return, won=e.won
                )
                for e in episodes[: self._config.keep_playbacks]
            ),
        )

    def _values(self, learner: Learner, episodes: list[Episode]) -> EvaluationStats:
        q_B = learner.q_start(
            np.stack([e.obs[0] for e in episodes]),
            np.stack([e.state[0] for e in episodes]),
            np.stack([e.avail[0] for e in episodes]),
        )
        obtained = np.array([discounted_returns(e.reward, self._gamma)[0] for e in episodes])
        q_start = float(np.asarray(q_B, np.float64).mean())
        return EvaluationStats(q_start=q_start, overestimation=q_start - float(obtained.mean()))
