"""Synthetic runs for benchmarks and tests: episodes of the size of 3s_vs_5z, temporary databases and long runs."""

import sqlite3
import tempfile
from collections.abc import Generator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
from sqlalchemy import insert, update

from emtc_core.metrics import METRICS
from emtc_core.recorder import EpisodeRecord
from storage.engine import Database, open_database
from storage.models import Run, TransitionSummary
from storage.runs.rows import sum_by_bucket
from tests.postgres import open_server, temporary_postgres_database

LENGTH, STATE_DIM, N_AGENTS = 150, 68, 3  # 3s_vs_5z
CONFIG = {"env": {"name": "skirmish", "map": "3s_vs_5z"}, "algo": "emtc-qplex", "seed": 1}
_CHUNK = 500_000


def make_records(count: int) -> list[EpisodeRecord]:
    """Make `count` consecutive episodes of the size of 3s_vs_5z, by repeating 50 different ones."""
    rng = np.random.default_rng(0)
    templates = [_make_record(rng) for _ in range(min(count, 50))]
    return [replace(templates[i % len(templates)], episode=i + 1, first_env_step=i * LENGTH + 1) for i in range(count)]


@contextmanager
def temporary_database() -> Generator[Database]:
    """Open a new SQLite database and delete it afterwards."""
    with (
        tempfile.TemporaryDirectory(prefix="emtc-bench-") as folder,
        opened_database(f"sqlite:///{Path(folder) / 'bench.db'}") as db,
    ):
        yield db


@contextmanager
def opened_database(url: str, *, create: bool = True) -> Generator[Database]:
    """Open a database and close it afterwards."""
    db = open_database(url, create=create)
    try:
        yield db
    finally:
        db.dispose()


@contextmanager
def temporary_server_database(*, fsync: bool) -> Generator[Database]:
    """Open a new database of a PostgreSQL server and drop it afterwards. See `open_server` for `fsync`."""
    with (
        open_server(fsync=fsync) as server_url,
        temporary_postgres_database(server_url) as url,
        opened_database(url) as db,
    ):
        yield db


def fill_transitions(db: Database, run_id: str, count: int) -> None:
    """Write `count` synthetic transitions and their summaries. This is faster than a recorder with trajectories."""
    rng = np.random.default_rng(0)
    for start in range(0, count, _CHUNK):
        n = min(_CHUNK, count - start)
        h, h_next, reward = rng.random((3, n))
        delta_mem = np.abs(reward + 0.99 * h_next - h)
        beta = np.exp(-(delta_mem**2) / 2)
        _insert_chunk(db.path, run_id, start, (reward, h, h_next, delta_mem, beta))
        names = [column.name for column in TransitionSummary.__table__.columns]
        sums = [
            dict(zip(names, (run_id, *row), strict=True))
            for row in sum_by_bucket(start + 1, delta_mem, beta, np.ones(n))
        ]
        with db.transaction() as connection:
            connection.execute(insert(TransitionSummary), sums)
            connection.execute(update(Run).where(Run.id == run_id).values(env_steps=start + n))


def insert_curves(connection: sqlite3.Connection, run_id: str, env_steps: int) -> None:
    """Write all metrics every 1,000 env steps, the gate's statistics every 5,000, and an evaluation every 10,000."""
    steps = range(1000, env_steps + 1, 1000)
    metrics = ((run_id, step, name, step / 7) for step in steps for name in METRICS)
    connection.executemany("INSERT INTO metrics (run_id, env_step, name, value) VALUES (?, ?, ?, ?)", metrics)
    n_columns = len(connection.execute("SELECT * FROM gate_stats").description)
    connection.executemany(
        f"INSERT INTO gate_stats VALUES ({', '.join('?' * n_columns)})",
        ((run_id, step, *[1.0] * (n_columns - 2)) for step in steps[::5]),
    )
    connection.executemany(
        "INSERT INTO evaluations (run_id, env_step, episodes, wins, win_rate, return_mean, return_std, length_mean) "
        "VALUES (?, ?, 16, 8, 0.5, 1.0, 0.1, 50.0)",
        ((run_id, step) for step in steps[::10]),
    )


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
        raise ValueError("fill_transitions needs a SQLite file")
    rows = zip(range(start + 1, start + len(columns[0]) + 1), *(column.tolist() for column in columns), strict=True)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA synchronous=OFF")
        connection.executemany(
            "INSERT INTO transitions (run_id, env_step, reward, h, h_next, delta_mem, beta, "
            "tau, episode, t, slot, next_slot) "
            f"VALUES ('{run_id}', ?, ?, ?, ?, ?, ?, 1.0, 1, 0, 1, 2)",
            rows,
        )
