"""What a trainer takes of its machine: numbers of this process, and of a GPU where there is one."""

import time

import pytest
import torch

from emtc_core.metrics import MACHINE_PREFIXES, METRICS
from emtc_core.training.metrics_window import MachineUsage

CPU = torch.device("cpu")


def test_work_takes_processor_time_and_sleep_takes_none() -> None:
    watch = MachineUsage(CPU)
    until = time.process_time() + 0.1
    while time.process_time() < until:
        pass
    busy = watch.measure()
    time.sleep(0.2)
    idle = watch.measure()
    assert busy["machine/cpu_percent"] > idle["machine/cpu_percent"] >= 0
    assert busy["machine/cpu_seconds"] > idle["machine/cpu_seconds"] >= 0
    assert busy["machine/memory_bytes"] > 1e6
    assert set(busy) <= set(METRICS)
    assert all(name.startswith(MACHINE_PREFIXES) for name in busy), "rows of two runs alike are compared without them"


def test_memory_and_use_of_a_gpu_are_measured_where_the_library_can(monkeypatch: pytest.MonkeyPatch, caplog) -> None:
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 5_000_000)
    monkeypatch.setattr(torch.cuda, "utilization", lambda device: 40)
    watch = MachineUsage(torch.device("cuda"))
    assert watch.measure().items() >= {"machine/gpu_memory_bytes": 5e6, "machine/gpu_percent": 40.0}.items()

    def missing(device: torch.device) -> int:
        raise ModuleNotFoundError("pynvml")

    monkeypatch.setattr(torch.cuda, "utilization", missing)
    assert "machine/gpu_percent" not in watch.measure()
    assert watch.measure()["machine/gpu_memory_bytes"] == 5e6
    assert [("pynvml" in each.getMessage()) for each in caplog.records] == [True], "one line, not one per report"
