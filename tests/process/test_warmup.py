"""The warm-up compiles everything that a first run uses: with only its parts' kernels on disk, a run compiles none."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from app import warmup
from app.jobs.launch import ROOT

COUNT = """
from numba.core import event
from app import warmup
with event.install_recorder("numba:compile") as recorder:
    warmup.train_short_run()
print("compiled", sorted({str(each.data["dispatcher"].py_func.__name__) for _, each in recorder.buffer}))
"""


def run(cache: Path, *arguments: str) -> subprocess.Popen[str]:
    env = os.environ | {"NUMBA_CACHE_DIR": str(cache), "PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, *arguments], cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_first_run_finds_every_kernel_on_disk_after_the_parts_were_compiled(tmp_path: Path) -> None:
    parts = {part: run(tmp_path, "-m", "app.warmup", "--part", part) for part in warmup.PARTS}
    assert {part: process.wait() for part, process in parts.items()} == dict.fromkeys(parts, 0)
    told, _ = run(tmp_path, "-c", COUNT).communicate()
    assert told.splitlines()[-1] == "compiled []"


@pytest.mark.ci
def test_a_part_that_fails_makes_the_warm_up_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warmup, "PARTS", {"unknown": warmup.compile_simulator})  # the child's own list lacks it
    monkeypatch.setattr(warmup, "train_short_run", lambda: pytest.fail("trained although a part failed"))
    with pytest.raises(subprocess.CalledProcessError):
        warmup.compile_in_processes()
