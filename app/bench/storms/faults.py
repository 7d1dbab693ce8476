"""What a storm does to trainers and their database, each blow at a moment that nobody chose."""

import os
import random
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress

import psutil
from sqlalchemy import text

from app.bench.storms.fleet import Fleet, Slot
from emtc_core.control import Command
from emtc_core.errors import RunStateError, StorageError
from storage.engine import Database
from storage.retry import retry_transient
from storage.runs.control import send_command

LONGEST_LOCK_S, LONGEST_PAUSE_S, LONGEST_FULL_S = 12.0, 5.0, 6.0
FULL_AT_BYTES = 64 * 1024
"""How much a file may hold while the disk is full: every log, checkpoint and database outgrows it."""

_CHANCES = {"kill": 55, "terminate": 8, "stop": 8, "pause": 11, "lock": 6, "full": 6, "cut": 6}


class Faults:
    """Draws one blow after another; those that last go on in threads of their own."""

    def __init__(self, db: Database, fleet: Fleet, *, seed: int) -> None:
        self._db, self._fleet, self._rng = db, fleet, random.Random(seed)
        self.blows: Counter[str] = Counter()
        """How many of each kind fell."""
        self._threads = ThreadPoolExecutor(max_workers=16, thread_name_prefix="fault")
        self._lasting: list[Future[None]] = []
        self._acts: dict[str, Callable[[], bool]] = {
            "kill": self._kill, "terminate": self._terminate, "stop": self._stop, "pause": self._pause,
            "lock": self._lock,
        }  # fmt: skip
        if hasattr(psutil.Process, "rlimit"):  # where the kernel can limit another process
            self._acts["full"] = self._full
        if db.dialect == "postgresql":
            self._acts["cut"] = self._cut

    def strike(self) -> None:
        """Let one blow fall, if there is anybody to be hit."""
        kinds = list(self._acts)
        kind = self._rng.choices(kinds, [_CHANCES[kind] for kind in kinds])[0]
        self.blows[kind] += self._acts[kind]()

    def calm(self) -> None:
        """Wait for what lasts."""
        for lasting in self._lasting:
            lasting.result()
        self._threads.shutdown()

    def _kill(self) -> bool:
        return self._signal(signal.SIGKILL)

    def _terminate(self) -> bool:
        return self._signal(signal.SIGTERM)

    def _signal(self, number: int) -> bool:
        slot = self._fleet.choose(self._rng)
        if slot is None:
            return False
        with suppress(ProcessLookupError):
            os.kill(slot.pid, number)
            return True
        return False

    def _stop(self) -> bool:
        return self._ask(self._fleet.choose(self._rng), "stop")

    def _pause(self) -> bool:
        slot, seconds = self._fleet.choose(self._rng), self._rng.uniform(0, LONGEST_PAUSE_S)
        return self._ask(slot, "pause") and self._last(lambda: self._go_on_after(slot, seconds))

    def _go_on_after(self, slot: Slot | None, seconds: float) -> None:
        time.sleep(seconds)
        self._ask(slot, "resume")

    def _ask(self, slot: Slot | None, command: Command) -> bool:
        if slot is None:
            return False
        try:
            retry_transient(self._db, lambda: send_command(self._db, slot.run_id, command))
        except RunStateError:  # it has ended meanwhile
            return False
        return True

    def _lock(self) -> bool:
        seconds = self._rng.uniform(0.5, LONGEST_LOCK_S)

        def hold() -> None:
            with suppress(StorageError), hold_lock(self._db):  # a cut ends it early
                time.sleep(seconds)

        return self._last(hold)

    def _full(self) -> bool:
        seconds = self._rng.uniform(0.5, LONGEST_FULL_S)

        def fill() -> None:
            with full_disk(slot.pid for slot in self._fleet.list_running()):
                time.sleep(seconds)

        return self._last(fill)

    def _cut(self) -> bool:
        with suppress(StorageError):
            cut_connections(self._db)
        return True

    def _last(self, act: Callable[[], None]) -> bool:
        self._lasting.append(self._threads.submit(act))
        return True


@contextmanager
def hold_lock(db: Database) -> Generator[None]:
    """Keep every other writer out, as a careless second program does."""
    if db.path is None:
        with db.transaction() as connection:
            connection.execute(text("LOCK TABLE runs, episodes, transitions IN EXCLUSIVE MODE"))
            yield
        return
    with closing(sqlite3.connect(db.path, timeout=60, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")


@contextmanager
def full_disk(pids: Iterator[int]) -> Generator[None]:
    """Let no file of these processes grow beyond FULL_AT_BYTES: the kernel refuses it as it does on a full disk."""
    limited: list[psutil.Process] = []
    for pid in pids:
        with suppress(psutil.Error, OSError):
            limited.append(psutil.Process(pid))
            _limit(limited[-1], FULL_AT_BYTES)
    try:
        yield
    finally:
        for process in limited:
            with suppress(psutil.Error, OSError):  # killed meanwhile
                _limit(process, psutil.RLIM_INFINITY)


def _limit(process: psutil.Process, size_bytes: int) -> None:
    _, hard = process.rlimit(psutil.RLIMIT_FSIZE)
    process.rlimit(psutil.RLIMIT_FSIZE, (hard if size_bytes == psutil.RLIM_INFINITY else size_bytes, hard))


def cut_connections(db: Database) -> None:
    """End every other connection to a server's database, as its restart or a firewall does."""
    with db.read() as connection:
        connection.execute(
            text(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        )
