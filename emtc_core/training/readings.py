"""One recorded stream of episodes, judged again under other readings of the paper.

Memory, embedder, gate and temperature of a run are pure functions of the episodes that it collected, so any
other configuration of them can be asked what it would have said to the same stream. Learner and actor are not
involved: what would have been collected under those other gates is another question, which only a run answers.

What readings may share without changing a number: nothing that a gate says decides what is written, so readings that
differ in `gate.*` and `incentive.*` alone write one memory, refit one embedder on the same samples and embed the
same states. There is one way back: under `lru_touch_on_read` a gate's lookups decide which node a full memory evicts.
So each gate's order of eviction is kept apart, and before the first eviction the readings part ways, each with its own
order. Readings that differ in `memory.*` or `embed.*` share nothing but the recording: who merged decides how many
nodes there are, hence which of them a refit draws, hence every weight and embedding after the first refit.
"""

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from emtc_core.config.resolve import flatten
from emtc_core.config.run import RunConfig
from emtc_core.envs.base import EnvInfo
from emtc_core.gate.gate import GateVerdict, Temperature
from emtc_core.gate.laws import make_gate_law, unknown_context
from emtc_core.memory.memory import EpisodicMemory
from emtc_core.memory.nodes import Recall
from emtc_core.metrics import CLOSED_BELOW
from emtc_core.replay_buffer.buffer import ReplayBuffer
from emtc_core.rollout.episode import Episode, discounted_returns
from emtc_core.schedules import Every
from emtc_core.training.episodic import EpisodicPart
from emtc_core.training.judge import Judge

Values = NDArray[np.float64]
Slots = NDArray[np.int64]
BAND = (0.1, 0.9)
_OF_THE_GATE = ("gate.", "incentive.", "preset")


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
    closed: float  # share of the new transitions with beta < CLOSED_BELOW
    size: int  # nodes


def read_together(
    configs: Sequence[RunConfig],
    info: EnvInfo,
    episodes: Iterable[Episode],
    *,
    points: int = 100,
    on_step: Callable[[int], None] = lambda _: None,
) -> list[list[ReadingPoint]]:
    """Write and judge every episode in its order by readings that write one memory, refits falling due as in training.

    Args:
        configs: The readings; their `train.t_max` spaces the points and cools tau.
        info: Sizes of the environment.
        episodes: The recorded stream, in the order in which it entered the memory.
        points: How many points the curves get, about.
        on_step: Hears every env step reached.

    Raises:
        ValueError: If they write different memories.
    """
    if len(find_shared(configs)) != 1:
        raise ValueError("readings that are judged together must write one memory")
    lanes = [_Lane(configs, info, points)]
    for number, episode in enumerate(episodes, start=1):
        if len(lanes) < len(configs) and lanes[0].may_evict(episode):
            lanes = lanes[0].part_ways()
        for lane in lanes:
            lane.take(episode, number)
        on_step(lanes[0].env_step)
    return [judged.points for lane in lanes for judged in lane.judged]


def find_shared(configs: Sequence[RunConfig]) -> list[list[int]]:
    """Group readings, by their places, that write one memory; see the module."""
    groups: dict[str, list[int]] = {}
    for place, config in enumerate(configs):
        kept = {key: value for key, value in flatten(config).items() if not key.startswith(_OF_THE_GATE)}
        groups.setdefault(repr(sorted(kept.items())), []).append(place)
    return list(groups.values())


class _Recency:
    """A memory as one gate reads it, with the order in which the nodes would leave had it been the only one."""

    def __init__(self, memory: EpisodicMemory) -> None:
        self._memory = memory
        self._last = np.zeros(0, np.int64)  # by slot: when it was touched last
        self._clock = 0

    def touch(self, slots: Slots) -> None:
        """Make slots the newest, one after the other; negative ones are skipped."""
        slots = slots[slots >= 0]
        if len(slots) and slots.max() >= len(self._last):
            self._last = np.pad(self._last, (0, slots.max() + 1))
        self._last[slots] = self._clock + np.arange(len(slots))
        self._clock += len(slots)

    def recall(self, slots: Slots) -> Recall:
        """Read nodes, which touches them."""
        self.touch(slots.ravel())
        return self._memory.recall(slots)

    def successors(self, slots: Slots) -> Slots:
        """Follow the nodes' links."""
        return self._memory.successors(slots)

    def list_order(self) -> Slots:
        """List all slots from the next to be evicted to the last."""
        return np.argsort(self._last[: self._memory.size])


class _Judged:
    """One reading's gate and temperature, and what it has said."""

    def __init__(self, config: RunConfig, memory: EpisodicMemory, recency: _Recency | None) -> None:
        self.config = config
        self.recency = recency
        self.points: list[ReadingPoint] = []
        self._judge = Judge(config, memory, readable=recency)
        self._temperature = Temperature(config.gate, t_max=config.train.t_max)
        self._tau = 0.0
        self._verdicts: list[GateVerdict] = []

    @property
    def is_early(self) -> bool:
        return self._judge.is_early

    def with_memory(self, memory: EpisodicMemory) -> "_Judged":
        """Go on over another memory, alone there."""
        other = copy.copy(self)
        other.recency = None
        other._judge = Judge(self.config, memory)
        return other

    def take(self, episode: Episode, slots: Slots | None, env_step: int) -> None:
        self._tau = self._temperature.at(env_step)
        verdict = self._judge.judge(episode, slots, tau=self._tau)
        returns = discounted_returns(episode.reward, self.config.train.gamma)[:-1]
        self._temperature.observe(verdict.delta_mem, returns)
        self._verdicts.append(verdict)

    def measure(self, env_step: int, error: Values, merge_rate: float, size: int) -> None:
        """Add a point; `error` is delta_mem along the memory's links, without NaN."""
        verdicts, self._verdicts = self._verdicts, []
        delta = np.concatenate([verdict.delta_mem for verdict in verdicts])
        beta = np.concatenate([verdict.beta for verdict in verdicts])
        point = ReadingPoint(
            env_step=env_step,
            tau=self._tau,
            delta_new=_describe(delta[np.isfinite(delta)]),
            beta_new=_describe(beta),
            delta_links=float(error.mean()) if len(error) else np.nan,
            beta_links=self._beta_of_links(error),
            merge_rate=merge_rate,
            closed=float((beta < CLOSED_BELOW).mean()),
            size=size,
        )
        self.points.append(point)

    def _beta_of_links(self, error: Values) -> float:
        if not len(error):
            return np.nan
        law = make_gate_law(self.config.gate)
        return float(law.coefficient(error, self._tau, unknown_context(error.shape)).mean())


class _Lane:
    """One memory with its embedder and duties, and the readings that write it alike."""

    def __init__(self, configs: Sequence[RunConfig], info: EnvInfo, points: int) -> None:
        config = self._config = configs[0]
        self._info = info
        self._part = EpisodicPart(config, info, device=torch.device("cpu"))
        self._buffer = ReplayBuffer(1, info)  # stays empty: nothing is learned
        self._refit = Every(config.embed.interval)
        self._target = Every(config.train.target_interval)
        self._point = Every(max(1, config.train.t_max // points))
        self.env_step = 0
        memory = self._part.memory
        shares = len(configs) > 1
        self.judged = [_Judged(each, memory, _Recency(memory) if shares else None) for each in configs]

    def take(self, episode: Episode, number: int) -> None:
        self.env_step += episode.length
        for judged in self.judged:
            if judged.is_early:
                judged.take(episode, None, self.env_step)
        slots = self._part.write(episode, number)
        for judged in self.judged:
            if judged.recency:
                judged.recency.touch(slots[::-1])  # as the walk of Algorithm 2 does
            if not judged.is_early:
                judged.take(episode, slots, self.env_step)
        if self._target.due(number * self._config.train.updates_per_episode):
            self._part.on_target_update()
        if self._refit.due(self.env_step):
            self._part.refit(self._buffer)
        if self._point.due(self.env_step):
            self._measure()

    def _measure(self) -> None:
        error = self._part.memory.delta_mem()
        error = error[np.isfinite(error)]
        merge_rate = self._part.metrics()["memory/merge_rate"]
        for judged in self.judged:
            judged.measure(self.env_step, error, merge_rate, self._part.memory.size)

    def may_evict(self, episode: Episode) -> bool:
        """Whether writing the episode could need the place of a node, in an order that lookups have a say in."""
        memory = self._part.memory
        is_said = memory.config.evict == "lru" and memory.config.lru_touch_on_read
        return is_said and memory.size + len(episode.state) > memory.capacity

    def part_ways(self) -> "list[_Lane]":
        """Give every reading a memory of its own that goes on as this one."""
        return [self._go_on_with(judged) for judged in self.judged]

    def _go_on_with(self, judged: _Judged) -> "_Lane":
        assert judged.recency is not None
        state = self._part.get_state()
        state["memory"]["table"]["order"] = torch.from_numpy(judged.recency.list_order())
        lane = copy.copy(self)
        lane._refit, lane._target, lane._point = map(copy.copy, (self._refit, self._target, self._point))
        lane._part = EpisodicPart(judged.config, self._info, device=torch.device("cpu"))
        lane._part.set_state(state)
        lane.judged = [judged.with_memory(lane._part.memory)]
        return lane


def _describe(values: Values) -> tuple[float, float, float]:
    if not len(values):
        return (np.nan, np.nan, np.nan)
    low, high = np.quantile(values, BAND).tolist()
    return (float(values.mean()), low, high)
