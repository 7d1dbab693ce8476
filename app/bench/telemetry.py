"""What does recording cost? Transitions per second, and how much slower a training loop becomes.

The loop is synthetic: each episode costs the NumPy work of a fast trainer, far faster than real ones, so
that the ratio is an upper bound of what a run pays.
"""

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from emtc_core.recorder import EpisodeRecord, NullRecorder, Recorder
from storage.engine import Database, open_database
from storage.recorder import DatabaseRecorder
from storage.runs import create_run

Figure = dict[str, object]

LENGTH, STATE_DIM, N_AGENTS = 150, 68, 3  # 3s_vs_5z
_EPISODES = 3000
_LOOP_EPISODES = 10
_LOOP_SECONDS_PER_EPISODE = 0.15  # 1,000 env steps per second, five times what EMTC(QPLEX) reaches on CPU
_REPEATS = 7
_CONFIG = {"env": {"name": "skirmish", "map": "3s_vs_5z"}, "algo": "emtc-qplex", "seed": 1}


def run() -> list[Figure]:
    """Measure `telemetry.transitions_per_second` and `telemetry.slowdown`."""
    rate = measure_rate()
    slowdown = measure_slowdown()
    return [
        {
            "name": "telemetry.transitions_per_second",
            "value": rate,
            "unit": "transitions/s",
            "budget": 150_000,
            "met": rate >= 150_000,
            "reference": "raw sqlite3 359K rows/s; SQLAlchemy inserts 65K; TensorBoard 14K scalars/s",
        },
        {
            "name": "telemetry.slowdown",
            "value": slowdown,
            "unit": "ratio of wall times",
            "budget": 1.03,
            "met": slowdown <= 1.03,
            "reference": "the same loop of 1,000 env steps/s without a recorder",
        },
    ]


def measure_rate() -> float:
    """Record episodes with trajectories as fast as the queue takes them, until all are stored."""
    with temporary_database() as db:
        recorder = DatabaseRecorder(db, create_run(db, _CONFIG, target_steps=1, versions={}))
        records = make_records(_EPISODES)
        started = time.perf_counter()
        for record in records:
            recorder.record_episode(record)
        recorder.flush()
        seconds = time.perf_counter() - started
        recorder.close()
    return _EPISODES * LENGTH / seconds


def measure_slowdown() -> float:
    """Divide the loop's wall time with a recorder by that without.

    Both are taken in turns and the shortest of each counts: what else the machine does only lengthens.
    """
    without, with_recorder = [], []
    rounds = calibrate_work(_LOOP_SECONDS_PER_EPISODE)
    for _ in range(_REPEATS):
        without.append(_time_loop(NullRecorder(), rounds))
        with temporary_database() as db:
            recorder = DatabaseRecorder(db, create_run(db, _CONFIG, target_steps=1, versions={}))
            with_recorder.append(_time_loop(recorder, rounds))
            recorder.close()
    return min(with_recorder) / min(without)


def make_records(count: int) -> list[EpisodeRecord]:
    """Make consecutive episodes of 3s_vs_5z size from 50 different ones."""
    rng = np.random.default_rng(0)
    kinds = [_make_record(rng) for _ in range(min(count, 50))]
    return [
        replace(kinds[place % len(kinds)], episode=place + 1, first_env_step=place * LENGTH + 1)
        for place in range(count)
    ]


def calibrate_work(seconds: float) -> int:
    """Find how many rounds of `_work` last that long."""
    started = time.perf_counter()
    _work(20)
    return max(1, round(20 * seconds / (time.perf_counter() - started)))


@contextmanager
def temporary_database() -> Iterator[Database]:
    """Open a database that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="emtc-bench-") as folder:
        db = open_database(f"sqlite:///{Path(folder) / 'bench.db'}")
        try:
            yield db
        finally:
            db.dispose()


def _make_record(rng: np.random.Generator) -> EpisodeRecord:
    walk = rng.normal(0, 0.02, (LENGTH + 1, STATE_DIM)).cumsum(axis=0)
    reward, h, h_next = rng.random(LENGTH, np.float32), rng.random(LENGTH), rng.random(LENGTH)
    delta_mem = np.abs(reward + 0.99 * h_next - h)
    return EpisodeRecord(
        episode=1,
        first_env_step=1,
        episode_return=float(reward.sum()),
        won=True,
        epsilon=0.1,
        state=np.clip(walk, -1, 1).astype(np.float32),
        action=rng.integers(0, 11, (LENGTH, N_AGENTS)),
        reward=reward,
        slots=np.arange(LENGTH + 1),
        h=h,
        h_next=h_next,
        delta_mem=delta_mem,
        beta=np.exp(-(delta_mem**2) / 2),
        tau=1.0,
    )


def _time_loop(recorder: Recorder, rounds: int) -> float:
    records = make_records(_LOOP_EPISODES)
    started = time.perf_counter()
    for record in records:
        _work(rounds)
        recorder.record_episode(record)
        recorder.record_metrics(record.first_env_step, {"train/loss": 1.0, "train/grad_norm": 1.0})
    return time.perf_counter() - started


def _work(rounds: int) -> None:
    """Matrix products of a learner's size between Python statements, as training does."""
    weights = np.ones((128, 128), np.float32)
    batch = np.ones((256, 128), np.float32)
    for _ in range(rounds):
        batch = np.tanh(batch @ weights * 0.01)
