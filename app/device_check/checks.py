"""The list of checks, and the function that runs them."""

import time
from collections.abc import Callable
from dataclasses import replace

import torch

from app.device_check.installation import check_versions, describe_versions
from app.device_check.memory import check_embedding, check_index
from app.device_check.speed import check_throughput
from app.device_check.target import FULL, QUICK, CheckSizes, Target
from app.device_check.training import check_resume, check_training
from app.device_check.updates import check_precision, check_repeat, check_synchronization, check_update
from app.jobs.device_check import CheckResult, DeviceReport, Speed
from emtc_core.control import StopRequested
from emtc_core.devices import set_determinism
from emtc_core.threads import configure_threads

Check = Callable[[Target, CheckSizes], CheckResult | tuple[CheckResult, tuple[Speed, ...]]]

CHECKS: dict[str, Check] = {
    "versions": check_versions,
    "precision": check_precision,
    "update": check_update,
    "repeat": check_repeat,
    "synchronization": check_synchronization,
    "embedding": check_embedding,
    "index": check_index,
    "resume": check_resume,
    "throughput": check_throughput,
    "training": check_training,
}


def run_checks(
    target: Target,
    *,
    quick: bool = False,
    sizes: CheckSizes | None = None,
    on_result: Callable[[DeviceReport], None] = lambda report: None,
) -> DeviceReport:
    """Run all checks. If the device is a GPU that is not available, only the first check is run.

    Args:
        target: The device.
        quick: Whether to use smaller sizes.
        sizes: Other sizes, for tests.
        on_result: Called with the report after each check.
    """
    configure_threads()
    if target.is_gpu:
        set_determinism(True)  # before the first product, when cuBLAS reads the size of its workspace
    sizes = sizes or (QUICK if quick else FULL)
    report = DeviceReport(str(target.device), quick, total=len(CHECKS))
    if target.is_gpu and not torch.cuda.is_available():
        report = replace(report, total=1, checks=(check_versions(target, sizes),))
        on_result(report)
        return report
    report = replace(report, versions=describe_versions(target))
    for name, check in CHECKS.items():
        result, speeds = _run_one(name, check, target, sizes)
        report = replace(report, checks=(*report.checks, result), speeds=(*report.speeds, *speeds))
        on_result(report)
    return report


def _run_one(name: str, check: Check, target: Target, sizes: CheckSizes) -> tuple[CheckResult, tuple[Speed, ...]]:
    """Run one check. An exception is stored in its result, so that the next checks are run."""
    started = time.perf_counter()
    try:
        returned = check(target, sizes)
    except StopRequested:
        raise
    except Exception as exc:  # a kernel of the device can raise any exception
        returned = CheckResult(name, fault=f"{type(exc).__name__}: {exc}".partition("\n")[0])
    result, speeds = returned if isinstance(returned, tuple) else (returned, ())
    return replace(result, seconds=round(time.perf_counter() - started, 2)), speeds
