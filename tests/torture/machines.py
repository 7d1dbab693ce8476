"""Simulated machines of a storm: workers with another host name and, on a server, a clock that is ten minutes wrong.

Each machine is a real `emtc worker` that claims runs of a sweep in the storm's database. A Linux namespace gives it
another host name. A library (`clock_skew.c`) that is loaded before the C library changes its clock. The clock of a
PostgreSQL server decides, so a wrong clock must have no effect. A SQLite file is used on one machine, so the clocks are
right there. The last machine loses its power repeatedly.
"""

import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from app.jobs.launch import LOG_NAME
from emtc_core.errors import ConfigError
from storage.engine import Database
from storage.files import run_folder
from storage.runs.claims import make_ownership_error
from storage.runs.sweeps import PlannedRun, get_sweep, save_sweep
from tests.torture.c_library import compile_library
from tests.torture.fleet import STOP_TIMEOUT_S, storm_config
from tests.torture.growth import Gauge

SKEWS_S = {"storm-fast": 600, "storm-slow": -600}
SWEEP = "5708a000"
RUNS_PER_MINUTE = 6
"""More runs than two workers can finish."""
SOURCE = Path(__file__).with_name("clock_skew.c")


@dataclass
class Machine:
    """A worker with a host name of SKEWS_S."""

    host: str
    skew_s: int
    """How far its clock is fast [s]."""
    command: list[str]
    library: Path
    """The compiled `clock_skew.c`. The worker's log is in the same folder."""
    process: subprocess.Popen[bytes] = field(init=False)

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Start the worker."""
        namespace = ["unshare", "--uts", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]
        command = [*namespace, "sh", "-c", f'hostname {self.host} && exec "$@"', "sh", *self.command]
        env = {**os.environ, "LD_PRELOAD": str(self.library), "EMTC_STORM_SKEW_S": str(self.skew_s)}
        with self.library.with_name(f"{self.host}.log").open("ab") as output:
            self.process = subprocess.Popen(command, env=env, stdout=output, stderr=output)

    def kill(self) -> None:
        """Kill the worker and its trainers at once, as in a power failure."""
        with suppress(psutil.NoSuchProcess):  # it has ended
            worker = psutil.Process(self.process.pid)
            for process in [worker, *worker.children(recursive=True)]:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        self.process.wait()

    def stop(self) -> None:
        """Stop the worker, so that it returns its run to the queue. Kill it after STOP_TIMEOUT_S."""
        self.process.terminate()
        try:
            self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()


class Machines:
    """All simulated machines of a storm and their sweep."""

    def __init__(self, db: Database, machines: list[Machine]) -> None:
        self._db, self._machines = db, machines

    def make_gauge(self) -> Gauge:
        """Return a gauge of the worker on the first machine, which is never killed."""
        return Gauge("worker", psutil.Process(self._machines[0].process.pid))

    def restart_ended(self) -> None:
        """Start each worker again that has ended."""
        for machine in self._machines:
            if machine.process.poll() is not None:
                machine.start()

    def inject_blackout(self) -> bool:
        """Kill all processes of the last machine."""
        self._machines[-1].kill()
        return True

    def stop(self) -> None:
        """Stop all workers."""
        for machine in self._machines:
            machine.stop()

    def summarize_sweep(self) -> str:
        """Write the number of machines, and the number of runs with each status."""
        counts = Counter(run.status for run in get_sweep(self._db, SWEEP).runs)
        return f"runs of {len(self._machines)} workers: {', '.join(f'{n} {s}' for s, n in sorted(counts.items()))}"

    def count_ownership_lost(self) -> int:
        """Count the trainers that ended because another machine had taken their run."""
        n_lost = 0
        for run in get_sweep(self._db, SWEEP).runs:
            log = run_folder(self._db, run.run_id) / LOG_NAME
            message = make_ownership_error(run.run_id).message
            n_lost += log.read_text(errors="replace").count(message) if log.is_file() else 0
        return n_lost


@contextmanager
def open_machines(db: Database, workers: int, minutes: float) -> Generator[Machines]:
    """Queue enough runs for a storm of `minutes` and start `workers` machines.

    Raises:
        ConfigError: If this is not Linux, or if a C compiler or `unshare` is missing.
    """
    if sys.platform != "linux" or shutil.which("cc") is None or shutil.which("unshare") is None:
        raise ConfigError("Workers with a wrong clock need Linux, a C compiler and unshare", hint="Or use --workers 0.")
    queue_runs(db, int(RUNS_PER_MINUTE * minutes) + len(SKEWS_S))
    worker = [sys.executable, "-m", "app.cli.main", "worker", "--db", db.url]
    with compile_library(SOURCE, "Workers with a wrong clock") as library:
        skews = SKEWS_S if db.dialect == "postgresql" else dict.fromkeys(SKEWS_S, 0)
        hosts = list(SKEWS_S)[:workers]
        machines = Machines(db, [Machine(host, skews[host], worker, library) for host in hosts])
        try:
            yield machines
        finally:
            machines.stop()


def queue_runs(db: Database, n: int) -> None:
    """Save a sweep of `n` runs with the storm's configuration."""
    config = storm_config()
    plan = [PlannedRun(f"storm{i}", f"storm {i}", config.model_dump(mode="json"), config.train.t_max) for i in range(n)]
    save_sweep(db, SWEEP, name="storm", plan={"runs": []}, runs=plan, versions={}, jobs=len(SKEWS_S))
