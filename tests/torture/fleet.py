"""The trainers of a storm, and the faults that are injected into them and their database at random times.

Each trainer does the same as a detached trainer and is restarted when it ends. Trainers are forked from a process that
has already loaded the learner's libraries, so that a kill hits a training and not an import. Kills during the import
are the subject of tests/process/test_early_death.py.
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
from app.jobs.launch import LOG_NAME
from app.jobs.resume import claim_to_resume, examine_checkpoints
from app.jobs.train_process import train_detached
from emtc_core.config.resolve import resolve
from emtc_core.config.run import RunConfig
from emtc_core.control import Command
from emtc_core.errors import RunStateError, StorageError
from storage.engine import Database
from storage.files import run_folder
from storage.private_files import make_private_folder, open_private_append
from storage.retry import retry_transient
from storage.runs.changes import create_run, start_again
from storage.runs.claims import make_token, return_to_queue
from storage.runs.control import send_command
from storage.runs.rows import find_run
from storage.runs.status import allows
from tests.postgres import is_private, outage

STEPS = 2500
STOP_TIMEOUT_S = 120.0
PRELOADED_MODULES = ["tests.torture.preload", "tests.torture.machines", "tests.report", "app.jobs.training"]
"""Imported once by the process from which trainers are forked."""
SETTINGS = (
    "train.device=cpu", "train.threads=1", "train.burn_in=8", "train.batch=8", "train.replay=200", "eval.interval=1000",
    "eval.episodes=4", "checkpoint.interval=300", "embed.interval=1000", "embed.min_entries=64", "embed.batch=64",
    "memory.delta=0.02", "record.gate_interval=200",
)  # fmt: skip
"""A run is short enough to finish, and evaluates, saves and refits often enough that a fault can hit each of these."""

MAX_LOCK_S, MAX_PAUSE_S, MAX_FULL_DISK_S, MAX_OUTAGE_S = 12.0, 5.0, 6.0, 20.0
MAX_RESUME_TRIES = 30
FULL_DISK_BYTES = 64 * 1024
"""Largest file size while the disk is full. Every log, checkpoint and database is larger."""

_WEIGHTS = {
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
class TrainerProcess:
    """A run and the process that trains it."""

    run_id: str
    token: str
    """Token by which the trainer owns the run."""
    process: ForkServerProcess

    @property
    def pid(self) -> int:
        """Return the process id."""
        return self.process.pid or 0


def storm_config(steps: int = STEPS) -> RunConfig:
    """Return the configuration of all runs. The seed is the same, so all runs must record the same rows."""
    return resolve(env="skirmish", map="3m", algo="emtc-qplex", steps=steps, overrides=SETTINGS)


class Fleet:
    """A constant number of trainers on one database."""

    def __init__(self, db: Database, trainers: int, *, steps: int = STEPS) -> None:
        self._db, self._config = db, storm_config(steps)
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(PRELOADED_MODULES)
        self.resumed = self.restarted = 0
        self.failures: list[str] = []
        """Run id and error of each failed run. A failed run is resumed or restarted."""
        self._trainers = [self._launch() for _ in range(trainers)]

    def list_running(self) -> list[TrainerProcess]:
        """List the trainers whose process is alive."""
        return [trainer for trainer in self._trainers if trainer.process.is_alive()]

    def choose(self, rng: random.Random) -> TrainerProcess | None:
        """Choose a random trainer that is alive."""
        running = self.list_running()
        return rng.choice(running) if running else None

    def restart_ended(self) -> None:
        """Resume each run whose trainer has ended, once it is lost. Replace a finished run by a new one."""
        for i, trainer in enumerate(self._trainers):
            if not trainer.process.is_alive():
                trainer.process.join()
                self._trainers[i] = retry_transient(self._db, lambda trainer=trainer: self._continue(trainer))

    def stop(self) -> None:
        """Send SIGTERM to all trainers. Kill those that have not ended after STOP_TIMEOUT_S."""
        for trainer in self.list_running():
            trainer.process.terminate()
        for trainer in self._trainers:
            trainer.process.join(STOP_TIMEOUT_S)
            trainer.process.kill()
            trainer.process.join()

    def _launch(self) -> TrainerProcess:
        token = make_token()
        values = self._config.model_dump(mode="json")
        run_id = retry_transient(
            self._db,
            lambda: create_run(self._db, values, target_steps=self._config.train.t_max, versions={}, token=token),
        )
        return self._start(run_id, token, resume=False)

    def _continue(self, trainer: TrainerProcess) -> TrainerProcess:
        run_id = trainer.run_id
        row = find_run(self._db, run_id)
        if row.status == "queued" and row.owner_token == trainer.token:  # its trainer was killed before it started
            return_to_queue(self._db, run_id, token=trainer.token, is_launcher=True)
            row = find_run(self._db, run_id)
        if row.live_status == "finished":
            return self._launch()
        if row.live_status == "failed":
            self.failures.append(f"{run_id}: {row.error}")
        if row.live_status != "queued" and not allows(row.live_status, "resume"):
            return trainer  # it is not lost yet
        can_resume = examine_checkpoints(self._db, row).can_resume
        try:
            if can_resume:
                token = claim_to_resume(self._db, run_id)
            else:
                token = make_token()
                run_id = start_again(self._db, run_id, versions=library_versions(), token=token)
        except RunStateError:
            return trainer  # a worker has claimed it meanwhile
        self.resumed += can_resume
        self.restarted += not can_resume
        return self._start(run_id, token, resume=can_resume)

    def _start(self, run_id: str, token: str, *, resume: bool) -> TrainerProcess:
        log = run_folder(self._db, run_id) / LOG_NAME
        process = self._context.Process(
            target=_train, args=(self._db.url, log, run_id), kwargs={"token": token, "resume": resume}
        )
        process.start()
        return TrainerProcess(run_id, token, process)


def _train(url: str, log: Path, run_id: str, *, token: str, resume: bool) -> None:
    """Train as a detached trainer, with stdout and stderr in the log."""
    make_private_folder(log.parent)
    with open_private_append(log) as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    os.environ["EMTC_DB"] = url

    def announce(line: str) -> None:
        sys.stderr.write(f"{line}\n")

    sys.exit(train_detached(url, run_id, announce=announce, token=token, resume=resume))


class FaultInjector:
    """Injects random faults. Faults with a duration run in threads."""

    def __init__(
        self, db: Database, fleet: Fleet, *, seed: int, more: Mapping[str, Callable[[], bool]] = MappingProxyType({})
    ) -> None:
        self._db, self._fleet, self._rng = db, fleet, random.Random(seed)
        self.counts: Counter[str] = Counter()
        """Number of injected faults of each kind."""
        self._threads = ThreadPoolExecutor(max_workers=16, thread_name_prefix="fault")
        self._running: list[Future[None]] = []
        self._faults: dict[str, Callable[[], bool]] = {
            "kill": lambda: self._signal(signal.SIGKILL),
            "terminate": lambda: self._signal(signal.SIGTERM),
            "stop": lambda: self._send(self._fleet.choose(self._rng), "stop"),
            "pause": self._pause,
            "lock": self._lock,
            **more,
        }
        if hasattr(psutil.Process, "rlimit"):  # the kernel can limit another process
            self._faults["full"] = self._fill_disk
        if db.dialect == "postgresql":
            self._faults["cut"] = self._cut
            if is_private(db.url):
                self._faults["outage"] = self._stop_server

    def inject(self) -> None:
        """Inject one random fault. It is counted only if there was a trainer to hit."""
        kinds = list(self._faults)
        kind = self._rng.choices(kinds, [_WEIGHTS[kind] for kind in kinds])[0]
        self.counts[kind] += self._faults[kind]()

    def wait(self) -> None:
        """Wait for the end of all faults with a duration."""
        for future in self._running:
            future.result()
        self._threads.shutdown()

    def _signal(self, number: int) -> bool:
        trainer = self._fleet.choose(self._rng)
        if trainer is None:
            return False
        with suppress(ProcessLookupError):
            os.kill(trainer.pid, number)
            return True
        return False

    def _pause(self) -> bool:
        trainer, seconds = self._fleet.choose(self._rng), self._rng.uniform(0, MAX_PAUSE_S)

        def resume_later() -> None:
            time.sleep(seconds)
            for _ in range(MAX_RESUME_TRIES):  # it may not have read the pause yet
                if self._send(trainer, "resume"):
                    return
                time.sleep(1)

        return self._send(trainer, "pause") and self._run_in_thread(resume_later)

    def _send(self, trainer: TrainerProcess | None, command: Command) -> bool:
        if trainer is None:
            return False
        try:
            retry_transient(self._db, lambda: send_command(self._db, trainer.run_id, command))
        except RunStateError:  # it has ended meanwhile
            return False
        return True

    def _lock(self) -> bool:
        seconds = self._rng.uniform(0.5, MAX_LOCK_S)

        def lock() -> None:
            with suppress(StorageError), lock_database(self._db):  # a cut connection ends the lock early
                time.sleep(seconds)

        return self._run_in_thread(lock)

    def _fill_disk(self) -> bool:
        seconds = self._rng.uniform(0.5, MAX_FULL_DISK_S)

        def fill() -> None:
            with full_disk(trainer.pid for trainer in self._fleet.list_running()):
                time.sleep(seconds)

        return self._run_in_thread(fill)

    def _cut(self) -> bool:
        with suppress(StorageError):
            cut_connections(self._db)
        return True

    def _stop_server(self) -> bool:
        """Stop the server and wait until it runs again. Meanwhile no ended trainer is restarted."""
        with outage(self._db.url):
            time.sleep(self._rng.uniform(1, MAX_OUTAGE_S))
        return True

    def _run_in_thread(self, function: Callable[[], None]) -> bool:
        self._running.append(self._threads.submit(function))
        return True


@contextmanager
def lock_database(db: Database) -> Generator[None]:
    """Block all other writers, as another program with a long transaction does."""
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
    """Limit the size of every file that these processes write. The kernel refuses more, as on a full disk."""
    limited: list[psutil.Process] = []
    for pid in pids:
        with suppress(psutil.Error, OSError):
            limited.append(psutil.Process(pid))
            _limit_file_size(limited[-1], FULL_DISK_BYTES)
    try:
        yield
    finally:
        for process in limited:
            with suppress(psutil.Error, OSError):  # killed meanwhile
                _limit_file_size(process, psutil.RLIM_INFINITY)


def _limit_file_size(process: psutil.Process, size_bytes: int) -> None:
    _, hard = process.rlimit(psutil.RLIMIT_FSIZE)
    process.rlimit(psutil.RLIMIT_FSIZE, (hard if size_bytes == psutil.RLIM_INFINITY else size_bytes, hard))


def cut_connections(db: Database) -> None:
    """Close all other connections to a PostgreSQL database, as a restart of the server or a firewall does."""
    with db.read() as connection:
        connection.execute(
            text(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        )
