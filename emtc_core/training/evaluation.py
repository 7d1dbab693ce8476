"""Greedy evaluation, with separate environments and seeds, without learning and without memory writes.

If all units start at fixed positions, greedy episodes are nearly equal. So the number of distinct episodes is recorded,
and the same policy plays the same number of episodes from shifted starts: the robust evaluation.

A regular evaluation is due at an env step and is a point of the curves. An evaluation that answers a question can run
at any time. Its seeds depend on the run's seed and the question's number, so it does not change regular evaluations.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from emtc_core.config.train import EnvConfig, EvalConfig
from emtc_core.control import Question
from emtc_core.envs.base import VectorEnv
from emtc_core.learner.learner import Learner
from emtc_core.metrics import ROBUST_JITTER
from emtc_core.recorder import AnswerRecord, EvaluationRecord, PlaybackRecord, RobustRecord
from emtc_core.rollout.collector import Actor, Collector
from emtc_core.rollout.episode import Episode, discounted_returns

_ROUNDING = 1e-5
"""Difference of two returns that is rounding, relative to the return and at least absolute. On skirmish, the same
events in another order change a return by about 1e-7; one point of damage changes it by 0.01 or more."""


@dataclass(frozen=True)
class EvaluationStats:
    """Value estimates of one evaluation, in the learner's return unit."""

    q_start: float  # mean greedy Q_tot at the first step
    overestimation: float  # q_start minus the mean discounted return


def make_robust_env_config(env: EnvConfig) -> EnvConfig | None:
    """Make the settings of the robust evaluation's environment.

    Returns:
        The settings with shifted starts; None for another environment than skirmish, and if the starts vary already.
    """
    skirmish = env.skirmish
    if env.name != "skirmish" or skirmish.random_start != "none" or skirmish.spawn_jitter >= ROBUST_JITTER:
        return None
    shifted = skirmish.model_copy(update={"spawn_jitter": ROBUST_JITTER})
    return env.model_copy(update={"skirmish": shifted})


def count_distinct(episodes: Sequence[Episode]) -> int:
    """Count the episodes that differ in their actions or their outcome (won, return).

    Returns that differ by rounding are equal: the same rewards in another order have another float32 sum.
    """
    returns: defaultdict[tuple[bytes, bool], list[float]] = defaultdict(list)
    for episode in episodes:
        returns[episode.action.tobytes(), episode.won].append(episode.episode_return)
    return sum(_count_returns(np.sort(group)) for group in returns.values())


def _count_returns(ordered: NDArray[np.float64]) -> int:
    """Count different values of sorted returns."""
    is_new = ~np.isclose(ordered[1:], ordered[:-1], rtol=_ROUNDING, atol=_ROUNDING)
    return 1 + int(is_new.sum())


def play_greedily(
    collector: Collector,
    actor: Actor,
    numbers: tuple[int, ...],
    count: int,
    between_steps: Callable[[], None] = lambda: None,
) -> list[Episode]:
    """Play `count` greedy episodes, in rounds of one episode per environment.

    Args:
        collector: Plays one round.
        actor: Chooses the actions.
        numbers: Select the random streams of the episodes.
        count: Number of episodes.
        between_steps: Called before every environment step. An exception in it discards the episodes.
    """
    episodes: list[Episode] = []
    while len(episodes) < count:
        round_ = (*numbers, len(episodes))
        episodes += collector.collect(actor, epsilon=0.0, round=round_, between_steps=between_steps)
    return episodes[:count]


def make_record(episodes: Sequence[Episode], env_step: int, *, n_playbacks: int = 0) -> EvaluationRecord:
    """Summarize greedy episodes at one env step.

    Args:
        episodes: The episodes.
        env_step: Training env steps so far.
        n_playbacks: The record contains the trajectories of the first `n_playbacks` episodes, for replays.
    """
    return EvaluationRecord(
        env_step=env_step,
        returns=np.array([e.episode_return for e in episodes], np.float32),
        lengths=np.array([e.length for e in episodes], np.int64),
        won=np.array([e.won for e in episodes], bool),
        playbacks=tuple(
            PlaybackRecord(state=e.state, action=e.action, reward=e.reward, episode_return=e.episode_return, won=e.won)
            for e in episodes[:n_playbacks]
        ),
        distinct=count_distinct(episodes),
    )


class Evaluator:
    """Plays greedy episodes, and compares their returns with the learner's value estimates."""

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
        self._collector, self._question_collector, self._rollout_collector = (
            Collector(env, reward_scale=reward_scale, seed=seed, stream=stream)
            for stream in ("evaluation", "asked", "rollout")
        )

    def evaluate(
        self, learner: Learner, env_step: int, *, between_steps: Callable[[], None] = lambda: None
    ) -> tuple[EvaluationRecord, EvaluationStats]:
        """Evaluate the greedy policy.

        Args:
            learner: The learner whose policy is evaluated.
            env_step: Env step of the evaluation.
            between_steps: Called between two steps. If it raises, the evaluation is discarded.
        """
        episodes = play_greedily(self._collector, learner, (env_step,), self._config.episodes, between_steps)
        values = self._compare_values(learner, episodes)
        record = make_record(episodes, env_step, n_playbacks=self._config.keep_playbacks)
        return replace(record, robust=self._play_robust(learner, env_step, between_steps)), values

    def answer(
        self,
        learner: Learner,
        env_step: int,
        question: Question,
        *,
        n_training_envs: int,
        between_steps: Callable[[], None] = lambda: None,
    ) -> AnswerRecord:
        """Play the episodes that a question asks for. The learner's state is the same afterwards.

        Args:
            learner: Its greedy policy plays. It may be in the middle of a training round.
            env_step: Training env steps so far.
            question: An evaluation, or one episode.
            n_training_envs: Number of training environments. It gives the round and the environment of an episode.
            between_steps: Called before every environment step. An exception in it discards the answer.

        Returns:
            The answer. `again_of` is None, and the start is new, in two cases: the environment cannot repeat starts,
            or the training episode ran in an environment index that the evaluation does not have.
        """
        again_of = question.repeats_episode
        round_, env_index = divmod((again_of or 1) - 1, n_training_envs)
        if env_index >= self._env.n_envs or not self._env.info.repeats_starts:
            again_of = None
        with learner.temporary_hidden_state():
            if again_of is None:
                count = self._config.episodes if question.kind == "evaluate" else 1
                numbers = (question.number, env_step)
                episodes = play_greedily(self._question_collector, learner, numbers, count, between_steps)
            else:
                episodes = self._rollout_collector.collect(
                    learner, epsilon=0.0, round=(round_,), between_steps=between_steps
                )[env_index : env_index + 1]
        record = make_record(episodes, env_step, n_playbacks=max(1, self._config.keep_playbacks))
        return AnswerRecord(question.number, record, again_of=again_of)

    def _play_robust(self, learner: Learner, env_step: int, between_steps: Callable[[], None]) -> RobustRecord | None:
        if self._robust is None:
            return None
        episodes = play_greedily(self._robust, learner, (env_step,), self._config.episodes, between_steps)
        return RobustRecord(np.array([episode.won for episode in episodes], bool), count_distinct(episodes))

    def _compare_values(self, learner: Learner, episodes: list[Episode]) -> EvaluationStats:
        q_B = learner.q_start(
            np.stack([e.obs[0] for e in episodes]),
            np.stack([e.state[0] for e in episodes]),
            np.stack([e.avail[0] for e in episodes]),
        )
        return_B = np.array([discounted_returns(e.reward, self._gamma)[0] for e in episodes])
        q_start = float(np.asarray(q_B, np.float64).mean())
        return EvaluationStats(q_start=q_start, overestimation=q_start - float(return_B.mean()))
