"""Records that a run writes, and the protocol of the recorder that receives them.

`storage.recording.writer.DatabaseRecorder` implements the protocol, so this package does not depend on a database.
`NullRecorder` and `ListRecorder` are for benchmarks and tests. Data flow in one direction: trainer → recorder.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Slots = NDArray[np.int64]

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Levels of the quantiles in `GateStatsRecord`."""


@dataclass(frozen=True)
class EpisodeRecord:
    """One training episode with its gate values. Its transitions have the env steps first_env_step … +length-1.

    Without a memory, slots, h and h_next are None. Without a gate, delta_mem, beta and tau are None.
    If a lookup found no node, `h`, `h_next` and `delta_mem` are NaN and `slots` is -1.

    Source: the values of Algorithm 3.
    """

    episode: int  # 1, 2, 3…
    first_env_step: int  # counts from 1
    episode_return: float
    won: bool
    epsilon: float
    state: Floats  # [T+1, S] [state features]
    action: NDArray[np.int64]  # [T, N] action indices
    reward: Floats  # [T] [reward], in the learner's unit
    slots: Slots | None = None  # [T+1] slot indices; -1 if the state is not stored
    h: NDArray[np.float64] | None = None  # [T] [return], in the learner's unit
    h_next: NDArray[np.float64] | None = None  # [T] [return], in the learner's unit; 0 at a terminal step
    delta_mem: NDArray[np.float64] | None = None  # [T] [return], in the learner's unit
    beta: NDArray[np.float64] | None = None  # [T] in [0, 1], dimensionless
    tau: float | None = None  # [return], in the learner's unit

    @property
    def length(self) -> int:
        """Number of transitions T."""
        return len(self.reward)


@dataclass(frozen=True)
class PlaybackRecord:
    """Trajectory of one greedy evaluation episode, for the replay page. Source: the environment."""

    state: Floats  # [T+1, S] [state features]
    action: NDArray[np.int64]  # [T, N] action indices
    reward: Floats  # [T] [reward]
    episode_return: float
    won: bool


@dataclass(frozen=True)
class RobustRecord:
    """The robust evaluation: E greedy episodes at the same env step, from shifted starts. Source: the environment."""

    won: NDArray[np.bool_]  # [E] boolean
    distinct: int  # number of episodes that differ in actions or outcome


@dataclass(frozen=True)
class EvaluationRecord:
    """E greedy evaluation episodes at one env step. Returns are in the environment's unit. Source: the environment."""

    env_step: int
    returns: Floats  # [E] [return]
    lengths: NDArray[np.int64]  # [E] [steps]
    won: NDArray[np.bool_]  # [E] boolean
    playbacks: tuple[PlaybackRecord, ...] = ()
    distinct: int | None = None  # number of episodes that differ in actions or outcome
    robust: RobustRecord | None = None  # None if starts cannot be shifted

    @property
    def wins(self) -> int:
        """Number of won episodes."""
        return int(self.won.sum())

    @property
    def win_rate(self) -> float:
        """Fraction of won episodes."""
        return self.wins / len(self.won)

    @property
    def return_mean(self) -> float:
        """Mean return [environment's unit]."""
        return float(np.mean(self.returns, dtype=np.float64))


@dataclass(frozen=True)
class AnswerRecord:
    """Answer to a question: greedy episodes that are not part of a curve."""

    number: int  # number of the question
    evaluation: EvaluationRecord  # one episode for a question of kind "play"
    again_of: int | None = None  # training episode whose start was repeated


@dataclass(frozen=True)
class GateStatsRecord:
    """Distribution of delta_mem and beta over the whole episodic memory at one env step; quantiles at `QUANTILES`.

    Without a gate the values of beta are NaN.
    """

    env_step: int
    delta_mem_mean: float
    delta_mem_quantiles: tuple[float, ...]
    beta_mean: float
    beta_quantiles: tuple[float, ...]
    tau: float
    memory_size: int
    desirable_fraction: float


@dataclass(frozen=True)
class SnapshotRecord:
    """The episodic memory at one env step, one row per stored node [M].

    Source: the nodes of Algorithm 2, with Eq. 7 and 8 along their links.
    """

    env_step: int
    slot: Slots  # [M] slot indices
    embedding: Floats  # [M, X] [embedding]
    h: Floats  # [M] [return], in the learner's unit
    xi: NDArray[np.bool_]  # [M] boolean, success flag
    n_call: NDArray[np.int32]  # [M] [visits]
    n_xi: NDArray[np.int32]  # [M] [visits] in successful trajectories
    t: NDArray[np.int32]  # [M] time step of the state [steps]
    reward: Floats  # [M] [reward] of the transition to idx_next; 0 at a terminal state
    idx_next: Slots  # [M] slot index of the successor; -1 without one
    episode: NDArray[np.int64]  # [M] episode of the node's state, dimensionless
    delta_mem: Floats  # [M] [return], between the node and its successor; NaN without one
    beta: Floats  # [M] dimensionless; NaN without a successor, and without a gate
    state_rows: NDArray[np.int64] = field(
        default_factory=lambda: np.zeros(0, np.int64)
    )  # [K] row indices of the nodes of `state`
    state: NDArray[np.float16] = field(
        default_factory=lambda: np.zeros((0, 0), np.float16)
    )  # [K, S] sampled states [state features]


class Recorder(Protocol):
    """Receives all records of a run. A call may block while the queue is full. No record is dropped."""

    def record_episode(self, record: EpisodeRecord) -> None:
        """Record one training episode."""

    def record_metrics(self, env_step: int, values: Mapping[str, float]) -> None:
        """Record metrics by their registered names."""

    def record_evaluation(self, record: EvaluationRecord) -> None:
        """Record an evaluation."""

    def record_answer(self, record: AnswerRecord) -> None:
        """Record the answer to a question."""

    def record_gate_stats(self, record: GateStatsRecord) -> None:
        """Record the statistics of the gate."""

    def record_snapshot(self, record: SnapshotRecord) -> None:
        """Record a snapshot of the memory."""

    def flush(self) -> None:
        """Return when all records so far are durable."""

    def close(self) -> None:
        """Flush, and release the resources. A second call does nothing."""


class NullRecorder(Recorder):
    """Drops all records: the baseline of the telemetry benchmark."""


class ListRecorder(NullRecorder):
    """Stores all records in lists, for tests."""

    def __init__(self) -> None:
        self.episodes: list[EpisodeRecord] = []
        self.metrics: list[tuple[int, dict[str, float]]] = []
        self.evaluations: list[EvaluationRecord] = []
        self.answers: list[AnswerRecord] = []
        self.gate_stats: list[GateStatsRecord] = []
        self.snapshots: list[SnapshotRecord] = []

    def record_episode(self, record: EpisodeRecord) -> None:
        """Append the episode."""
        self.episodes.append(record)

    def record_metrics(self, env_step: int, values: Mapping[str, float]) -> None:
        """Append a copy of the values."""
        self.metrics.append((env_step, dict(values)))

    def record_evaluation(self, record: EvaluationRecord) -> None:
        """Append the evaluation."""
        self.evaluations.append(record)

    def record_answer(self, record: AnswerRecord) -> None:
        """Append the answer."""
        self.answers.append(record)

    def record_gate_stats(self, record: GateStatsRecord) -> None:
        """Append the statistics."""
        self.gate_stats.append(record)

    def record_snapshot(self, record: SnapshotRecord) -> None:
        """Append the snapshot."""
        self.snapshots.append(record)
