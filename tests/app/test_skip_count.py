"""What CI does with skipped tests: it checks their number (EMTC_SKIPS) and can run them alone (EMTC_SKIPPED_IDS)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from app.jobs.launch import ROOT

TESTS = """
import os
import pytest

def test_one():
    pytest.skip("a")

@pytest.mark.parametrize("text", ["a b", "x[1]::y", "é"])
def test_two(text):
    if "COMPONENT" not in os.environ:
        pytest.skip("b")

def test_three():
    pass
"""

pytestmark = pytest.mark.ci


def run_tests(folder: Path, *arguments: str, **variables: str) -> tuple[int, str]:
    """Return the exit code and the output."""
    (folder / "test_it.py").write_text(TESTS)
    (folder / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-n", "2", "-p", "tests.conftest", *arguments]
    env = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


def test_the_tests_that_a_run_skipped_can_be_run_alone_and_their_number_is_checked(tmp_path: Path) -> None:
    returned, output = run_tests(tmp_path, EMTC_SKIPPED_IDS=str(tmp_path / "ids"), EMTC_SKIPS="4")
    assert (returned, "tests were skipped" in output) == (0, False), output
    again = f"@{tmp_path / 'ids'}"
    returned, output = run_tests(tmp_path, again, EMTC_SKIPS="0", COMPONENT="installed")
    assert returned == 1, output
    assert "3 passed, 1 skipped" in output
    assert "EMTC_SKIPS=0, but 1 tests were skipped" in output
