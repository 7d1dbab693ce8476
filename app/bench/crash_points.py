"""Crash points: each act that writes is killed, torn, refused or delayed at one call to the system, then gone on with.

A library that is loaded before the C library (`storms/crash_point.c`, compiled here) counts the calls that change files
in one folder and does harm at one of them: writes, syncs, cuts, renames, links and removals of database, log,
checkpoints and copies, by Python, SQLite and PyTorch alike. After every single one the database is opened, what was
broken off is done once more as a person would, and every row is looked at.
"""

import ctypes
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Final

import numpy as np

from app.bench import Figure, make_figure
from app.bench.storms.crash_acts import ACTS, Act, train_reference
from emtc_core.errors import ConfigError, EmtcError

POINTS: Final = 24
HARMS: Final = {"kill": 1, "tear": 2, "input/output error": 3, "no space": 4, "delay": 5}
SOURCE: Final = Path(__file__).parent / "storms" / "crash_point.c"
PATIENCE_S: Final = 300.0
_REFUSED, _FAULT = 3, 4
_BEYOND: Final = 1 << 60


@dataclass
class Toll:
    """What was tried on one act, and what it cost."""

    calls: int
    """That change files, while it was done undisturbed."""
    tried: Counter[str] = field(default_factory=Counter[str])
    wrong: list[str] = field(default_factory=list[str])


def run(*, points: int = POINTS) -> list[Figure]:
    """Measure `crash_points.ACT.tried` and `.wrong` for each act.

    Args:
        points: Calls at which each act is harmed, spread over all of them; the harms take turns. 0: at every call.

    Raises:
        ConfigError: Where this is not Linux, or there is no C compiler.
    """
    with crash_library() as library:
        tolls = {name: try_act(name, library, points=points) for name in ACTS}
    return [figure for name, toll in tolls.items() for figure in _figures(name, toll)]


def _figures(name: str, toll: Toll) -> Iterator[Figure]:
    harms = ", ".join(f"{n} × {harm}" for harm, n in toll.tried.items())
    tried = f"of {toll.calls} calls that change files: {harms}"
    wrong = "; ".join(toll.wrong[:3]) or "every row looked at, nothing lost"
    yield make_figure(f"crash_points.{name}.tried", toll.tried.total(), "points", reference=tried)
    yield make_figure(f"crash_points.{name}.wrong", len(toll.wrong), "points", 0, wrong)


@contextmanager
def crash_library() -> Generator[Path]:
    """Compile the library that does harm.

    Raises:
        ConfigError: Where this is not Linux, or there is no C compiler.
    """
    compiler = shutil.which("cc")
    if sys.platform != "linux" or compiler is None:
        raise ConfigError("Crash points need Linux and a C compiler, cc", hint="Install one, e.g. the package gcc.")
    with tempfile.TemporaryDirectory(prefix="emtc-crash-") as folder:
        library = Path(folder) / "crash_point.so"
        subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", library, SOURCE, "-ldl"], check=True)
        yield library


def try_act(name: str, library: Path, *, points: int) -> Toll:
    """Harm one act at some calls, one after the other, each in a fresh copy of what it was prepared with."""
    act = ACTS[name]
    with tempfile.TemporaryDirectory(prefix="emtc-crash-") as room, _processes(library) as context:
        template, folder = Path(room) / "template", Path(room) / "here"
        folder.mkdir()
        _do(context, train_reference, folder)
        _do(context, act.prepare, folder)
        folder.rename(template)
        toll = Toll(_count(context, act, template, folder))
        for point, harm in zip(choose(toll.calls, points), cycle(HARMS), strict=False):
            shutil.copytree(template, folder)
            if wrong := _harm(context, act, folder, point, HARMS[harm]):
                toll.wrong.append(f"{harm} at call {point}: {wrong}")
            toll.tried[harm] += 1
            shutil.rmtree(folder)
    return toll


def choose(calls: int, points: int) -> list[int]:
    """Calls from 1 to `calls`, evenly spread with both ends among them; all where `points` is 0 or no fewer."""
    if points == 0 or points >= calls:
        return list(range(1, calls + 1))
    return sorted({int(place) for place in np.linspace(1, calls, points).round()})


@contextmanager
def _processes(library: Path) -> Generator[ForkServerContext]:
    """Processes that begin with the learner's libraries and the harmful one loaded."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["app.bench.storms.ready", "app.jobs.training"])
    before = os.environ.get("LD_PRELOAD")
    os.environ["LD_PRELOAD"] = " ".join([str(library), *([before] if before else [])])
    try:
        yield context
    finally:
        if before is None:
            del os.environ["LD_PRELOAD"]
        else:
            os.environ["LD_PRELOAD"] = before


def _count(context: ForkServerContext, act: Act, template: Path, folder: Path) -> int:
    shutil.copytree(template, folder)
    told = folder.with_name("calls")
    _do(context, act.do, folder, harm=(_BEYOND, 0), told=told)
    if wrong := _look(act, folder):
        raise AssertionError(f"undisturbed, too: {wrong}")
    shutil.rmtree(folder)
    return int(told.read_text())


def _harm(context: ForkServerContext, act: Act, folder: Path, point: int, harm: int) -> str:
    """Do it with harm, then go on; what is wrong afterwards, or nothing."""
    code = _do(context, act.do, folder, harm=(point, harm), strict=False)
    if code == _FAULT:
        return "it ended with a fault of the program, not with a sentence"
    if code and _do(context, act.go_on, folder, strict=False):
        return "it could not be gone on with"
    return _look(act, folder)


def _look(act: Act, folder: Path) -> str:
    try:
        return "; ".join(act.find_wrong(folder)[:3])
    except EmtcError as error:
        return str(error)


def _do(
    context: ForkServerContext,
    do: object,
    folder: Path,
    *,
    harm: tuple[int, int] | None = None,
    told: Path | None = None,
    strict: bool = True,
) -> int:
    """Do something in a process of its own.

    Returns:
        Its exit code: 0, that of a refusal in a sentence, that of a fault, or below 0 where it was killed.
    """
    process = context.Process(target=_child, args=(do, folder, harm, told))
    process.start()
    process.join(PATIENCE_S)
    process.kill()
    process.join()
    if strict and process.exitcode:
        raise AssertionError(f"{do} ended with {process.exitcode}")
    return process.exitcode or 0


def _child(do: object, folder: Path, harm: tuple[int, int] | None, told: Path | None) -> None:
    assert callable(do)
    library = ctypes.CDLL(None)
    if harm:
        library.crash_arm(str(folder).encode(), ctypes.c_long(harm[0]), harm[1])
    code = 0
    try:
        do(folder)
    except EmtcError as error:
        sys.stderr.write(f"{error}\n")
        code = _REFUSED
    except Exception:
        traceback.print_exc()
        code = _FAULT
    if told:
        library.crash_seen.restype = ctypes.c_long
        told.write_text(str(library.crash_seen()))
    sys.stderr.flush()
    os._exit(code)
