"""EMTC_SKIPS: CI fails when another number of tests is skipped than it expects."""

import os
import subprocess
import sys

import pytest

from app.jobs.launch import ROOT

TESTS = "import pytest\ndef test_one(): pytest.skip('a')\ndef test_two(): pytest.skip('b')\ndef test_three(): ...\n"


@pytest.mark.ci
@pytest.mark.parametrize("workers", ["0", "2"])
@pytest.mark.parametrize(("expected", "code"), [("2", 0), ("1", 1), ("3", 1)])
def test_a_run_passes_only_with_the_expected_number_of_skips(tmp_path, workers: str, expected: str, code: int) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-n", workers, "-p", "tests.conftest", str(tmp_path)]
    env = os.environ | {"EMTC_SKIPS": expected, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout
    assert ("tests were skipped" in done.stdout) == bool(code)
