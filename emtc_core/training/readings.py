"""Replay the recorded episodes of a run through other configurations of memory, embedder and gate ("readings").

Memory, embedder, gate and temperature depend only on the collected episodes. So the values that another configuration
would have computed from the same episodes can be computed afterwards. Learner and actor are not part of this: which
episodes another gate would have collected can only be found out by a new run.

Which readings share one memory: a gate does not affect what is written. So readings that differ only in `gate.*` and
`incentive.*` share one memory, one embedder with the same refit samples, and all embeddings. There is one exception:
under `lru_touch_on_read` the lookups of a gate affect which node a full memory evicts. So the eviction order of each
gate is tracked separately, and before the first eviction every reading gets its own copy of the memory with its own
order. Readings that differ in `memory.*` or `embed.*` share nothing but the episodes: merging determines the number of
nodes, hence the samples of a refit, hence all weights and embeddings after the first refit.
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
from emtc_core.gate.gate import GateValues, make_gate_law
from emtc_core.gate.temperature import Temperature
from emtc_core.gate_laws import unknown_context
from emtc_core.memory.memory import EpisodicMemory
from emtc_core.memory.nodes import Recall
from emtc_core.metrics import CLOSED_BELOW
from emtc_core.replay_buffer.buffer import ReplayBuffer
from emtc_core.rollout.episode import Episode, discounted_returns
from emtc_core.training.episode_gate import EpisodeGate
from emtc_core.training.episodic import EpisodicPart
from emtc_core.training.intervals import Interval

Values = NDArray[np.float64]
Slots = NDArray[np.int64]
BAND = (0.1, 0.9)
"""Quantiles of `ReadingPoint.delta_new` and `beta_new`."""
_GATE_KEYS = ("gate.", "incentive.", "preset")
"""Prefixes of settings that do not affect what is written to the memory."""


@dataclass(frozen=True)
class ReadingPoint:
    """Values of one reading over the transitions since the last point, and of its memory at this env step."""

    env_step: int
    tau: float  # [return]
    delta_new: tuple[float, float, float]  # mean, 10 % and 90 % quantile over the new transitions [return]
    beta_new: tuple[float, float, float]  # mean, 10 % and 90 % quantile over the new transitions [fraction]
    delta_links: float  # mean over the memory's links [return]; NaN without a link
    beta_links: float  # mean over the memory's links [fraction]; NaN without a link
    merge_rate: float  # fraction of the states written since the last point that merged into a node
    closed: float  # fraction of the new transitions with beta < CLOSED_BELOW
    size: int  # nodes


def replay_readings(
    configs: Sequence[RunConfig],
    info: EnvInfo,
    episodes: Iterable[Episode],
    *,
    points: int = 100,
    on_step: Callable[[int], None] = lambda _: None,
) -> list[list[ReadingPoint]]:
    """Write every episode and evaluate the gates of readings that share one memory, with refits as in training.

    Args:
        configs: The readings. Their `train.t_max` sets the distance of the points and the decay of tau.
        info: Sizes of the environment.
        episodes: The recorded episodes, in the order in which they were written to the memory.
        points: Approximate number of points per reading.
        on_step: Called with the env step after every episode.

    Returns:
        The points of each reading, in the order of `configs`.

    Raises:
        ValueError: If the readings write different memories.
    """
    if len(group_by_memory(configs)) != 1:
        raise ValueError("The configurations must write one memory: only gate.* and incentive.* may differ.")
    groups = [_MemoryGroup(configs, info, points)]
    for number, episode in enumerate(episodes, start=1):
        if len(groups) < len(configs) and groups[0].may_evict(episode):
            groups = groups[0].split()
        for group in groups:
            group.add(episode, number)
        on_step(groups[0].env_step)
    return [reading.points for group in groups for reading in group.readings]


def group_by_memory(configs: Sequence[RunConfig]) -> list[list[int]]:
    """Group readings that write the same memory (see the module); return their indices."""
    groups: dict[str, list[int]] = {}
    for index, config in enumerate(configs):
        settings = {key: value for key, value in flatten(config).items() if not key.startswith(_GATE_KEYS)}
        groups.setdefault(repr(sorted(settings.items())), []).append(index)
    return list(groups.values())


class _EvictionOrder:
    """A view of a shared memory for one gate. Tracks the eviction order that this gate alone would cause."""

    def __init__(self, memory: EpisodicMemory) -> None:
        self._memory = memory
        self._last_touch = np.zeros(0, np.int64)  # by slot: value of the counter at the last touch
        self._counter = 0

    def touch(self, slots: Slots) -> None:
        """Move slots to the newest end, one after the other; negative slots are skipped."""
        slots = slots[slots >= 0]
        if len(slots) and slots.max() >= len(self._last_touch):
            self._last_touch = np.pad(self._last_touch, (0, slots.max() + 1))
        self._last_touch[slots] = self._counter + np.arange(len(slots))
        self._counter += len(slots)

    def recall(self, slots: Slots) -> Recall:
        """Read nodes and touch them."""
        self.touch(slots.ravel())
        return self._memory.recall(slots)

    def successors(self, slots: Slots) -> Slots:
        """Follow the nodes' links."""
        return self._memory.successors(slots)

    def list_order(self) -> Slots:
        """List all slots, the next to be evicted first."""
        return np.argsort(self._last_touch[: self._memory.size])


class _Reading:
    """Gate, temperature and points of one reading."""

    def __init__(self, config: RunConfig, memory: EpisodicMemory, order: _EvictionOrder | None) -> None:
        self.config = config
        self.order = order
        self.points: list[ReadingPoint] = []
        self._gate = EpisodeGate(config, memory, readable=order)
        self._temperature = Temperature(config.gate, t_max=config.train.t_max)
        self._tau = 0.0
        self._gate_values: list[GateValues] = []

    @property
    def is_early(self) -> bool:
        return self._gate.is_early

    def with_memory(self, memory: EpisodicMemory) -> "_Reading":
        """Copy this reading for a memory that it does not share."""
        other = copy.copy(self)
        other.order = None
        other._gate = EpisodeGate(self.config, memory)
        return other

    def evaluate(self, episode: Episode, slots: Slots | None, env_step: int) -> None:
        self._tau = self._temperature.at(env_step)
        values = self._gate.evaluate(episode, slots, tau=self._tau)
        returns = discounted_returns(episode.reward, self.config.train.gamma)[:-1]
        self._temperature.observe(values.delta_mem, returns)
        self._gate_values.append(values)

    def add_point(self, env_step: int, error: Values, merge_rate: float, size: int) -> None:
        """Add a point; `error` is delta_mem along the memory's links, without NaN."""
        gate_values, self._gate_values = self._gate_values, []
        delta = np.concatenate([values.delta_mem for values in gate_values])
        beta = np.concatenate([values.beta for values in gate_values])
        beta_links = np.nan
        if len(error):
            law = make_gate_law(self.config.gate)
            beta_links = float(law.weigh(error, self._tau, unknown_context(error.shape)).mean())
        point = ReadingPoint(
            env_step=env_step,
            tau=self._tau,
            delta_new=_summarize(delta[np.isfinite(delta)]),
            beta_new=_summarize(beta),
            delta_links=float(error.mean()) if len(error) else np.nan,
            beta_links=beta_links,
            merge_rate=merge_rate,
            closed=float((beta < CLOSED_BELOW).mean()),
            size=size,
        )
        self.points.append(point)


class _MemoryGroup:
    """One memory with its embedder, and the readings that share it."""

    def __init__(self, configs: Sequence[RunConfig], info: EnvInfo, points: int) -> None:
        config = self._config = configs[0]
        self._info = info
        self._part = EpisodicPart(config, info, device=torch.device("cpu"))
        self._buffer = ReplayBuffer(1, info)  # stays empty: there is no learner
        self._refit = Interval(config.embed.interval)
        self._target = Interval(config.train.target_interval)
        self._point = Interval(max(1, config.train.t_max // points))
        self.env_step = 0
        memory = self._part.memory
        is_shared = len(configs) > 1
        self.readings = [_Reading(other, memory, _EvictionOrder(memory) if is_shared else None) for other in configs]

    def add(self, episode: Episode, number: int) -> None:
        """Write one episode, and evaluate the gate of each reading on it."""
        self.env_step += episode.length
        for reading in self.readings:
            if reading.is_early:
                reading.evaluate(episode, None, self.env_step)
        slots = self._part.write(episode, number)
        for reading in self.readings:
            if reading.order:
                reading.order.touch(slots[::-1])  # Algorithm 2 writes backwards
            if not reading.is_early:
                reading.evaluate(episode, slots, self.env_step)
        if self._target.start_if_due(number * self._config.train.updates_per_episode):
            self._part.on_target_update()
        if self._refit.start_if_due(self.env_step):
            self._part.refit(self._buffer)
        if self._point.start_if_due(self.env_step):
            error = self._part.memory.delta_mem()
            error = error[np.isfinite(error)]
            merge_rate = self._part.metrics()["memory/merge_rate"]
            for reading in self.readings:
                reading.add_point(self.env_step, error, merge_rate, self._part.memory.size)

    def may_evict(self, episode: Episode) -> bool:
        """Whether writing the episode could evict a node, in an order that depends on the gate's lookups."""
        memory = self._part.memory
        depends_on_lookups = memory.config.evict == "lru" and memory.config.lru_touch_on_read
        return depends_on_lookups and memory.size + len(episode.state) > memory.capacity

    def split(self) -> "list[_MemoryGroup]":
        """Copy this group for each reading, with the reading's eviction order."""
        groups: list[_MemoryGroup] = []
        for reading in self.readings:
            assert reading.order is not None
            state = self._part.get_state()
            state["memory"]["table"]["order"] = torch.from_numpy(reading.order.list_order())
            group = copy.copy(self)
            group._refit, group._target, group._point = map(copy.copy, (self._refit, self._target, self._point))
            group._part = EpisodicPart(reading.config, self._info, device=torch.device("cpu"))
            group._part.set_state(state)
            group.readings = [reading.with_memory(group._part.memory)]
            groups.append(group)
        return groups


def _summarize(values: Values) -> tuple[float, float, float]:
    """Return the mean and the quantiles `BAND`; NaN without values."""
    if not len(values):
        return (np.nan, np.nan, np.nan)
    low, high = np.quantile(values, BAND).tolist()
    return (float(values.mean()), low, high)
