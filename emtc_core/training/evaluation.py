"""Greedy evaluation: its own environments, its own seeds, no learning, no memory writes.

Where every battle starts at the same places, greedy episodes are near copies of each other: how many differ is
recorded, and the same policy plays as many episodes again from shifted starts, the robust evaluation.

A regular one is due by the step count and makes the curves. An asked one answers a question at any moment: its seeds
follow from the run's seed and the question's number, so that it shifts nothing that a regular one will see.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from emtc_core.config.train import EnvConfig, EvalConfig
from emtc_core.control import Question
from emtc_core.envs.base import VectorEnv
from emtc_core.learner.learner import Learner
from emtc_core.recorder import AskedRecord, EvaluationRecord, PlaybackRecord, RobustRecord
from emtc_core.rollout.collector import Actor, Collector
from emtc_core.rollout.episode import Episode, discounted_returns


@dataclass(frozen=True)
class EvaluationStats:
    """Value estimates beside what was then obtained, in the learner's unit."""

    q_start: float
    overestimation: float


def with_shifted_starts(env: EnvConfig, config: EvalConfig) -> EnvConfig | None:
    """The environment of the robust evaluation; None where starts cannot be shifted or vary by themselves."""
    skirmish = env.skirmish
    if env.name != "skirmish" or skirmish.random_start != "none" or skirmish.spawn_jitter >= config.robust_jitter:
        return None
    shifted = skirmish.model_copy(update={"spawn_jitter": config.robust_jitter})
    return env.model_copy(update={"skirmish": shifted})


def count_distinct(episodes: Sequence[Episode]) -> int:
    """How many episodes differ in their actions or their outcome (won, return)."""
    return len({(each.action.tobytes(), each.won, each.episode_return) for each in episodes})


def play_greedily(
    collector: Collector,
    actor: Actor,
    numbers: tuple[int, ...],
    count: int,
    between_steps: Callable[[], None] = lambda: None,
) -> list[Episode]:
    """Play as many greedy episodes as are wanted, in rounds of all copies; `numbers` select their random streams."""
    episodes: list[Episode] = []
    while len(episodes) < count:
        round_ = (*numbers, len(episodes))
        episodes += collector.collect(actor, epsilon=0.0, round=round_, between_steps=between_steps)
    return episodes[:count]


def make_record(episodes: Sequence[Episode], env_step: int, *, keep: int = 0) -> EvaluationRecord:
    """Sum up greedy episodes of one moment of training, the first `keep` of them with all that a replay shows."""
    return EvaluationRecord(
        env_step=env_step,
        returns=np.array([e.episode_return for e in episodes], np.float32),
        lengths=np.array([e.length for e in episodes], np.int64),
        won=np.array([e.won for e in episodes], bool),
        playbacks=tuple(
            PlaybackRecord(state=e.state, action=e.action, reward=e.reward, episode_return=e.episode_return, won=e.won)
            for e in episodes[:keep]
        ),
        distinct=count_distinct(episodes),
    )


class Evaluator:
    """Plays `episodes` greedy episodes and compares them with the values that promised them."""

    def __init__(
        self,
        env: VectorEnv,
        config: EvalConfig,
        *,
        gamma: float,
        reward_scale: float,
        seed: int,
        robust_env: VectorEnv | None = None,
    ) -> None:
        self._env = env
        self._config = config
        self._gamma = gamma
        self._robust = None
        if robust_env is not None:
            self._robust = Collector(robust_env, reward_scale=reward_scale, seed=seed, stream="robust")
        self._collector, self._asked, self._repeating = (
            Collector(env, reward_scale=reward_scale, seed=seed, stream=stream)
            for stream in ("evaluation", "asked", "rollout")
        )

    def evaluate(
        self, learner: Learner, env_step: int, *, between_steps: Callable[[], None] = lambda: None
    ) -> tuple[EvaluationRecord, EvaluationStats]:
        """Evaluate the greedy policy at one moment of training; what `between_steps` raises abandons it."""
        episodes = play_greedily(self._collector, learner, (env_step,), self._config.episodes, between_steps)
        values = self._values(learner, episodes)
        record = make_record(episodes, env_step, keep=self._config.keep_playbacks)
        return replace(record, robust=self._play_robust(learner, env_step, between_steps)), values

    def answer(
        self,
        learner: Learner,
        env_step: int,
        question: Question,
        *,
        n_training_envs: int,
        between_steps: Callable[[], None] = lambda: None,
    ) -> AskedRecord:
        """Play what somebody asked for; the learner goes on afterwards as if nothing had been played.

        Args:
            learner: Whose greedy policy plays; it may be in the middle of a round elsewhere.
            env_step: The moment of training.
            question: An evaluation, or one episode.
            n_training_envs: Copies that the training plays at once, by which an episode's start is found.
            between_steps: What it raises abandons the answer.

        Returns:
            The answer. Where a game repeats no start, or the training has more copies than the evaluation and
            played the episode in one of those, `again_of` is None: the episode has a start of its own.
        """
        again_of = question.again_of
        round_, copy = divmod((again_of or 1) - 1, n_training_envs)
        if copy >= self._env.n_envs or not self._env.info.repeats_starts:
            again_of = None
        with learner.elsewhere():
            if again_of is None:
                count = self._config.episodes if question.kind == "evaluate" else 1
                numbers = (question.number, env_step)
                episodes = play_greedily(self._asked, learner, numbers, count, between_steps)
            else:
                played = self._repeating.collect(learner, epsilon=0.0, round=(round_,), between_steps=between_steps)
                episodes = [played[copy]]
        record = make_record(episodes, env_step, keep=max(1, self._config.keep_playbacks))
        return AskedRecord(question.number, record, again_of=again_of)

    def _play_robust(self, learner: Learner, env_step: int, between_steps: Callable[[], None]) -> RobustRecord | None:
        if self._robust is None:
            return None
        episodes = play_greedily(self._robust, learner, (env_step,), self._config.episodes, between_steps)
        return RobustRecord(np.array([each.won for each in episodes], bool), count_distinct(episodes))

    def _values(self, learner: Learner, episodes: list[Episode]) -> EvaluationStats:
        q_B = learner.q_start(
            np.stack([e.obs[0] for e in episodes]),
            np.stack([e.state[0] for e in episodes]),
            np.stack([e.avail[0] for e in episodes]),
        )
        obtained = np.array([discounted_returns(e.reward, self._gamma)[0] for e in episodes])
        q_start = float(np.asarray(q_B, np.float64).mean())
        return EvaluationStats(q_start=q_start, overestimation=q_start - float(obtained.mean()))
