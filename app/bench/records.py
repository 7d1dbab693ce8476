"""Made-up runs for the benchmarks: episodes of 3s_vs_5z size, databases that are gone afterwards, long runs.

What one tick of the Live page asks the database, beside 19 other long runs. And a PostgreSQL server to measure and
test against: a given one, or a private one on a Unix socket.
"""

import os
import shlex
import shutil
import socket
import sqlite3
import statistics
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue

import numpy as np
from sqlalchemy import NullPool, create_engine, insert, make_url, text, update

from emtc_core.recorder import EpisodeRecord
from storage.engine import Database, open_database
from storage.models import Run, TransitionSummary
from storage.runs.rows import sum_by_bucket

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
    with (
        tempfile.TemporaryDirectory(prefix="emtc-bench-") as folder,
        opened(f"sqlite:///{Path(folder) / 'bench.db'}") as db,
    ):
        yield db


@contextmanager
def opened(url: str, *, create: bool = True) -> Generator[Database]:
    """Open a database and close it afterwards."""
    db = open_database(url, create=create)
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
            dict(zip(names, (run_id, *row), strict=True))
            for row in sum_by_bucket(start + 1, delta_mem, beta, np.ones(n))
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


GIVEN = "EMTC_TEST_POSTGRES"
_PREFIX = "emtc-pg-"


def find_server_binaries() -> Path | None:
    """Find the folder of `initdb` and `pg_ctl`, or None where no server is installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    on_path = shutil.which("initdb")
    return found[-1].parent if found else Path(on_path).parent if on_path else None


def is_reachable() -> bool:
    """Whether `server` has something to give."""
    return bool(os.environ.get(GIVEN)) or find_server_binaries() is not None


@contextmanager
def server(*, fsync: bool) -> Generator[str]:
    """Give the URL of a server's `postgres` database: the one in EMTC_TEST_POSTGRES, or a private one.

    Args:
        fsync: Whether a private server writes as durably as one in production; tests need not.
    """
    given = os.environ.get(GIVEN)
    if given:
        yield given
        return
    binaries = find_server_binaries()
    if binaries is None:
        raise FileNotFoundError(f"no PostgreSQL server is installed and {GIVEN} is unset")
    with _private_server(binaries, fsync=fsync) as url:
        yield url


@contextmanager
def _private_server(binaries: Path, *, fsync: bool) -> Generator[str]:
    place = Path(tempfile.mkdtemp(prefix=_PREFIX))
    if os.geteuid() == 0:
        shutil.chown(place, "postgres", "postgres")
    data = place / "data"
    _run(place, binaries / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync")
    options = f"-k {place} -c listen_addresses='' -c fsync={'on' if fsync else 'off'} -c max_connections=40"
    _start(place, binaries, options)
    try:
        yield f"postgresql+psycopg://postgres@/postgres?host={place}"
    finally:
        _stop(place, binaries)
        shutil.rmtree(place, ignore_errors=True)


@contextmanager
def far_away(url: str, *, delay_s: float) -> Generator[str]:
    """Give a URL that reaches a private server as over a network, on which a question and its answer take so long."""
    name = f"/.s.PGSQL.{make_url(url).port or 5432}"
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as folder, socket.socket(socket.AF_UNIX) as ear:
        ear.bind(f"{folder}{name}")
        ear.listen()
        threading.Thread(target=_pass_on, args=(ear, f"{_place_of(url)}{name}", delay_s / 2), daemon=True).start()
        yield make_url(url).update_query_dict({"host": folder}).render_as_string(hide_password=False)


def _pass_on(ear: socket.socket, place: str, delay_s: float) -> None:
    with suppress(OSError):  # whoever listened has gone
        while True:
            near = ear.accept()[0]
            far = socket.socket(socket.AF_UNIX)
            far.connect(place)
            for ends in ((near, far), (far, near)):
                threading.Thread(target=_carry, args=(*ends, delay_s), daemon=True).start()


def _carry(source: socket.socket, target: socket.socket, delay_s: float) -> None:
    """Carry bytes from one end to the other, each so much later than it came, however many are on the way."""
    on_the_way: SimpleQueue[tuple[float, bytes]] = SimpleQueue()
    threading.Thread(target=_deliver, args=(on_the_way, target), daemon=True).start()
    with suppress(OSError):
        while data := source.recv(1 << 16):
            on_the_way.put((time.monotonic() + delay_s, data))
    on_the_way.put((0.0, b""))


def _deliver(on_the_way: "SimpleQueue[tuple[float, bytes]]", target: socket.socket) -> None:
    with suppress(OSError):
        while (waiting := on_the_way.get())[1]:
            time.sleep(max(0.0, waiting[0] - time.monotonic()))
            target.sendall(waiting[1])
        target.shutdown(socket.SHUT_WR)


def is_private(url: str) -> bool:
    """Whether a URL leads to a server that `server` made, which may be taken down."""
    return _place_of(url).name.startswith(_PREFIX)


@contextmanager
def outage(url: str) -> Generator[None]:
    """Take a private server down at once, as a crash of its machine does, and bring it back."""
    binaries, place = find_server_binaries(), _place_of(url)
    if binaries is None or not is_private(url):
        raise ValueError(f"only a server that was made here is taken down, not {url}")
    options = shlex.split((place / "data" / "postmaster.opts").read_text())[3:]  # past the program, -D and its folder
    _stop(place, binaries)
    try:
        yield
    finally:
        _start(place, binaries, shlex.join(options))


def _place_of(url: str) -> Path:
    host = make_url(url).query.get("host", "")
    return Path(host if isinstance(host, str) else host[0])


def _start(place: Path, binaries: Path, options: str) -> None:
    _run(place, binaries / "pg_ctl", "-D", place / "data", "-w", "-o", options, "-l", place / "log", "start")


def _stop(place: Path, binaries: Path) -> None:
    _run(place, binaries / "pg_ctl", "-D", place / "data", "-w", "-m", "immediate", "stop")


def _run(place: Path, *command: str | Path) -> None:
    as_user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    subprocess.run([*as_user, *map(str, command)], check=True, stdout=subprocess.DEVNULL, cwd=place)


@contextmanager
def made_database(server_url: str, template: str = "template1") -> Generator[str]:
    """Make a database, give its URL, and drop it."""
    name = f"emtc_{uuid.uuid4().hex[:12]}"
    admin = create_engine(server_url, isolation_level="AUTOCOMMIT", poolclass=NullPool)  # an outage kills idle ones
    with admin.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name} TEMPLATE {template}"))
    yield admin.url.set(database=name).render_as_string(hide_password=False)
    with admin.connect() as connection:
        connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
    admin.dispose()
