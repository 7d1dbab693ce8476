"""The README's `emtc …` lines are typed in an empty folder, as they are written; what takes minutes is shortened."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from app.jobs.launch import EXAMPLE_BUNDLE, ROOT

README = (ROOT / "README.md").read_text()
SHORTENED = {"train": "--steps 300", "sweep": "--dry-run"}
ACTIVATE = "source .venv/bin/activate"


def blocks() -> list[list[str]]:
    found = re.findall(r"^ *```bash\n(.*?)^ *```", README, re.MULTILINE | re.DOTALL)
    return [[line.split("  #")[0].strip() for line in block.splitlines() if line.strip()] for block in found]


def quoted() -> list[str]:
    text = re.sub(r"^ *```.*?^ *```", "", README, flags=re.MULTILINE | re.DOTALL)
    return [line for line in re.findall(r"`(emtc [^`]+)`", text) if line.split()[1] != "app"]


def shorten(line: str) -> str:
    return f"{line} {SHORTENED.get(line.split()[1], '')}" if line.startswith("emtc ") else line


def test_a_block_of_emtc_lines_makes_emtc_known_first() -> None:
    speaking = [block for block in blocks() if any(line.startswith("emtc ") for line in block)]
    assert speaking
    assert [block for block in speaking if block[0] != ACTIVATE] == []


@pytest.mark.ci
def test_the_lines_work_as_they_are_written(tmp_path: Path) -> None:
    if not (Path(sys.prefix) / "bin" / "activate").exists():
        pytest.skip("the environment of this interpreter has no activate")
    (tmp_path / ".venv").symlink_to(sys.prefix)
    typed = [line for block in blocks() if ACTIVATE in block for line in block]
    study = f"emtc open {shlex.quote(str(EXAMPLE_BUNDLE))} --import"  # the README's study, as Home opens it
    script = "\n".join(["set -ex", *map(shorten, dict.fromkeys([*typed, study, *quoted()]))])
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("EMTC_", "VIRTUAL_ENV"))}
    env = clean | {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(typed) + len(quoted()) >= 6
    assert (tmp_path / "curves.pdf").stat().st_size > 1000
