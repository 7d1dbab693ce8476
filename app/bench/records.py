"""Made-up runs for the benchmarks: episodes of 3s_vs_5z size, databases that are gone afterwards, long runs.

What one tick of the Live page asks the database, beside 19 other long runs.
"""

import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
from sqlalchemy import insert, update

from app.bench import Figure, make_figure
from emtc_core.metrics import METRICS
from emtc_core.recorder import EpisodeRecord
from storage.engine import Database, open_database
from storage.models import Run, TransitionSummary
from storage.queries.curves import evaluations, metric, training_episodes
from storage.queries.gate import gate_stats
from storage.queries.runs import list_resumes
from storage.runs.changes import create_run
from storage.runs.control import command_log
from storage.runs.rows import find_run
from storage.runs.run_summary import summarize

LENGTH, STATE_DIM, N_AGENTS = 150, 68, 3  # 3s_vs_5z
CONFIG = {"env": {"name": "skirmish", "map": "3s_vs_5z"}, "algo": "emtc-qplex", "seed": 1}
_CHUNK = 500_000


def make_records(count: int) -> list[EpisodeRecord]:
    """Make consecutive episodes of 3s_vs_5z size from 50 different ones."""
    rng = np.random.default_rng(0)
    kinds = [_make_record(rng) for _ in range(min(count, 50))]
    return [
        replace(kinds[place % len(kinds)], episode=place + 1, first_env_step=place * LENGTH + 1)
        for place in range(count)
    ]


@contextmanager
def temporary_database() -> Generator[Database]:
    """Open a database that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="emtc-bench-") as folder:
        db = open_database(f"sqlite:///{Path(folder) / 'bench.db'}")
        try:
            yield db
        finally:
            db.dispose()


def median_ms(question: Callable[[], object], repeats: int) -> float:
    """Ask several times; a page asks the first time only once."""
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        question()
        times.append(1000 * (time.perf_counter() - started))
    return statistics.median(times)


def fill_transitions(db: Database, run_id: str, count: int) -> None:
    """Write made-up transitions and their sums, faster than a recorder that also packs trajectories."""
    rng = np.random.default_rng(0)
    for start in range(0, count, _CHUNK):
        n = min(_CHUNK, count - start)
        h, h_next, reward = rng.random((3, n))
        delta_mem = np.abs(reward + 0.99 * h_next - h)
        beta = np.exp(-(delta_mem**2) / 2)
        _insert_chunk(db.path, run_id, start, (reward, h, h_next, delta_mem, beta))
        names = [column.name for column in TransitionSummary.__table__.columns]
        sums = [
            dict(zip(names, (run_id, *row), strict=True)) for row in summarize(start + 1, delta_mem, beta, np.ones(n))
        ]
        with db.transaction() as connection:
            connection.execute(insert(TransitionSummary), sums)
            connection.execute(update(Run).where(Run.id == run_id).values(env_steps=start + n))


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


def _insert_chunk(path: Path | None, run_id: str, start: int, columns: tuple[np.ndarray, ...]) -> None:
    if path is None:
        raise ValueError("the benchmark fills a SQLite file")
    rows = zip(range(start + 1, start + len(columns[0]) + 1), *(column.tolist() for column in columns), strict=True)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA synchronous=OFF")
        connection.executemany(
            "INSERT INTO transitions (run_id, env_step, reward, h, h_next, delta_mem, beta, "
            "tau, episode, t, slot, next_slot) "
            f"VALUES ('{run_id}', ?, ?, ?, ?, ?, ?, 1.0, 1, 0, 1, 2)",
            rows,
        )


RUNS, TRANSITIONS = 20, 1_000_000
_REPEATS = 15
_FOLLOWED = ("train/loss", "train/q_taken", "time/env_steps_per_second")


def figures() -> list[Figure]:
    """Measure `queries.live_tick_ms` and `queries.live_open_ms`."""
    with temporary_database() as db:
        run_id = fill(db)
        size = f"{RUNS} runs of {TRANSITIONS:,} transitions in one database"
        tick = median_ms(lambda: live_tick(db, run_id, after=TRANSITIONS - 1000), _REPEATS)
        first = median_ms(lambda: live_tick(db, run_id, after=0), _REPEATS)
    return [
        make_figure("queries.live_tick_ms", tick, "ms", 50, f"a tick that brings new points; {size}"),
        make_figure("queries.live_open_ms", first, "ms", None, f"the first reading of every curve; {size}"),
    ]


def live_tick(db: Database, run_id: str, *, after: int) -> None:
    """Ask what the Live page asks when it ticks and has to redraw its charts."""
    find_run(db, run_id)
    command_log(db, run_id)
    list_resumes(db, run_id)
    evaluations(db, run_id, after=after)
    gate_stats(db, run_id, after=after)
    metric(db, run_id, _FOLLOWED, after=after)
    training_episodes(db, run_id, points=1000)


def fill(db: Database) -> str:
    """Make the runs, all alike; return the id of one in the middle."""
    runs = [create_run(db, CONFIG, target_steps=TRANSITIONS, versions={}) for _ in range(RUNS)]
    fill_transitions(db, runs[0], TRANSITIONS)
    if db.path is None:
        raise ValueError("the benchmark fills a SQLite file")
    with closing(sqlite3.connect(db.path)) as connection, connection:
        connection.execute("PRAGMA synchronous=OFF")
        _insert_curves(connection, runs[0])
        for run_id in runs[1:]:
            for table in ("transitions", "episodes", "metrics", "gate_stats", "evaluations"):
                _copy_rows(connection, table, runs[0], run_id)
        connection.execute("UPDATE runs SET env_steps = ?", (TRANSITIONS,))
    return runs[RUNS // 2]


def _insert_curves(connection: sqlite3.Connection, run_id: str) -> None:
    """Write every number each 1,000 env steps, and an episode each 50; what a real run of this length holds."""
    steps = range(1000, TRANSITIONS + 1, 1000)
    numbers = ((run_id, step, name, step / 7) for step in steps for name in METRICS)
    connection.executemany("INSERT INTO metrics (run_id, env_step, name, value) VALUES (?, ?, ?, ?)", numbers)
    connection.executemany(
        "INSERT INTO episodes VALUES (?, ?, ?, 50, 1.0, 1, 0.1, zeroblob(1000))",
        ((run_id, place + 1, 50 * place + 1) for place in range(TRANSITIONS // 50)),
    )
    marks = ", ".join("?" * len(connection.execute("SELECT * FROM gate_stats").description))
    width = marks.count("?") - 2
    connection.executemany(
        f"INSERT INTO gate_stats VALUES ({marks})", ((run_id, step, *[1.0] * width) for step in steps[::5])
    )
    connection.executemany(
        "INSERT INTO evaluations VALUES (?, ?, 16, 8, 0.5, 1.0, 0.1, 50.0, 12, 0.4, 16)",
        ((run_id, step) for step in steps[::10]),
    )


def _copy_rows(connection: sqlite3.Connection, table: str, source: str, target: str) -> None:
    names = [row[1] for row in connection.execute(f"PRAGMA table_info({table})") if row[1] != "run_id"]
    columns = ", ".join(f'"{name}"' for name in names)
    connection.execute(
        f"INSERT INTO {table} (run_id, {columns}) SELECT ?, {columns} FROM {table} WHERE run_id = ? ORDER BY 2, 3",
        (target, source),
    )
