"""What a run tells the outside world: records, and the protocol that receives them.

The core knows no database. `storage.recording.writer.DatabaseRecorder` implements the protocol; the two below
serve tests and benchmarks. Everything observed goes one way: trainer → recorder.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Slots = NDArray[np.int64]


@dataclass(frozen=True)
class EpisodeRecord:
    """One training episode with its gate verdict. Its transitions are first_env_step … +length-1.

    Memory fields (slots, h, h_next) are None for an algorithm without a memory, gate fields (delta_mem, beta,
    tau) for one without a gate.
    A lookup that found nothing is NaN in `h`, `h_next` and `delta_mem` and -1 in `slots`.
    """

    episode: int  # 1, 2, 3…
    first_env_step: int  # counts from 1
    episode_return: float
    won: bool
    epsilon: float
    state: Floats  # [T+1, S]
    action: NDArray[np.int64]  # [T, N]
    reward: Floats  # [T] learner's unit
    slots: Slots | None = None  # [T+1]; -1 where nothing is stored
    h: NDArray[np.float64] | None = None  # [T]
    h_next: NDArray[np.float64] | None = None  # [T]; 0 at a terminal step
    delta_mem: NDArray[np.float64] | None = None  # [T]
    beta: NDArray[np.float64] | None = None  # [T]
    tau: float | None = None

    @property
    def length(self) -> int:
        """Number of transitions T."""
        return len(self.reward)


@dataclass(frozen=True)
class PlaybackRecord:
    """One greedy evaluation episode kept for the replay page."""

    state: Floats  # [T+1, S]
    action: NDArray[np.int64]  # [T, N]
    reward: Floats  # [T]
    episode_return: float
    won: bool


@dataclass(frozen=True)
class RobustRecord:
    """As many greedy episodes again at the same moment, from shifted starts."""

    won: NDArray[np.bool_]  # [E]
    distinct: int  # of them, that differ in actions or outcome


@dataclass(frozen=True)
class EvaluationRecord:
    """Greedy test episodes at one moment; returns and lengths per episode, in the environment's unit."""

    env_step: int
    returns: Floats  # [E]
    lengths: NDArray[np.int64]  # [E]
    won: NDArray[np.bool_]  # [E]
    playbacks: tuple[PlaybackRecord, ...] = ()
    distinct: int | None = None  # how many of its episodes differ in actions or outcome
    robust: RobustRecord | None = None  # where starts can be shifted

    @property
    def wins(self) -> int:
        """Episodes that were won."""
        return int(self.won.sum())

    @property
    def win_rate(self) -> float:
        """Share of them."""
        return self.wins / len(self.won)

    @property
    def return_mean(self) -> float:
        """Mean return [environment's unit]."""
        return float(np.mean(self.returns, dtype=np.float64))


@dataclass(frozen=True)
class AskedRecord:
    """What the greedy policy did when somebody asked; never part of a curve."""

    number: int  # of the question
    evaluation: EvaluationRecord  # of one episode where one was asked for
    again_of: int | None = None  # training episode whose start was repeated


@dataclass(frozen=True)
class GateStatsRecord:
    """Distribution of delta_mem and beta over the whole episodic memory at one moment.

    Quantiles are at `QUANTILES`.
    """

    env_step: int
    delta_mem_mean: float
    delta_mem_quantiles: tuple[float, ...]
    beta_mean: float
    beta_quantiles: tuple[float, ...]
    tau: float
    memory_size: int
    desirable_fraction: float


QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True)
class SnapshotRecord:
    """The episodic memory at one moment, one row per stored node [M]."""

    env_step: int
    slot: Slots
    embedding: Floats  # [M, 4]
    h: Floats
    xi: NDArray[np.bool_]
    n_call: NDArray[np.int32]
    n_xi: NDArray[np.int32]
    t: NDArray[np.int32]
    reward: Floats  # reward of the transition that last wrote the node; 0 at a terminal state
    idx_next: Slots  # -1: none
    episode: NDArray[np.int64]  # episode whose state stands in the node
    delta_mem: Floats  # along idx_next; NaN where there is no successor
    beta: Floats
    state_rows: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))  # stratified sample
    state: NDArray[np.float16] = field(default_factory=lambda: np.zeros((0, 0), np.float16))


class Recorder(Protocol):
    """Receives everything a run observes. May block when its queue is full; never drops."""

    def record_episode(self, record: EpisodeRecord) -> None:
        """Take one training episode."""

    def record_metrics(self, env_step: int, values: Mapping[str, float]) -> None:
        """Take numbers by their registered names."""

    def record_evaluation(self, record: EvaluationRecord) -> None:
        """Take an evaluation."""

    def record_asked(self, record: AskedRecord) -> None:
        """Take an answer."""

    def record_gate_stats(self, record: GateStatsRecord) -> None:
        """Take the gate's statistics."""

    def record_snapshot(self, record: SnapshotRecord) -> None:
        """Take a snapshot of the memory."""

    def flush(self) -> None:
        """Return when everything recorded so far is durable."""

    def close(self) -> None:
        """Flush and release; idempotent."""


class NullRecorder(Recorder):
    """Forgets everything; the baseline that telemetry is measured against."""


class ListRecorder(NullRecorder):
    """Keeps every record in memory, for tests."""

    def __init__(self) -> None:
        self.episodes: list[EpisodeRecord] = []
        self.metrics: list[tuple[int, dict[str, float]]] = []
        self.evaluations: list[EvaluationRecord] = []
        self.asked: list[AskedRecord] = []
        self.gate_stats: list[GateStatsRecord] = []
        self.snapshots: list[SnapshotRecord] = []

    def record_episode(self, record: EpisodeRecord) -> None:
        """Keep the episode."""
        self.episodes.append(record)

    def record_metrics(self, env_step: int, values: Mapping[str, float]) -> None:
        """Keep a copy of the values."""
        self.metrics.append((env_step, dict(values)))

    def record_evaluation(self, record: EvaluationRecord) -> None:
        """Keep the evaluation."""
        self.evaluations.append(record)

    def record_asked(self, record: AskedRecord) -> None:
        """Keep the answer."""
        self.asked.append(record)

    def record_gate_stats(self, record: GateStatsRecord) -> None:
        """Keep the statistics."""
        self.gate_stats.append(record)

    def record_snapshot(self, record: SnapshotRecord) -> None:
        """Keep the snapshot."""
        self.snapshots.append(record)
