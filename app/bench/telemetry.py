"""What does recording cost? Transitions per second, and how much slower a training loop becomes.

The loop is synthetic: each episode costs the NumPy work of a fast trainer, far faster than real ones, so
that the ratio is an upper bound of what a run pays.
"""

import time

import numpy as np

from app.bench import contention, postgres
from app.bench.records import CONFIG, LENGTH, Figure, make_records, temporary_database
from emtc_core.recorder import NullRecorder, Recorder
from storage.engine import Database, open_database
from storage.recording.recorder import DatabaseRecorder
from storage.runs.changes import create_run

_EPISODES = 3000
_LOOP_EPISODES = 10
_LOOP_SECONDS_PER_EPISODE = 0.15  # 1,000 env steps per second, five times what EMTC(QPLEX) reaches on CPU
_REPEATS = 7


def run() -> list[Figure]:
    """Measure `telemetry.transitions_per_second`, the same on PostgreSQL, and `telemetry.slowdown`."""
    with temporary_database() as db:
        rate = measure_rate(db)
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
        *(_postgres_figures() if postgres.is_reachable() else ()),
        *contention.figures(),
    ]


def measure_rate(db: Database) -> float:
    """Record episodes with trajectories as fast as the queue takes them, until all are stored."""
    recorder = DatabaseRecorder(db, create_run(db, CONFIG, target_steps=1, versions={}))
    records = make_records(_EPISODES)
    started = time.perf_counter()
    for record in records:
        recorder.record_episode(record)
    recorder.flush()
    seconds = time.perf_counter() - started
    recorder.close()
    return _EPISODES * LENGTH / seconds


def _postgres_figures() -> list[Figure]:
    with postgres.server(fsync=True) as server, postgres.made_database(server) as url:
        db = open_database(url)
        rate = measure_rate(db)
        db.dispose()
    return [
        {
            "name": "telemetry.transitions_per_second.postgresql",
            "value": rate,
            "unit": "transitions/s",
            "budget": None,
            "met": None,
            "reference": "a server on the same cores; its foreign keys are checked row by row",
        }
    ]


def measure_slowdown() -> float:
    """Divide the loop's wall time with a recorder by that without.

    Both are taken in turns and the shortest of each counts: what else the machine does only lengthens.
    """
    without, with_recorder = [], []
    rounds = calibrate_work(_LOOP_SECONDS_PER_EPISODE)
    for _ in range(_REPEATS):
        without.append(_time_loop(NullRecorder(), rounds))
        with temporary_database() as db:
            recorder = DatabaseRecorder(db, create_run(db, CONFIG, target_steps=1, versions={}))
            with_recorder.append(_time_loop(recorder, rounds))
            recorder.close()
    return min(with_recorder) / min(without)


def calibrate_work(seconds: float) -> int:
    """Find how many rounds of `_work` last that long."""
    started = time.perf_counter()
    _work(20)
    return max(1, round(20 * seconds / (time.perf_counter() - started)))


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
