"""Other machines in a storm: workers under host names of their own, one's clock ten minutes fast, the other's as slow.

Each is a real `emtc worker` that takes runs of a sweep on the storm's database. A namespace gives it another host name,
so that it cannot look for the others' processes and goes by their signs of life; a library that is loaded before the C
library (`clock_skew.c`, compiled here) sets its clock. One machine is struck again and again, the other lives on.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from app.bench.storms.bystanders import Gauge
from app.bench.storms.fleet import PATIENCE_S, storm_config
from app.jobs.launch import LOG_NAME
from emtc_core.errors import ConfigError
from storage.engine import Database
from storage.files.places import run_folder
from storage.runs.sweeps import PlannedRun, get_sweep, save_sweep

SKEWS_S = {"storm-fast": 600, "storm-slow": -600}
SWEEP = "5708a000"
RUNS_PER_MINUTE = 6
"""More than two workers finish."""
_SOURCE = Path(__file__).with_name("clock_skew.c")
_ROBBED = "this process must not write to it"
"""What a trainer says that lives and has lost its run to another machine."""


@dataclass
class Machine:
    """A worker under a host name of SKEWS_S, with the clock that goes with it."""

    host: str
    command: list[str]
    library: Path
    """`clock_skew.c`, compiled; the worker's words go into a log beside it."""
    process: subprocess.Popen[bytes] = field(init=False)

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Start its worker."""
        apart = ["unshare", "--uts", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]
        named = [*apart, "sh", "-c", f'hostname {self.host} && exec "$@"', "sh", *self.command]
        env = {**os.environ, "LD_PRELOAD": str(self.library), "EMTC_STORM_SKEW_S": str(SKEWS_S[self.host])}
        with self.library.with_name(f"{self.host}.log").open("ab") as output:
            self.process = subprocess.Popen(named, env=env, stdout=output, stderr=output)

    def kill(self) -> None:
        """Let the worker and its trainers die at once, as when the power fails."""
        with suppress(psutil.NoSuchProcess):  # it has ended
            worker = psutil.Process(self.process.pid)
            for process in [worker, *worker.children(recursive=True)]:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        self.process.wait()

    def stop(self) -> None:
        """Have it give its run back and leave."""
        self.process.terminate()
        try:
            self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.kill()


class Machines:
    """Workers whose clocks disagree, and the sweep that they work on."""

    def __init__(self, db: Database, machines: list[Machine]) -> None:
        self._db, self._machines = db, machines

    def gauge(self) -> Gauge:
        """Measure the first machine's worker, which lives on."""
        return Gauge("worker", psutil.Process(self._machines[0].process.pid))

    def tend(self) -> None:
        """Start a worker again that has ended."""
        for machine in self._machines:
            if machine.process.poll() is not None:
                machine.start()

    def strike(self) -> bool:
        """Let the power fail at the last machine."""
        self._machines[-1].kill()
        return True

    def stop(self) -> None:
        """Have all leave."""
        for machine in self._machines:
            machine.stop()

    def tell(self) -> dict[str, Any]:
        """Fill `machines`, how their runs stand, and `robbed`, how many living trainers found theirs in other hands."""
        runs = get_sweep(self._db, SWEEP).runs
        said = ", ".join(f"{n} {status}" for status, n in sorted(Counter(run.status for run in runs).items()))
        logs = [run_folder(self._db, run.run_id) / LOG_NAME for run in runs]
        robbed = sum(log.read_text(errors="replace").count(_ROBBED) for log in logs if log.is_file())
        return {"machines": f"runs of {len(self._machines)} workers: {said}", "robbed": robbed}


@contextmanager
def open_machines(db: Database, workers: int, minutes: float) -> Generator[Machines]:
    """Queue runs for a storm of so many minutes and start so many workers.

    Raises:
        ConfigError: Where this is not Linux, or a C compiler or `unshare` is missing.
    """
    compiler = shutil.which("cc")
    if sys.platform != "linux" or compiler is None or shutil.which("unshare") is None:
        raise ConfigError("Clocks that are off need Linux, a C compiler and unshare; --workers 0 goes without them")
    queue_runs(db, int(RUNS_PER_MINUTE * minutes) + len(SKEWS_S))
    worker = [sys.executable, "-m", "app.cli.main", "worker", "--db", db.url]
    with tempfile.TemporaryDirectory(prefix="emtc-skew-") as folder:
        library = compile_skew(compiler, Path(folder))
        machines = Machines(db, [Machine(host, worker, library) for host in list(SKEWS_S)[:workers]])
        try:
            yield machines
        finally:
            machines.stop()


def compile_skew(compiler: str, folder: Path) -> Path:
    """Compile the library that sets clocks off."""
    library = folder / "clock_skew.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", library, _SOURCE, "-ldl"], check=True)
    return library


def queue_runs(db: Database, n: int) -> None:
    """Plan the fleet's run so many times."""
    config = storm_config()
    plan = [PlannedRun(f"storm{i}", f"storm {i}", config.model_dump(mode="json"), config.train.t_max) for i in range(n)]
    save_sweep(db, SWEEP, name="storm", plan={"runs": []}, runs=plan, versions={}, jobs=len(SKEWS_S))
