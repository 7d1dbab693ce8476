"""The cost of recording: transitions per second, the slowdown of a training loop, and locks of a shared SQLite file.

The training loop is synthetic. It computes less per episode than a real trainer, so the measured slowdown is larger
than that of a run. Like a trainer, the loop computes with one thread. With two BLAS threads on two cores, both threads
wait while the recorder uses one of the cores: the ratio was 1.05 to 1.09 on some machines.

The ratio of wall times varies by several percent from run to run on a virtual machine. The CPU time of the recorder
does not, and it is an upper bound of the slowdown where all threads share one core.

The lock test runs four recorders and three readers with the queries of Live on one SQLite file. It counts "database is
locked" errors and warnings.
"""

import logging
import multiprocessing
import time
from dataclasses import dataclass, field, replace
from multiprocessing.queues import Queue

import torch

from emtc_core.errors import StorageError
from emtc_core.recorder import EpisodeRecord, NullRecorder, Recorder
from emtc_core.threads import configure_threads
from storage.engine import Database, open_database
from storage.queries.runs import list_runs
from storage.recording.writer import DatabaseRecorder
from storage.runs.changes import create_run
from tests.bench.live import query_live
from tests.postgres import is_server_available
from tests.records import CONFIG, LENGTH, make_records, temporary_database, temporary_server_database
from tests.report import BenchResult, make_result

WRITERS, READERS = 4, 3
STEPS_PER_SECOND = 1000
_READ_INTERVAL_S = 0.25  # Live refreshes every 2 s
_CONTENTION_S = 20.0
_BUDGET_PER_SECOND = 150_000
_EPISODES = 3000
_LOOP_EPISODES = 10
_LOOP_SECONDS_PER_EPISODE = 0.15  # 1,000 env steps per second, five times as fast as EMTC(QPLEX) on a CPU
_REPEATS = 10
_PACED_SECONDS = 10.0
_CPU_TIME_BUDGET = 0.03


@dataclass
class ContentionReport:
    """The number of transitions written and of Live refreshes, and the lock errors of one or several processes."""

    transitions: int = 0
    ticks: int = 0
    lock_errors: list[str] = field(default_factory=list)
    slowest_tick_ms: float = 0.0


def run() -> list[BenchResult]:
    """Measure `telemetry.transitions_per_second`, the same on PostgreSQL, `telemetry.slowdown` and locks."""
    with temporary_database() as db:
        rate = measure_rate(db)
    configure_threads()  # as in a trainer
    slowdown = measure_slowdown()
    cpu_time = measure_cpu_time()
    alternatives = "raw sqlite3 359K rows/s; SQLAlchemy inserts 65K; TensorBoard 14K scalars/s"
    loop = "the same loop of 1,000 env steps/s without a recorder"
    return [
        make_result("telemetry.transitions_per_second", rate, "transitions/s", _BUDGET_PER_SECOND, alternatives),
        make_result("telemetry.slowdown", slowdown, "ratio of wall times", 1.03, loop),
        make_result("telemetry.cpu_time", cpu_time, "CPU s per s", _CPU_TIME_BUDGET, "at 1,000 env steps/s"),
        *([_measure_postgres_rate()] if is_server_available() else []),
        *_measure_contention(),
    ]


def measure_rate(db: Database) -> float:
    """Record episodes with trajectories as fast as possible. Return the transitions per second until all are stored."""
    recorder = DatabaseRecorder(db, create_run(db, CONFIG, target_steps=1, versions={}))
    records = make_records(_EPISODES)
    started = time.perf_counter()
    for record in records:
        recorder.record_episode(record)
    recorder.flush()
    seconds = time.perf_counter() - started
    recorder.close()
    return _EPISODES * LENGTH / seconds


def _measure_postgres_rate() -> BenchResult:
    with temporary_server_database(fsync=True) as db:
        rate = measure_rate(db)
    name, reference = "telemetry.transitions_per_second.postgresql", "a server on the same cores"
    return make_result(name, rate, "transitions/s", _BUDGET_PER_SECOND, reference)


def measure_slowdown() -> float:
    """Return the ratio of the loop's wall times with and without a recorder.

    Both are measured alternately, and the minimum of each is used, because other load only increases the times.
    """
    without_recorder, with_recorder = [], []
    rounds = calibrate_work(_LOOP_SECONDS_PER_EPISODE)
    for _ in range(_REPEATS):
        without_recorder.append(_time_loop(NullRecorder(), rounds))
        with temporary_database() as db:
            recorder = DatabaseRecorder(db, create_run(db, CONFIG, target_steps=1, versions={}))
            with_recorder.append(_time_loop(recorder, rounds))
            recorder.close()
    return min(with_recorder) / min(without_recorder)


def measure_cpu_time() -> float:
    """Return the CPU time of recording per second of a training with STEPS_PER_SECOND, in all threads."""
    episodes = round(_PACED_SECONDS * STEPS_PER_SECOND / LENGTH)
    return (_time_paced_loop(episodes, record=True) - _time_paced_loop(episodes, record=False)) / _PACED_SECONDS


def _time_paced_loop(episodes: int, *, record: bool) -> float:
    """Record episodes at STEPS_PER_SECOND and sleep between them. Return the CPU time of this process [s]."""
    records = make_records(episodes)
    with temporary_database() as db:
        recorder: Recorder = NullRecorder()
        if record:
            recorder = DatabaseRecorder(db, create_run(db, CONFIG, target_steps=1, versions={}))
        started, used = time.monotonic(), time.process_time()
        for number, item in enumerate(records, start=1):
            _record(recorder, item)
            time.sleep(max(0.0, started + number * LENGTH / STEPS_PER_SECOND - time.monotonic()))
        used = time.process_time() - used
        recorder.close()
    return used


def calibrate_work(seconds: float) -> int:
    """Return the number of rounds of `_work` that take `seconds`."""
    _work(20)  # the first calls are slower
    started = time.perf_counter()
    _work(20)
    return max(1, round(20 * seconds / (time.perf_counter() - started)))


def _time_loop(recorder: Recorder, rounds: int) -> float:
    records = make_records(_LOOP_EPISODES)
    started = time.perf_counter()
    for record in records:
        _work(rounds)
        _record(recorder, record)
    return time.perf_counter() - started


def _record(recorder: Recorder, record: EpisodeRecord) -> None:
    """Record an episode and its metrics."""
    recorder.record_episode(record)
    recorder.record_metrics(record.first_env_step, {"train/loss": 1.0, "train/grad_norm": 1.0})


def _work(rounds: int) -> None:
    """Multiply matrices of a learner's size between Python statements, as a training does."""
    weights, batch = torch.ones(128, 128), torch.ones(256, 128)
    for _ in range(rounds):
        batch = torch.tanh(batch @ weights * 0.01)


def _measure_contention() -> list[BenchResult]:
    """Measure `telemetry.locked` and `telemetry.slowest_live_tick_ms`."""
    with temporary_database() as db:
        report = run_contention(db.url, seconds=_CONTENTION_S)
    load = f"{WRITERS} recorders of {STEPS_PER_SECOND:,} steps/s, {READERS} Live pages, {_CONTENTION_S:.0f} s"
    n_errors = len(report.lock_errors)
    return [
        make_result("telemetry.locked", n_errors, "errors and warnings", 0, f"{load}: {report.ticks} refreshes"),
        make_result("telemetry.slowest_live_tick_ms", report.slowest_tick_ms, "ms", None, load),
    ]


def run_contention(url: str, *, seconds: float) -> ContentionReport:
    """Run WRITERS recorders and READERS readers on one database for `seconds`, each in a separate process."""
    db = open_database(url)
    runs = [create_run(db, CONFIG, target_steps=10_000_000, versions={}) for _ in range(WRITERS)]
    db.dispose()
    context = multiprocessing.get_context("spawn")
    queue: Queue[ContentionReport] = context.Queue()
    tasks = [(_write, run_id) for run_id in runs] + [(_read, runs[i % WRITERS]) for i in range(READERS)]
    processes = [context.Process(target=task, args=(url, run_id, seconds, queue)) for task, run_id in tasks]
    for process in processes:
        process.start()
    reports = [queue.get(timeout=60 + 3 * seconds) for _ in processes]
    for process in processes:
        process.join()
    return ContentionReport(
        transitions=sum(report.transitions for report in reports),
        ticks=sum(report.ticks for report in reports),
        lock_errors=[error for report in reports for error in report.lock_errors],
        slowest_tick_ms=max(report.slowest_tick_ms for report in reports),
    )


def _write(url: str, run_id: str, seconds: float, queue: "Queue[ContentionReport]") -> None:
    """Record like a trainer at STEPS_PER_SECOND: episodes and their metrics."""
    report = ContentionReport()

    class WarningCounter(logging.Handler):
        """Collects the warnings that the recorder logs when it waits for a lock."""

        def emit(self, record: logging.LogRecord) -> None:
            report.lock_errors.append(record.getMessage())

    logging.getLogger("storage.recording.writer").addHandler(WarningCounter(logging.WARNING))
    db = open_database(url)
    recorder = DatabaseRecorder(db, run_id)
    templates = make_records(50)
    started = time.monotonic()
    while (elapsed := time.monotonic() - started) < seconds:
        if report.transitions > STEPS_PER_SECOND * elapsed:
            time.sleep(0.01)
            continue
        episode, first = report.transitions // LENGTH + 1, report.transitions + 1
        recorder.record_episode(replace(templates[episode % 50], episode=episode, first_env_step=first))
        report.transitions += LENGTH
        recorder.record_metrics(report.transitions, {"train/loss": 1.0, "time/env_steps_per_second": 1e3})
    recorder.close()
    db.dispose()
    queue.put(report)


def _read(url: str, run_id: str, seconds: float, queue: "Queue[ContentionReport]") -> None:
    """Run the queries of a Live page every _READ_INTERVAL_S."""
    report = ContentionReport()
    db = open_database(url)
    started = time.monotonic()
    while time.monotonic() - started < seconds:
        tick_started = time.monotonic()
        try:
            list_runs(db)
            query_live(db, run_id, after=0)
        except StorageError as error:
            report.lock_errors.append(str(error))
        report.slowest_tick_ms = max(report.slowest_tick_ms, 1e3 * (time.monotonic() - tick_started))
        report.ticks += 1
        time.sleep(_READ_INTERVAL_S)
    db.dispose()
    queue.put(report)
