"""One recorded stream of episodes, judged again under another reading of the paper.

Memory, embedder, gate and temperature of a run are pure functions of the episodes that it collected, so any
other configuration of them can be asked what it would have said to the same stream. Learner and actor are not
involved: what would have been collected under those other gates is another question, which only a run answers.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from emtc_core.config.run import RunConfig
from emtc_core.envs.base import EnvInfo
from emtc_core.episodic import EpisodicPart
from emtc_core.gate import GateVerdict
from emtc_core.replay_buffer import ReplayBuffer
from emtc_core.rollout.episode import Episode, discounted_returns
from emtc_core.schedules import Every
from emtc_core.temperature import Temperature

Values = NDArray[np.float64]
BAND = (0.1, 0.9)


@dataclass(frozen=True)
class ReadingPoint:
    """What one reading said since the last point, and of its memory at this moment."""

    env_step: int
    tau: float  # return units
    delta_new: tuple[float, float, float]  # mean, 10 % and 90 % quantile over the new transitions [return]
    beta_new: tuple[float, float, float]  # likewise [fraction]
    delta_links: float  # mean over the memory's links [return]; NaN without a link
    beta_links: float
    merge_rate: float  # of the states written since the last point
    closed: float  # share of the new transitions with beta < 0.5
    size: int  # nodes


def read_stream(
    config: RunConfig, info: EnvInfo, episodes: Iterable[Episode], *, points: int = 100
) -> list[ReadingPoint]:
    """Write and judge every episode in its order, refits and target updates falling due as in training.

    Args:
        config: The reading; its `train.t_max` spaces the points and cools tau.
        info: Sizes of the environment.
        episodes: The recorded stream, in the order in which it entered the memory.
        points: How many points the curves get, about.
    """
    stream = _Stream(config, info, points)
    for number, episode in enumerate(episodes, start=1):
        stream.take(episode, number)
    return stream.points


class _Stream:
    """The parts of one reading and its duties."""

    def __init__(self, config: RunConfig, info: EnvInfo, points: int) -> None:
        self._config = config
        self._part = EpisodicPart(config, info, device=torch.device("cpu"))
        self._buffer = ReplayBuffer(1, info)  # stays empty: nothing is learned
        self._temperature = Temperature(config.gate, t_max=config.train.t_max)
        self._refit = Every(config.embed.interval)
        self._target = Every(config.train.target_interval)
        self._point = Every(max(1, config.train.t_max // points))
        self._env_step = 0
        self._verdicts: list[GateVerdict] = []
        self.points: list[ReadingPoint] = []

    def take(self, episode: Episode, number: int) -> None:
        self._env_step += episode.length
        tau = self._temperature.at(self._env_step)
        verdict = self._part.absorb(episode, number=number, tau=tau).verdict
        assert verdict is not None
        returns = discounted_returns(episode.reward, self._config.train.gamma)[:-1]
        self._temperature.observe(verdict.delta_mem, returns)
        self._verdicts.append(verdict)
        if self._target.due(number * self._config.train.num_circle):
            self._part.on_target_update()
        if self._refit.due(self._env_step):
            self._part.refit(self._buffer)
        if self._point.due(self._env_step):
            self.points.append(self._measure(tau))

    def _measure(self, tau: float) -> ReadingPoint:
        verdicts, self._verdicts = self._verdicts, []
        delta = np.concatenate([verdict.delta_mem for verdict in verdicts])
        beta = np.concatenate([verdict.beta for verdict in verdicts])
        links = self._part.gate_stats(self._env_step, tau=tau)
        metrics = self._part.metrics()
        return ReadingPoint(
            env_step=self._env_step,
            tau=tau,
            delta_new=_describe(delta[np.isfinite(delta)]),
            beta_new=_describe(beta),
            delta_links=links.delta_mem_mean if links else np.nan,
            beta_links=links.beta_mean if links else np.nan,
            merge_rate=metrics["memory/merge_rate"],
            closed=float((beta < 0.5).mean()),
            size=self._part.memory.size,
        )


def _describe(values: Values) -> tuple[float, float, float]:
    if not len(values):
        return (np.nan, np.nan, np.nan)
    low, high = np.quantile(values, BAND).tolist()
    return (float(values.mean()), low, high)
