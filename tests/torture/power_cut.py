"""Power cuts: a trainer's machine loses its power at random instants, and the run is resumed from what the disk has.

A library (`power_cut.c`, compiled here) is loaded before the C library. At each sync it stores a copy of the file: this
is what the disk has. At an instant the trainer, and its PostgreSQL server if it has one, are suspended. Their folders
and these copies are taken. Then:

- A write-ahead log has what the disk has, and of the later bytes those up to one place: none, up to the border of a
  frame or page, up to the middle of one, or all.
- Each page of a database file is the one on the disk or the newest.
- Any other file has what the disk has. If it was never synced, it is empty or complete.

A run with a named checkpoint must resume, and its rows must be equal to those of an unbroken run. A PostgreSQL server
recovers from its log first. Half of the servers have `synchronous_commit = off`, so that only the recorder's durable
commit before a checkpoint makes rows durable.

    python -m tests.torture.power_cut --cuts 20
    python -m tests.torture.power_cut --cuts 20 --engine postgresql
"""

import argparse
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any, Final, get_args

from sqlalchemy import event
from sqlalchemy.pool import Pool

from app.jobs.resume import examine_checkpoints
from emtc_core.errors import EmtcError, RunNotFoundError
from storage.engine import Database
from storage.runs.rows import find_run
from tests.records import opened_database
from tests.report import BenchResult, add_json_option, limited, make_result, run_and_report
from tests.torture.c_library import compile_library, open_context
from tests.torture.crash_actions import continue_training, find_wrong_training, train_new_run
from tests.torture.power_disk import ENDS, suspended
from tests.torture.power_machines import FILES, FILES_VARIABLE, Engine, Machine, make_machine

CUTS: Final = 20
SOURCE: Final = Path(__file__).with_name("power_cut.c")
TIMEOUT_S: Final = 300.0
_LONGEST_WAIT_S: Final = 0.3
"""Longest time between two instants at random."""
_POLL_S: Final = 0.005
_AUTOCHECKPOINTS: Final = (1000, 40)
"""After how many pages SQLite writes its log to the file: its default, and so often that instants fall into it."""


@dataclass
class CutOutcome:
    """The cuts and what was wrong after them."""

    ends: Counter[str] = field(default_factory=Counter[str])
    """Number of cuts by the end of the log."""
    lost: list[str] = field(default_factory=list[str])
    """One sentence for each run with a checkpoint that could not resume."""
    wrong: list[str] = field(default_factory=list[str])
    """One sentence for each run that resumed and whose rows are wrong."""
    resumed: int = 0
    """Number of cuts after which a run had a checkpoint."""


def run(*, engine: Engine = "sqlite", cuts: int = CUTS, seed: int = 0) -> list[BenchResult]:
    """Measure `power_cut.cuts`, `.lost` and `.wrong`.

    Args:
        engine: The database engine.
        cuts: Number of power cuts.
        seed: Seed of the instants and of what the disk has of bytes that were not synced.

    Raises:
        ConfigError: If this is not Linux, or there is no C compiler or no PostgreSQL server.
    """
    with compile_library(SOURCE, "Power cuts") as library:
        outcome = cut_trainings(library, engine=engine, cuts=cuts, seed=seed)
    ends = ", ".join(f"{n} × {end}" for end, n in outcome.ends.items())
    done = f"bytes of the log after its last sync: {ends}; {outcome.resumed} with a checkpoint"
    lost, wrong = "; ".join(outcome.lost[:3]), "; ".join(outcome.wrong[:3])
    return [
        make_result("power_cut.cuts", outcome.ends.total(), "cuts", reference=done),
        make_result("power_cut.lost", len(outcome.lost), "runs", 0, lost or "every run with a checkpoint resumed"),
        make_result("power_cut.wrong", len(outcome.wrong), "runs", 0, wrong or "all rows are those of an unbroken run"),
    ]


def cut_trainings(
    library: Path, *, engine: Engine = "sqlite", cuts: int, syncs: bool = True, seed: int = 0
) -> CutOutcome:
    """Train until there were `cuts` power cuts, and resume after each.

    Args:
        library: The compiled `power_cut.c`.
        engine: As in `run`.
        cuts: Number of power cuts.
        syncs: False plants a fault: no commit of the recorder or of a server waits for the disk.
        seed: As in `run`.
    """
    outcome, rng = CutOutcome(), random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="emtc-power-") as parent:
        machine = make_machine(engine, Path(parent), library, syncs=syncs)
        with open_context(machine.environment) as context:
            with machine.opened(machine.template) as url:
                _run_to_end(context, train_new_run, url, machine.template / FILES)
            while outcome.ends.total() < cuts:
                taken = _train_and_cut(machine, context, Path(parent), outcome, cuts=cuts, syncs=syncs, rng=rng)
                for folder in taken:  # without the trainer, because a run with a trainer cannot be resumed
                    _resume(machine, context, folder, outcome)
                    shutil.rmtree(folder)
    return outcome


def _train_and_cut(
    machine: Machine,
    context: ForkServerContext,
    parent: Path,
    outcome: CutOutcome,
    *,
    cuts: int,
    syncs: bool,
    rng: random.Random,
) -> list[Path]:
    """Train one run, and take the machine at instants up to its end. Return the folders."""
    taken: list[Path] = []
    with machine.started(rng) as url:
        arguments = (url, machine.files, rng.choice(_AUTOCHECKPOINTS), syncs)
        trainer = context.Process(target=_train, args=arguments)
        trainer.start()
        while outcome.ends.total() < cuts and wait_for_instant(machine.files, trainer.is_alive, rng):
            end = ENDS[outcome.ends.total() % len(ENDS)]
            outcome.ends[end] += 1
            taken.append(parent / f"cut-{outcome.ends.total()}-{end}")
            with suspended(*machine.list_servers(), trainer.pid or 0):
                machine.take(taken[-1], end, rng)
        trainer.kill()
        trainer.join()
    return taken


def wait_for_instant(folder: Path, is_alive: Callable[[], bool], rng: random.Random) -> bool:
    """Wait for a random time, or until the next checkpoint has its name. False if the process ended before."""
    before = _list_named_checkpoints(folder)
    is_random = rng.random() < 0.7
    deadline = time.monotonic() + (rng.uniform(0, _LONGEST_WAIT_S) if is_random else TIMEOUT_S)
    while time.monotonic() < deadline and is_alive():
        if not is_random and _list_named_checkpoints(folder) - before:
            break
        time.sleep(_POLL_S)
    return is_alive()


def find_lost(url: str, files: Path) -> tuple[int, list[str]]:
    """Examine each run that has a checkpoint in the folder of a trainer.

    Returns:
        Their number, and one sentence for each that cannot resume.
    """
    n = 0
    lost: list[str] = []
    with opened_database(url) as db:
        for run_folder in {file.parent for file in _list_named_checkpoints(files)}:
            n += 1
            try:
                row = find_run(db, run_folder.name)
            except RunNotFoundError as error:
                lost.append(str(error))
                continue
            status = examine_checkpoints(db, row)
            if status.usable is None:
                lost.append(f"{row.env_steps} rows: {status.reason}")
    return n, lost


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line, cut the power and print the results."""
    parser = argparse.ArgumentParser(prog="python -m tests.torture.power_cut", description=__doc__.partition("\n\n")[0])
    parser.add_argument(
        "--cuts",
        type=limited(int, 1, 10**6),
        default=CUTS,
        help="number of power cuts, each with a resume (%(default)s)",
    )
    parser.add_argument(
        "--engine", choices=get_args(Engine), default="sqlite", help="the database engine (%(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the instants and of the disk (%(default)s)")
    add_json_option(parser)
    options = parser.parse_args(arguments)
    return run_and_report(
        "power_cut", run, json=options.json, engine=options.engine, cuts=options.cuts, seed=options.seed
    )


def _train(url: str, files: Path, autocheckpoint: int, syncs: bool) -> None:
    if not syncs:
        transaction = Database.transaction
        Database.transaction = lambda self, *, durable=False: transaction(self)

    @event.listens_for(Pool, "connect")
    def _set_autocheckpoint(connection: Any, _record: object) -> None:
        if isinstance(connection, sqlite3.Connection):
            connection.execute(f"PRAGMA wal_autocheckpoint={autocheckpoint}").close()

    _run_with_files(train_new_run, url, files)


def _run_with_files(step: Callable[[str], None], url: str, files: Path) -> None:
    os.environ[FILES_VARIABLE] = str(files)
    step(url)


def _run_to_end(context: ForkServerContext, step: Callable[[str], None], url: str, files: Path) -> int:
    process = context.Process(target=_run_with_files, args=(step, url, files))
    process.start()
    process.join(TIMEOUT_S)
    process.kill()
    process.join()
    return process.exitcode or 0


def _resume(machine: Machine, context: ForkServerContext, folder: Path, outcome: CutOutcome) -> None:
    """Resume what a power cut left, and add what is lost or wrong to the outcome."""
    try:
        with machine.opened(folder) as url:
            n, lost = find_lost(url, folder / FILES)
            outcome.resumed += n > 1  # one is the reference
            if lost:
                outcome.lost += [f"{folder.name}: {sentence}" for sentence in lost]
            elif code := _run_to_end(context, continue_training, url, folder / FILES):
                outcome.wrong.append(f"{folder.name}: the resumed run ended with {code}")
            elif wrong := find_wrong_training(url):
                outcome.wrong.append(f"{folder.name}: {'; '.join(wrong[:3])}")
    except (EmtcError, subprocess.CalledProcessError) as error:  # the latter if the server cannot recover
        outcome.wrong.append(f"{folder.name}: {error}")


def _list_named_checkpoints(folder: Path) -> set[Path]:
    return set(folder.glob("*/*/checkpoint-*.pt"))


if __name__ == "__main__":
    sys.exit(main())
