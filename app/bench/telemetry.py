"""What does recording cost? Transitions per second, and how much slower a training loop becomes.

The loop is synthetic: each episode costs the NumPy work of a fast trainer, far faster than real ones, so
that the ratio is an upper bound of what a run pays.

Four trainers write and three Live pages read one SQLite file: is anybody ever told that it is locked?
"""

import logging
import multiprocessing
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from multiprocessing.queues import Queue

import numpy as np

from app.bench import Figure, make_figure
from app.bench import records as bench_records
from app.bench.live import live_tick
from app.bench.records import CONFIG, LENGTH, make_records, temporary_database
from emtc_core.errors import StorageError
from emtc_core.recorder import NullRecorder, Recorder
from storage.engine import Database, open_database
from storage.queries.runs import list_runs
from storage.recording.writer import DatabaseRecorder
from storage.runs.changes import create_run

WRITERS, READERS = 4, 3
STEPS_PER_SECOND = 1000
_TICK_S = 0.25
_SECONDS = 20.0


@dataclass
class Contention:
    """What writers and readers met."""

    transitions: int = 0
    ticks: int = 0
    complaints: list[str] = field(default_factory=list)
    slowest_tick_ms: float = 0.0


def figures() -> list[Figure]:
    """Measure `telemetry.locked` and `telemetry.slowest_live_tick_ms`."""
    with temporary_database() as db:
        met = contend(db.url, seconds=_SECONDS)
    load = f"{WRITERS} recorders of {STEPS_PER_SECOND:,} steps/s, {READERS} Live pages, {_SECONDS:.0f} s"
    complaints = len(met.complaints)
    return [
        make_figure("telemetry.locked", complaints, "complaints", 0, f"{load}: {met.ticks} ticks"),
        make_figure("telemetry.slowest_live_tick_ms", met.slowest_tick_ms, "ms", None, load),
    ]


def contend(url: str, *, seconds: float) -> Contention:
    """Let writers and readers, each a process of its own, work on one database for so long."""
    db = open_database(url)
    runs = [create_run(db, CONFIG, target_steps=10_000_000, versions={}) for _ in range(WRITERS)]
    db.dispose()
    context = multiprocessing.get_context("spawn")
    found: Queue[Contention] = context.Queue()
    work = [(_write, run_id) for run_id in runs] + [(_read, runs[place % WRITERS]) for place in range(READERS)]
    processes = [context.Process(target=act, args=(url, run_id, seconds, found)) for act, run_id in work]
    for process in processes:
        process.start()
    reports = [found.get(timeout=60 + 3 * seconds) for _ in processes]
    for process in processes:
        process.join()
    return Contention(
        transitions=sum(report.transitions for report in reports),
        ticks=sum(report.ticks for report in reports),
        complaints=[complaint for report in reports for complaint in report.complaints],
        slowest_tick_ms=max(report.slowest_tick_ms for report in reports),
    )


def _write(url: str, run_id: str, seconds: float, found: "Queue[Contention]") -> None:
    """Record like a trainer: an episode at a time, numbers once a second."""
    report = Contention()
    _listen(report.complaints.append)
    db = open_database(url)
    recorder = DatabaseRecorder(db, run_id)
    kinds = make_records(50)
    started = time.monotonic()
    while (elapsed := time.monotonic() - started) < seconds:
        if report.transitions > STEPS_PER_SECOND * elapsed:
            time.sleep(0.01)
            continue
        episode, first = report.transitions // LENGTH + 1, report.transitions + 1
        recorder.record_episode(replace(kinds[episode % 50], episode=episode, first_env_step=first))
        report.transitions += LENGTH
        recorder.record_metrics(report.transitions, {"train/loss": 1.0, "time/env_steps_per_second": 1e3})
    recorder.close()
    db.dispose()
    found.put(report)


def _read(url: str, run_id: str, seconds: float, found: "Queue[Contention]") -> None:
    """Ask what a Live page asks, eight times as often."""
    report = Contention()
    db = open_database(url)
    started = time.monotonic()
    while time.monotonic() - started < seconds:
        asked = time.monotonic()
        try:
            list_runs(db)
            live_tick(db, run_id, after=0)
        except StorageError as error:
            report.complaints.append(str(error))
        report.slowest_tick_ms = max(report.slowest_tick_ms, 1e3 * (time.monotonic() - asked))
        report.ticks += 1
        time.sleep(_TICK_S)
    db.dispose()
    found.put(report)


def _listen(tell: Callable[[str], None]) -> None:
    """A recorder that meets a lock waits, tries again and warns in its log."""

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            tell(record.getMessage())

    logging.getLogger("storage.recording.writer").addHandler(Ear(logging.WARNING))


_EPISODES = 3000
_LOOP_EPISODES = 10
_LOOP_SECONDS_PER_EPISODE = 0.15  # 1,000 env steps per second, five times what EMTC(QPLEX) reaches on CPU
_REPEATS = 7


def run() -> list[Figure]:
    """Measure `telemetry.transitions_per_second`, the same on PostgreSQL, and `telemetry.slowdown`."""
    with temporary_database() as db:
        rate = measure_rate(db)
    slowdown = measure_slowdown()
    tried = "raw sqlite3 359K rows/s; SQLAlchemy inserts 65K; TensorBoard 14K scalars/s"
    loop = "the same loop of 1,000 env steps/s without a recorder"
    return [
        make_figure("telemetry.transitions_per_second", rate, "transitions/s", 150_000, tried),
        make_figure("telemetry.slowdown", slowdown, "ratio of wall times", 1.03, loop),
        *(_postgres_figures() if bench_records.is_reachable() else ()),
        *figures(),
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
    here = bench_records
    with here.server(fsync=True) as server, here.made_database(server) as url, here.opened(url) as db:
        rate = measure_rate(db)
    reference = "a server on the same cores"
    return [make_figure("telemetry.transitions_per_second.postgresql", rate, "transitions/s", 150_000, reference)]


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
