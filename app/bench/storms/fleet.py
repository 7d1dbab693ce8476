"""The trainers that a storm hits, and what it does to them and their database, each blow at a moment that nobody chose.

Each does what a detached trainer does and is started again when it ends. They come out of a process that has loaded the
learner's libraries already, so that a storm kills trainers rather than imports; how a run fares that is killed while
its libraries load is a matter of the tests.
"""

import multiprocessing
import os
import random
import signal
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import MappingProxyType

import psutil
from sqlalchemy import text

from app.analysis.provenance import library_versions
from app.bench.records import is_private, outage
from app.jobs.launch import LOG_NAME
from app.jobs.resume import claim_to_resume, examine_checkpoints
from app.jobs.train_process import train_detached
from emtc_core.config.resolve import resolve
from emtc_core.config.run import RunConfig
from emtc_core.control import Command
from emtc_core.errors import RunStateError, StorageError
from storage.engine import Database
from storage.files.places import run_folder
from storage.private_files import make_private_folder, open_private_append
from storage.process_id import get_process_id
from storage.retry import retry_transient
from storage.runs.changes import create_run, start_again
from storage.runs.control import send_command
from storage.runs.lifecycle import State, make_owner, mark_launched
from storage.runs.rows import find_run

STEPS = 2500
PATIENCE_S = 120.0
SETTINGS = (
    "train.device=cpu", "train.threads=1", "train.burn_in=8", "train.batch=8", "train.replay=200", "eval.interval=1000",
    "eval.episodes=4", "checkpoint.interval=300", "embed.interval=1000", "embed.min_entries=64", "embed.batch=64",
    "memory.delta=0.02", "record.gate_interval=200",
)  # fmt: skip
"""Small enough that a run reaches its end, often enough at every duty that a blow may fall on any of them."""

LONGEST_LOCK_S, LONGEST_PAUSE_S, LONGEST_FULL_S, LONGEST_OUTAGE_S = 12.0, 5.0, 6.0, 20.0
FULL_AT_BYTES = 64 * 1024
"""How much a file may hold while the disk is full: every log, checkpoint and database outgrows it."""

_CHANCES = {
    "kill": 55,
    "terminate": 8,
    "stop": 8,
    "pause": 11,
    "lock": 6,
    "full": 6,
    "cut": 6,
    "outage": 3,
    "blackout": 3,
}


@dataclass
class Slot:
    """One place of the fleet: a run, and the process that trains it."""

    run_id: str
    process: ForkServerProcess

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid or 0


def storm_config(steps: int = STEPS) -> RunConfig:
    """Configure the run that every trainer makes: the same seed, so that all must record the same rows."""
    return resolve(env="skirmish", map="3m", algo="emtc-qplex", steps=steps, overrides=SETTINGS)


class Fleet:
    """So many trainers on one database, whatever happens to them."""

    def __init__(self, db: Database, trainers: int, *, steps: int = STEPS) -> None:
        self._db, self._config = db, storm_config(steps)
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["app.bench.storms.ready", "app.jobs.training"])
        self.resumed = self.started_again = 0
        self.failures: list[str] = []
        """What runs said that failed; a storm ends no run for good."""
        self._slots = [self._launch() for _ in range(trainers)]

    def list_running(self) -> list[Slot]:
        """List the trainers whose processes live."""
        return [slot for slot in self._slots if slot.process.is_alive()]

    def choose(self, rng: random.Random) -> Slot | None:
        """Draw a living trainer."""
        alive = self.list_running()
        return rng.choice(alive) if alive else None

    def tend(self) -> None:
        """Let every run whose trainer has ended go on, and a finished one make way for a new one."""
        for place, slot in enumerate(self._slots):
            if not slot.process.is_alive():
                slot.process.join()
                self._slots[place] = retry_transient(self._db, lambda run_id=slot.run_id: self._go_on(run_id))

    def stop(self) -> None:
        """Stop every trainer, as a signal does, and kill whoever does not come."""
        for slot in self.list_running():
            slot.process.terminate()
        for slot in self._slots:
            slot.process.join(PATIENCE_S)
            slot.process.kill()
            slot.process.join()

    def _launch(self) -> Slot:
        owner = make_owner()
        values = self._config.model_dump(mode="json")
        run_id = retry_transient(
            self._db,
            lambda: create_run(self._db, values, target_steps=self._config.train.t_max, versions={}, owner=owner),
        )
        return self._start(run_id, owner.token, resume=False)

    def _go_on(self, run_id: str) -> Slot:
        row = find_run(self._db, run_id)
        if row.state == State.FINISHED:
            return self._launch()
        if row.state == State.FAILED:
            self.failures.append(f"{run_id}: {row.error}")
        if examine_checkpoints(self._db, row).can_resume:
            token = claim_to_resume(self._db, run_id).token
            self.resumed += 1
            return self._start(run_id, token, resume=True)
        owner = make_owner()
        child = start_again(self._db, run_id, versions=library_versions(), owner=owner)
        self.started_again += 1
        return self._start(child, owner.token, resume=False)

    def _start(self, run_id: str, token: str, *, resume: bool) -> Slot:
        log = run_folder(self._db, run_id) / LOG_NAME
        process = self._context.Process(
            target=_train, args=(self._db.url, log, run_id), kwargs={"token": token, "resume": resume}
        )
        process.start()
        slot = Slot(run_id, process)
        with suppress(psutil.NoSuchProcess):  # it has ended already, and said how
            process_id = get_process_id(slot.pid)
            retry_transient(self._db, lambda: mark_launched(self._db, run_id, process_id, token=token))
        return slot


def _train(url: str, log: Path, run_id: str, *, token: str, resume: bool) -> None:
    """Be a detached trainer."""
    make_private_folder(log.parent)
    with open_private_append(log) as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    os.environ["EMTC_DB"] = url
    sys.exit(train_detached(url, run_id, announce=_write, token=token, resume=resume))


def _write(sentence: str) -> None:
    sys.stderr.write(f"{sentence}\n")


class Faults:
    """Draws one blow after another; those that last go on in threads of their own."""

    def __init__(
        self, db: Database, fleet: Fleet, *, seed: int, more: Mapping[str, Callable[[], bool]] = MappingProxyType({})
    ) -> None:
        self._db, self._fleet, self._rng = db, fleet, random.Random(seed)
        self.blows: Counter[str] = Counter()
        """How many of each kind fell."""
        self._threads = ThreadPoolExecutor(max_workers=16, thread_name_prefix="fault")
        self._lasting: list[Future[None]] = []
        self._acts: dict[str, Callable[[], bool]] = {
            "kill": self._kill, "terminate": self._terminate, "stop": self._stop, "pause": self._pause,
            "lock": self._lock, **more,
        }  # fmt: skip
        if hasattr(psutil.Process, "rlimit"):  # where the kernel can limit another process
            self._acts["full"] = self._full
        if db.dialect == "postgresql":
            self._acts["cut"] = self._cut
            if is_private(db.url):
                self._acts["outage"] = self._outage

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

    def _outage(self) -> bool:
        """Take the server down and wait for it: nobody can be looked after meanwhile, and trainers go on alone."""
        with outage(self._db.url):
            time.sleep(self._rng.uniform(1, LONGEST_OUTAGE_S))
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
