"""Crash points: an action is killed, torn, refused or delayed at one system call, and then completed as a user would.

A library (`crash_point.c`, compiled here) is loaded before the C library. It counts the system calls that change files
in one folder, and injects a fault into one of them: writes, syncs, truncations, renames, links and removals of the
database, the log, checkpoints and copies, by Python, SQLite and PyTorch. After each crash point the database is opened,
the interrupted action is completed, and every row is checked.

    python -m tests.torture.crash_points --points 10
"""

import argparse
import ctypes
import os
import shutil
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Final

import numpy as np

from emtc_core.errors import EmtcError
from tests.report import BenchResult, add_json_option, limited, make_result, run_and_report
from tests.torture.c_library import compile_library, open_context
from tests.torture.crash_actions import ACTIONS, Action, train_reference

POINTS: Final = 24
FAULTS: Final = {"kill": 1, "tear": 2, "input/output error": 3, "no space": 4, "delay": 5}
SOURCE: Final = Path(__file__).with_name("crash_point.c")
TIMEOUT_S: Final = 300.0
_EXPECTED_ERROR, _UNEXPECTED_ERROR = 3, 4  # exit codes
_NEVER: Final = 1 << 60

Step = Callable[[Path], None]


@dataclass
class ActionOutcome:
    """The crash points of one action and the violations after them."""

    calls: int
    """Number of system calls that change files, without a fault."""
    tried: Counter[str] = field(default_factory=Counter[str])
    """Number of crash points with each fault."""
    wrong: list[str] = field(default_factory=list[str])


def run(*, points: int = POINTS) -> list[BenchResult]:
    """Measure `crash_points.ACTION.tried` and `.wrong` for each action.

    Args:
        points: Number of calls of each action that get a fault, evenly spread. The faults alternate. 0: every call.

    Raises:
        ConfigError: If this is not Linux, or there is no C compiler.
    """
    with compile_library(SOURCE, "Crash points") as library:
        outcomes = {name: try_action(name, library, points=points) for name in ACTIONS}
    return [result for name, outcome in outcomes.items() for result in _make_results(name, outcome)]


def _make_results(name: str, outcome: ActionOutcome) -> Iterator[BenchResult]:
    faults = ", ".join(f"{n} × {fault}" for fault, n in outcome.tried.items())
    tried = f"of {outcome.calls} calls that change files: {faults}"
    wrong = "; ".join(outcome.wrong[:3]) or "every row was checked, nothing is lost"
    yield make_result(f"crash_points.{name}.tried", outcome.tried.total(), "points", reference=tried)
    yield make_result(f"crash_points.{name}.wrong", len(outcome.wrong), "points", 0, wrong)


def try_action(name: str, library: Path, *, points: int) -> ActionOutcome:
    """Run one action once per crash point, each time in a new copy of the prepared folder."""
    action = ACTIONS[name]
    libraries = " ".join(filter(None, [str(library), os.environ.get("LD_PRELOAD")]))
    with (
        tempfile.TemporaryDirectory(prefix="emtc-crash-") as parent,
        open_context({"LD_PRELOAD": libraries}) as context,
    ):
        template, folder = Path(parent) / "template", Path(parent) / "here"
        folder.mkdir()
        for prepare in (train_reference, action.prepare):
            if code := _run_in_process(context, prepare, folder):
                raise AssertionError(f"{prepare} ended with {code}")
        folder.rename(template)
        outcome = ActionOutcome(_count_calls(context, action, template, folder))
        for point, fault in zip(choose_points(outcome.calls, points), cycle(FAULTS), strict=False):
            shutil.copytree(template, folder)
            if wrong := _try_point(context, action, folder, point, FAULTS[fault]):
                outcome.wrong.append(f"{fault} at call {point}: {wrong}")
            outcome.tried[fault] += 1
            shutil.rmtree(folder)
    return outcome


def choose_points(calls: int, points: int) -> list[int]:
    """Return `points` numbers from 1 to `calls`, evenly spread with both ends, or all if `points` is 0 or too large."""
    if points == 0 or points >= calls:
        return list(range(1, calls + 1))
    return sorted({int(point) for point in np.linspace(1, calls, points).round()})


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line, try the crash points and print the results."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.torture.crash_points", description=__doc__.partition("\n\n")[0]
    )
    parser.add_argument(
        "--points",
        type=limited(int, 0, 10**9),
        default=POINTS,
        help="number of calls of each action that get a fault, 0 for all (%(default)s)",
    )
    add_json_option(parser)
    options = parser.parse_args(arguments)
    return run_and_report("crash_points", run, json=options.json, points=options.points)


def _count_calls(context: ForkServerContext, action: Action, template: Path, folder: Path) -> int:
    shutil.copytree(template, folder)
    calls = folder.with_name("calls")
    if code := _run_in_process(context, action.run, folder, fault=(_NEVER, 0), calls=calls):
        raise AssertionError(f"{action.run} ended with {code}")
    if wrong := _check(action, folder):
        raise AssertionError(f"also without a fault: {wrong}")
    shutil.rmtree(folder)
    return int(calls.read_text())


def _try_point(context: ForkServerContext, action: Action, folder: Path, point: int, fault: int) -> str:
    """Run the action with a fault, then complete it. Return the violations, or an empty text."""
    code = _run_in_process(context, action.run, folder, fault=(point, fault))
    if code == _UNEXPECTED_ERROR:
        return "it raised an error that is not an EmtcError"
    if code and _run_in_process(context, action.complete, folder):
        return "it could not be completed"
    return _check(action, folder)


def _check(action: Action, folder: Path) -> str:
    try:
        return "; ".join(action.find_wrong(folder)[:3])
    except EmtcError as error:
        return str(error)


def _run_in_process(
    context: ForkServerContext,
    step: Step,
    folder: Path,
    *,
    fault: tuple[int, int] | None = None,
    calls: Path | None = None,
) -> int:
    """Run a function in a new process.

    Args:
        context: The context of `open_context`.
        step: The function.
        folder: Its argument. System calls are counted in this folder.
        fault: Number of the system call that gets a fault, and the fault's number.
        calls: File for the number of counted calls.

    Returns:
        The exit code: 0, _EXPECTED_ERROR, _UNEXPECTED_ERROR, or a negative number if a signal killed the process.
    """
    process = context.Process(target=_run_step, args=(step, folder, fault, calls))
    process.start()
    process.join(TIMEOUT_S)
    process.kill()
    process.join()
    return process.exitcode or 0


def _run_step(step: Step, folder: Path, fault: tuple[int, int] | None, calls: Path | None) -> None:
    library = ctypes.CDLL(None)
    if fault:
        library.crash_arm(str(folder).encode(), ctypes.c_long(fault[0]), fault[1])
    code = 0
    try:
        step(folder)
    except EmtcError as error:
        sys.stderr.write(f"{error}\n")
        code = _EXPECTED_ERROR
    except Exception:
        traceback.print_exc()
        code = _UNEXPECTED_ERROR
    if calls:
        library.crash_seen.restype = ctypes.c_long
        calls.write_text(str(library.crash_seen()))
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
