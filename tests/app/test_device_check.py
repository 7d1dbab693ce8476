"""The check of a device: it passes on a CPU, and an error of one hundredth in one kernel makes the check fail."""

import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from app.cli.main import run
from app.device_check import checks
from app.device_check.checks import CHECKS, run_checks
from app.device_check.installation import has_code_for
from app.device_check.target import CPU, CheckSizes, Target
from app.device_check.training import check_training
from app.device_check.updates import check_update
from app.jobs.device_check import (
    REPORT_NAME,
    CheckResult,
    DeviceReport,
    Measurement,
    Speed,
    read_report,
    sign_report,
    start_device_check,
    write_report,
)
from emtc_core.learner import learner as learner_module
from emtc_core.learner import networks
from emtc_core.learner.recurrence import run_torch_layers

LEFT_OUT = ("throughput", "training")
"""Checks whose trainings take too long on an imitated GPU."""
ROOT = Path(__file__).resolve().parents[2]
TINY = CheckSizes(
    algos=("vdn",),
    batch=3,
    length=6,
    updates=3,
    acting_steps=4,
    rows=400,
    nodes=2000,
    queries=100,
    resume_steps=60,
    timed_updates=1,
    timed_nodes=1000,
    timed_steps=200,
    training_s=600.0,  # no test depends on time
    training_steps=400,
)


class Scale(TorchDispatchMode):
    """Multiplies every second column of what some operations return by 1.01."""

    def __init__(self, *names: str, most_rows: float = float("inf")) -> None:
        super().__init__()
        self.names, self.most_rows = names, most_rows

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if (
            func.overloadpacket.__name__ in self.names
            and out.dim()
            and out.is_floating_point()
            and len(out) <= self.most_rows
        ):
            out[..., ::2] *= 1.01
        return out


def each_time(*plants):
    """Plant another error each time that the device begins to compute."""
    left = list(plants)
    return lambda: left.pop(0)()


@contextmanager
def replacing(owner, name, make):
    kept = getattr(owner, name)
    setattr(owner, name, make(kept))
    try:
        yield
    finally:
        setattr(owner, name, kept)


def scale_outputs(kept):
    return lambda *args, **kwargs: 1.01 * kept(*args, **kwargs)


def scale_second_nodes(kept):
    def cdist(*args, **kwargs):
        distances = kept(*args, **kwargs)
        distances[:, ::2] *= 1.01
        return distances

    return cdist


def read_a_value(kept):
    def masked_mean(*args, **kwargs):
        mean = kept(*args, **kwargs)
        mean.item()
        return mean

    return masked_mean


PLANTS = {
    "versions": lambda: Scale("mm"),
    "precision": lambda: replacing(networks, "run_linear_gru", scale_outputs),
    "update": lambda: Scale("addmm"),
    "repeat": each_time(nullcontext, lambda: Scale("addmm")),
    "synchronization": lambda: replacing(learner_module, "masked_mean", read_a_value),
    "embedding": lambda: Scale("addmm", most_rows=151),
    "index": lambda: replacing(torch, "cdist", scale_second_nodes),
    "resume": lambda: Scale("clone"),
    "throughput": lambda: Scale("addmm"),
    "training": each_time(nullcontext, lambda: Scale("addmm"), nullcontext),
}


def run_one(name: str, target: Target, sizes: CheckSizes = TINY) -> CheckResult:
    found = CHECKS[name](target, sizes)
    return found[0] if isinstance(found, tuple) else found


def test_every_check_has_an_error_to_find():
    assert list(PLANTS) == list(CHECKS)


@pytest.mark.parametrize("name", PLANTS)
def test_an_error_of_a_hundredth_in_one_kernel_makes_the_check_fail(name):
    result = run_one(name, Target(CPU, PLANTS[name]))
    assert not result.passed
    assert result.fault == ""
    assert result.describe().startswith(f"FAILED {name}: ")


def make_not_a_number(kept):
    return lambda *args, **kwargs: kept(*args, **kwargs) * float("nan")


def test_not_a_number_in_one_algorithm_makes_the_update_fail_and_is_named():
    plants = [partial(replacing, learner_module, "masked_mean", make_not_a_number)] * 6 + [nullcontext] * 6
    target = Target(CPU, each_time(*plants))
    result = check_update(target, replace(TINY, algos=("vdn", "qmix")))
    assert not result.passed
    assert "loss in vdn" in result.note


@pytest.mark.ci
def test_rounding_of_other_kernels_is_within_the_tolerances_of_an_update():
    layers = {
        "run_linear_gru": lambda kept: lambda first, rnn, inputs, lengths=None: run_torch_layers(first, rnn, inputs)
    }
    target = Target(CPU, lambda: replacing(networks, "run_linear_gru", layers["run_linear_gru"]))
    result = check_update(target, replace(TINY, algos=("qplex", "cds"), updates=5))
    assert result.passed
    assert any(each.value > 0 for each in result.measurements)


def test_the_whole_check_passes_on_the_cpu_from_the_command_line(monkeypatch, capsys):
    monkeypatch.setattr(checks, "QUICK", TINY)
    assert run(["check", "device", "--device", "cpu", "--quick", "--json"]) == 0
    printed = capsys.readouterr()
    report = json.loads(printed.out)
    assert report["ok"] is True
    assert report["device"] == "cpu"
    assert [check["name"] for check in report["checks"]] == list(CHECKS)
    assert {row["stage"] for row in report["speeds"]} == {
        "act", "update", "refit", "re-projection", "write", "end to end",
    }  # fmt: skip
    lines = [line for line in printed.err.splitlines() if line.startswith("ok ")]
    assert [line[7:].partition(":")[0] for line in lines] == list(CHECKS)


@pytest.mark.ci
def test_training_that_is_stopped_by_the_clock_is_compared_as_far_as_it_came():
    assert check_training(Target(CPU), replace(TINY, training_s=0.0)).passed


def test_without_a_gpu_the_check_of_it_fails_with_one_line(capsys):
    assert run(["check", "gpu"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1
    assert "sees no CUDA device" in lines[0]


def test_another_device_is_refused(capsys):
    assert run(["check", "device", "--device", "tpu"]) == 2
    assert "cpu, cuda" in capsys.readouterr().err


def fails(target: Target, sizes: CheckSizes) -> CheckResult:
    return CheckResult("fails", (Measurement("difference", 0.5, 0.1),))


def breaks(target: Target, sizes: CheckSizes) -> CheckResult:
    raise RuntimeError("CUDA error: no kernel image is available\nmore")


def passes(target: Target, sizes: CheckSizes) -> CheckResult:
    return CheckResult("passes", (Measurement("difference", 0.0, 0.1), Measurement("time", 3.0, unit="ms")))


@pytest.fixture
def three_checks(monkeypatch):
    monkeypatch.setattr(checks, "CHECKS", {"fails": fails, "breaks": breaks, "passes": passes})


def test_a_check_that_raises_fails_and_the_others_go_on(three_checks):
    seen = []
    report = run_checks(Target(CPU), on_result=seen.append)
    assert [check.passed for check in report.checks] == [False, False, True]
    assert report.checks[1].fault == "RuntimeError: CUDA error: no kernel image is available"
    assert [len(each.checks) for each in seen] == [1, 2, 3]
    assert [each.is_complete for each in seen] == [False, False, True]


def test_the_command_prints_one_line_for_each_check_and_exits_with_1(three_checks, capsys):
    assert run(["check", "device", "--device", "cpu"]) == 1
    printed = capsys.readouterr()
    assert printed.out.splitlines() == [
        "FAILED fails: difference 0.5 (at most 0.1)",
        "FAILED breaks: RuntimeError: CUDA error: no kernel image is available",
        "ok     passes: difference 0 (at most 0.1), time 3 ms",
    ]
    assert "2 of 3 checks failed: fails, breaks" in printed.err


def test_a_number_that_is_not_one_is_beyond_every_limit():
    assert not Measurement("loss", float("nan"), 1.0).is_within_limit


@pytest.mark.parametrize(
    ("capability", "architectures", "found"),
    [
        ("8.6", ["sm_80", "sm_90"], True),
        ("9.0", ["sm_90a"], True),
        ("7.0", ["sm_75", "sm_80"], False),
        ("10.0", ["sm_90"], False),
        ("12.0", ["sm_90", "compute_90"], True),
        ("8.0", [], False),
    ],
)
def test_a_gpu_needs_code_of_its_own_generation_or_older_ptx(capability, architectures, found):
    assert has_code_for(capability, architectures) is found


def test_a_report_is_read_as_it_was_written(tmp_path):
    report = DeviceReport(
        "cuda",
        quick=True,
        total=2,
        checks=(CheckResult("resume", (Measurement("gaps", np.int64(1), 0),), "note", "", 1.5),),
        speeds=(Speed("act", "ms", 2.0, 1.0),),
        versions={"torch": "2.13"},
    )
    path = tmp_path / "folder" / "report.json"
    write_report(path, report)
    assert read_report(path) == report
    path.write_text("{")
    assert read_report(path) is None
    assert read_report(tmp_path / "none.json") is None


def test_a_report_is_of_a_running_check_while_its_process_lives(tmp_path):
    report = sign_report(DeviceReport("cuda", quick=True, total=2))
    assert report.pid == os.getpid()
    assert report.is_running
    assert not replace(report, pid=2**22 + 1).is_running
    assert not replace(report, checks=(CheckResult("a"), CheckResult("b"))).is_running


def test_the_background_process_writes_its_report(tmp_path):
    """Without a GPU it ends after its first check."""
    assert start_device_check(tmp_path, device="cuda", quick=True).is_running
    deadline = time.monotonic() + 120
    while not (report := read_report(tmp_path / REPORT_NAME)).is_complete and time.monotonic() < deadline:
        time.sleep(0.2)
    assert "sees no CUDA device" in report.checks[0].fault


@pytest.mark.ci
def test_the_checks_pass_on_an_imitated_gpu():
    command = [sys.executable, "-m", "tests.app.device_check_on_gpu"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=280)
    if "undefined symbol" in done.stderr or "cannot open shared object" in done.stderr:
        pytest.skip("this build of PyTorch keeps its device guards elsewhere")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert [check for check in report["checks"] if not check["ok"]] == []
    assert [check["name"] for check in report["checks"]] == [name for name in CHECKS if name not in LEFT_OUT]


@pytest.mark.slow
def test_the_quick_check_passes_on_the_cpu():
    assert run_checks(Target(CPU), quick=True).passed
