"""Crash points: the library counts and harms what it should, and no act of the program is left half done."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.bench.crash_points import HARMS, choose, crash_library, try_act
from app.bench.storms.crash_acts import ACTS
from tests.require import require

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
    with crash_library() as made:
        yield made


def write_twice(library: Path, folder: Path, point: int, harm: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", TWO_WRITES, str(folder), str(point), str(HARMS[harm])]
    environment = {**os.environ, "LD_PRELOAD": str(library)}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


@pytest.mark.parametrize(
    ("harm", "left", "code"),
    [
        ("kill", {"x": b"first."}, -signal.SIGKILL),
        ("tear", {"x": b"first.sec"}, -signal.SIGKILL),
        ("no space", {"x": b"first."}, 1),
        ("input/output error", {"x": b"first."}, 1),
        ("delay", {"y": b"first.second"}, 0),
    ],
)
def test_a_call_is_harmed_as_told(library: Path, tmp_path: Path, harm: str, left: dict[str, bytes], code: int) -> None:
    done = write_twice(library, tmp_path, 2, harm)
    assert done.returncode == code
    assert {place.name: place.read_bytes() for place in tmp_path.iterdir()} == left
    assert ("No space left" in done.stderr) == (harm == "no space")


def test_calls_elsewhere_are_not_counted(library: Path, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    done = write_twice(library, tmp_path / "a", 10, "kill")
    assert done.stdout == "3\n"


def test_points_are_spread_over_all_calls() -> None:
    assert choose(100, 3) == [1, 50, 100]
    assert choose(4, 24) == choose(4, 0) == [1, 2, 3, 4]


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", ACTS)
def test_an_act_that_is_broken_off_anywhere_is_gone_on_with(library: Path, name: str) -> None:
    toll = try_act(name, library, points=10)
    assert toll.calls > 10
    assert toll.tried.total() == 10
    assert toll.wrong == []
