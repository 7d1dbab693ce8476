"""The tests of the GPU pass on an imitated GPU, and fail if its products have an error of one hundredth."""

import re
import subprocess
import sys

import pytest

from app.jobs.launch import ROOT


def run_on_imitated_gpu(*options: str) -> tuple[int, str]:
    """Return exit code and output of pytest."""
    command = [sys.executable, "-m", "tests.gpu.imitated", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=280)
    if "undefined symbol" in done.stderr or "cannot open shared object" in done.stderr:
        pytest.skip("this build of PyTorch has its device guards in another library")
    return done.returncode, done.stdout


@pytest.mark.ci
def test_they_pass_on_an_imitated_gpu() -> None:
    code, output = run_on_imitated_gpu()
    assert code == 0, output
    assert " passed" in output


@pytest.mark.slow
def test_they_fail_on_a_gpu_whose_products_are_wrong() -> None:
    code, output = run_on_imitated_gpu("--wrong")
    assert code == 1, output
    failed = set(re.findall(r"^FAILED .*::test_(\w+)", output, re.MULTILINE))
    for words in ("doctor", "recurrent_layer", "updates_from_equal_weights", "embeddings", "index"):
        assert any(words in name for name in failed), f"{words}: {output}"
