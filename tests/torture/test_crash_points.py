"""The crash library counts calls and injects faults, and every interrupted action can be completed."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.require import require
from tests.torture.c_library import compile_library
from tests.torture.crash_actions import ACTIONS
from tests.torture.crash_points import FAULTS, SOURCE, choose_points, try_action

TWO_WRITES = """
import ctypes, os, sys
library, folder = ctypes.CDLL(None), sys.argv[1]
library.crash_arm(folder.encode(), ctypes.c_long(int(sys.argv[2])), int(sys.argv[3]))
file = os.open(f"{folder}/x", os.O_WRONLY | os.O_CREAT)
os.write(file, b"first.")
os.write(file, b"second")
os.rename(f"{folder}/x", f"{folder}/y")
print(library.crash_seen())
"""


@pytest.fixture(scope="module")
def library() -> Iterator[Path]:
    require("cc", sys.platform == "linux" and bool(shutil.which("cc")), "this is not Linux, or has no cc")
    with compile_library(SOURCE, "Crash points") as path:
        yield path


def write_twice(library: Path, folder: Path, point: int, fault: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", TWO_WRITES, str(folder), str(point), str(FAULTS[fault])]
    environment = {**os.environ, "LD_PRELOAD": str(library)}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


@pytest.mark.parametrize(
    ("fault", "files", "code"),
    [
        ("kill", {"x": b"first."}, -signal.SIGKILL),
        ("tear", {"x": b"first.sec"}, -signal.SIGKILL),
        ("no space", {"x": b"first."}, 1),
        ("input/output error", {"x": b"first."}, 1),
        ("delay", {"y": b"first.second"}, 0),
    ],
)
def test_a_fault_is_injected_into_one_call(
    library: Path, tmp_path: Path, fault: str, files: dict[str, bytes], code: int
) -> None:
    done = write_twice(library, tmp_path, 2, fault)
    assert done.returncode == code
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == files
    assert ("No space left" in done.stderr) == (fault == "no space")


def test_calls_in_other_folders_are_not_counted(library: Path, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    done = write_twice(library, tmp_path / "a", 10, "kill")
    assert done.stdout == "3\n"


def test_points_are_evenly_spread_over_all_calls() -> None:
    assert choose_points(100, 3) == [1, 50, 100]
    assert choose_points(4, 24) == choose_points(4, 0) == [1, 2, 3, 4]


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", ACTIONS)
def test_an_action_that_is_interrupted_at_any_call_can_be_completed(library: Path, name: str) -> None:
    outcome = try_action(name, library, points=10)
    assert outcome.calls > 10
    assert outcome.tried.total() == 10
    assert outcome.wrong == []
