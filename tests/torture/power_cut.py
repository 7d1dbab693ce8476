"""Power cuts: a trainer's machine loses its power at random instants, and the run is resumed from what the disk has.

A library (`power_cut.c`, compiled here) is loaded before the C library. At each sync it stores a copy of the file: this
is what the disk has. At an instant the trainer is suspended, and its folder and these copies are taken. Then:

- The write-ahead log has what the disk has, and of the later bytes those up to one place: none, up to the border of a
  frame, up to the middle of a frame, or all.
- Each page of the database file is the one on the disk or the newest.
- Any other file has what the disk has. If it was never synced, it is empty or complete.

A run with a named checkpoint must resume, and its rows must be equal to those of an unbroken run.

A PostgreSQL server syncs its own log, which cannot be cut from outside. `test_power_cut` stops a server at once whose
commits do not wait for its log.

    python -m tests.torture.power_cut --cuts 20
"""

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any, Final

import numpy as np
import psutil
from sqlalchemy import event
from sqlalchemy.pool import Pool

from app.bench import BenchResult, make_result
from app.bench.records import opened_database
from app.jobs.resume import examine_checkpoints
from emtc_core.errors import EmtcError, RunNotFoundError
from storage.engine import Database
from storage.runs.rows import find_run
from tests.report import add_json_option, limited, run_and_report
from tests.torture.c_library import compile_library, open_context
from tests.torture.crash_actions import ACTIONS, train_reference

CUTS: Final = 20
ENDS: Final = ("none", "border", "middle", "all")
"""How many of the bytes after the last sync of the log are on the disk."""
SOURCE: Final = Path(__file__).with_name("power_cut.c")
TIMEOUT_S: Final = 300.0
_LONGEST_WAIT_S: Final = 0.3
"""Longest time between two instants at random."""
_POLL_S: Final = 0.005
_LOG_HEADER, _FRAME_HEADER = 32, 24  # bytes
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


class Disk:
    """The files of a folder and what the disk has of them."""

    def __init__(self, parent: Path) -> None:
        """Use two new folders in `parent`."""
        self.folder, self._stored = parent / "here", parent / "disk"
        self.folder.mkdir()
        self._stored.mkdir()

    def fill(self, template: Path) -> None:
        """Empty the folder, then copy a template to it. The disk has all of it."""
        for place in (self.folder, self._stored):
            shutil.rmtree(place)
        shutil.copytree(template, self.folder)
        self._stored.mkdir()
        for file in self._list_files():
            shutil.copyfile(file, self._find_stored(file))

    def environment(self, library: Path) -> dict[str, str]:
        """Return the environment variables of the processes whose syncs are recorded."""
        folders = {"EMTC_POWER_CUT_FOLDER": str(self.folder), "EMTC_POWER_CUT_DISK": str(self._stored)}
        return {"LD_PRELOAD": str(library), **folders}

    def take(self, target: Path, end: str, rng: random.Random) -> None:
        """Copy to `target` what the disk may have after a power cut now. The processes must be suspended.

        Args:
            target: The new folder.
            end: One of ENDS.
            rng: Draws what the disk has of bytes that were not synced.
        """
        target.mkdir()
        for file in self._list_files():
            newest, place = file.read_bytes(), self._find_stored(file)
            stored = place.read_bytes() if place.exists() else None
            if file.suffix == ".db":
                content = _mix_pages(stored or b"", newest, rng)
            elif file.name.endswith("-wal"):
                content = _end_log(stored or b"", newest, end, rng)
            else:
                content = rng.choice([b"", newest]) if stored is None else stored
            copy = target / file.relative_to(self.folder)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(content)

    def _list_files(self) -> list[Path]:
        """List the files that a disk keeps. SQLite makes the index of its log anew."""
        return [file for file in self.folder.rglob("*") if file.is_file() and not file.name.endswith("-shm")]

    def _find_stored(self, file: Path) -> Path:
        return self._stored / str(file.stat().st_ino)


def run(*, cuts: int = CUTS, seed: int = 0) -> list[BenchResult]:
    """Measure `power_cut.cuts`, `.lost` and `.wrong`.

    Args:
        cuts: Number of power cuts.
        seed: Seed of the instants and of what the disk has of bytes that were not synced.

    Raises:
        ConfigError: If this is not Linux, or there is no C compiler.
    """
    with compile_library(SOURCE, "Power cuts") as library:
        outcome = cut_trainings(library, cuts=cuts, seed=seed)
    ends = ", ".join(f"{n} × {end}" for end, n in outcome.ends.items())
    done = f"bytes of the log after its last sync: {ends}; {outcome.resumed} with a checkpoint"
    lost, wrong = "; ".join(outcome.lost[:3]), "; ".join(outcome.wrong[:3])
    return [
        make_result("power_cut.cuts", outcome.ends.total(), "cuts", reference=done),
        make_result("power_cut.lost", len(outcome.lost), "runs", 0, lost or "every run with a checkpoint resumed"),
        make_result("power_cut.wrong", len(outcome.wrong), "runs", 0, wrong or "all rows are those of an unbroken run"),
    ]


def cut_trainings(library: Path, *, cuts: int, syncs: bool = True, seed: int = 0) -> CutOutcome:
    """Train until there were `cuts` power cuts, and resume after each.

    Args:
        library: The compiled `power_cut.c`.
        cuts: Number of power cuts.
        syncs: False plants a fault: the recorder does not sync.
        seed: As in `run`.
    """
    outcome, rng = CutOutcome(), random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="emtc-power-") as parent:
        disk, template = Disk(Path(parent)), Path(parent) / "template"
        with open_context(disk.environment(library)) as context:
            template.mkdir()
            _run_to_end(context, train_reference, template)
            while outcome.ends.total() < cuts:
                disk.fill(template)
                autocheckpoint = rng.choice(_AUTOCHECKPOINTS)
                trainer = context.Process(target=_train, args=(disk.folder, autocheckpoint, syncs))
                trainer.start()
                taken: list[tuple[Path, str]] = []
                while outcome.ends.total() < cuts and wait_for_instant(disk.folder, trainer.is_alive, rng):
                    end = ENDS[outcome.ends.total() % len(ENDS)]
                    outcome.ends[end] += 1
                    taken.append((Path(parent) / f"cut {outcome.ends.total()} ({end})", end))
                    with suspended(trainer.pid or 0):
                        disk.take(*taken[-1], rng)
                trainer.kill()
                trainer.join()
                for folder, _ in taken:  # without the trainer, because a run with a trainer cannot be resumed
                    _resume(context, folder, outcome)
                    shutil.rmtree(folder)
    return outcome


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


@contextmanager
def suspended(pid: int) -> Generator[None]:
    """Suspend all threads of a process during the block. A process that has ended is not an error."""
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        process.suspend()
        while process.status() not in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE):
            time.sleep(_POLL_S)
    try:
        yield
    finally:
        with suppress(psutil.NoSuchProcess):
            psutil.Process(pid).resume()


def find_lost(folder: Path) -> tuple[int, list[str]]:
    """Examine each run that has a checkpoint in a folder.

    Returns:
        Their number, and one sentence for each that cannot resume.
    """
    n = 0
    lost: list[str] = []
    with opened_database(f"sqlite:///{folder / 'x.db'}") as db:
        for run_folder in {file.parent for file in _list_named_checkpoints(folder)}:
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
    parser.add_argument("--seed", type=int, default=0, help="seed of the instants and of the disk (%(default)s)")
    add_json_option(parser)
    options = parser.parse_args(arguments)
    return run_and_report("power_cut", run, json=options.json, cuts=options.cuts, seed=options.seed)


def _train(folder: Path, autocheckpoint: int, syncs: bool) -> None:
    if not syncs:
        Database.sync = lambda self: None

    @event.listens_for(Pool, "connect")
    def _set_autocheckpoint(connection: Any, _record: object) -> None:
        connection.execute(f"PRAGMA wal_autocheckpoint={autocheckpoint}").close()

    ACTIONS["train"].run(folder)


def _run_to_end(context: ForkServerContext, step: Any, folder: Path) -> int:
    process = context.Process(target=step, args=(folder,))
    process.start()
    process.join(TIMEOUT_S)
    process.kill()
    process.join()
    return process.exitcode or 0


def _resume(context: ForkServerContext, folder: Path, outcome: CutOutcome) -> None:
    """Resume what a power cut left, and add what is lost or wrong to the outcome."""
    action = ACTIONS["train"]
    try:
        n, lost = find_lost(folder)
        outcome.resumed += n > 1  # one is the reference
        if lost:
            outcome.lost += [f"{folder.name}: {sentence}" for sentence in lost]
        elif code := _run_to_end(context, action.complete, folder):
            outcome.wrong.append(f"{folder.name}: the resumed run ended with {code}")
        elif wrong := action.find_wrong(folder):
            outcome.wrong.append(f"{folder.name}: {'; '.join(wrong[:3])}")
    except EmtcError as error:
        outcome.wrong.append(f"{folder.name}: {error}")


def _list_named_checkpoints(folder: Path) -> set[Path]:
    return set(folder.glob("x.files/*/checkpoint-*.pt"))


def _mix_pages(stored: bytes, newest: bytes, rng: random.Random) -> bytes:
    """Take each page of a database file from the disk or from the newest content."""
    size = int.from_bytes(newest[16:18], "big") or 4096
    pages = [rng.choice([stored, newest])[start : start + size] for start in range(0, len(newest), size)]
    return b"".join(page or bytes(size) for page in pages)


def _end_log(stored: bytes, newest: bytes, end: str, rng: random.Random) -> bytes:
    """Take the bytes of a log up to one place from the newest content, and later ones from the disk."""
    n = min(len(stored), len(newest))
    is_equal = np.frombuffer(stored[:n], np.uint8) == np.frombuffer(newest[:n], np.uint8)
    same = n if is_equal.all() else int(is_equal.argmin())
    size = int.from_bytes(newest[8:12], "big") + _FRAME_HEADER
    borders = [border for border in range(_LOG_HEADER, len(newest) + 1, size) if border > same]
    place = {
        "none": same,
        "border": rng.choice(borders or [same]),
        "middle": rng.randint(same, len(newest)) if len(newest) > same else same,
        "all": len(newest),
    }[end]
    return newest[:place] + stored[place:]


if __name__ == "__main__":
    sys.exit(main())
