"""The report of a device check, and its background process for the page Health.

The process writes its report to a file after each check, so that the page can show the progress. This module does not
load torch. The checks are in `tests.gpu`.
"""

import json
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
from platformdirs import user_cache_path

from app.jobs.launch import spawn
from emtc_core.atomic_file import replace_atomically
from storage.private_files import make_private_folder

REPORT_NAME, LOG_NAME = "device-check.json", "device-check.txt"
_NVIDIA_GPUS = Path("/proc/driver/nvidia/gpus")
_WSL_GPU = Path("/dev/dxg")
_PLAIN_FIELDS = ("device", "quick", "total", "versions")


@dataclass(frozen=True)
class Measurement:
    """One measured number of a check."""

    name: str
    value: float
    limit: float | None = None
    """Largest allowed value; None: the number is only reported."""
    unit: str = ""

    @property
    def is_within_limit(self) -> bool:
        """Whether the value is within its limit. NaN is not."""
        return self.limit is None or self.value <= self.limit

    def describe(self) -> str:
        """Write the number with its limit, if any."""
        value = " ".join(filter(None, (write_number(self.value), self.unit)))
        limit = "" if self.limit is None else f" (at most {write_number(self.limit)})"
        return f"{self.name} {value}{limit}"


@dataclass(frozen=True)
class CheckResult:
    """Result of one check."""

    name: str
    measurements: tuple[Measurement, ...] = ()
    note: str = ""
    fault: str = ""
    """Why the check could not be completed; empty if it was."""
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        """Whether the check was completed and every number is within its limit."""
        return not self.fault and all(measurement.is_within_limit for measurement in self.measurements)

    def describe(self) -> str:
        """Write the result as one line."""
        return f"{'ok' if self.passed else 'FAILED':6} {self.name}: {self.details}"

    @property
    def details(self) -> str:
        """Write fault, numbers and note."""
        numbers = ", ".join(measurement.describe() for measurement in self.measurements)
        return "; ".join(filter(None, (self.fault, numbers, self.note)))


@dataclass(frozen=True)
class Speed:
    """One row of the throughput table."""

    stage: str
    unit: str
    cpu: float
    device: float


@dataclass(frozen=True)
class DeviceReport:
    """Results of the checks that are complete so far."""

    device: str
    quick: bool
    total: int
    """Number of all checks."""
    checks: tuple[CheckResult, ...] = ()
    speeds: tuple[Speed, ...] = ()
    pid: int | None = None
    """The process that checks."""
    versions: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def is_complete(self) -> bool:
        """Whether every check has a result."""
        return len(self.checks) >= self.total

    @property
    def passed(self) -> bool:
        """Whether every check has a result and has passed."""
        return self.is_complete and all(check.passed for check in self.checks)

    @property
    def is_running(self) -> bool:
        """Whether the process is still running."""
        return not self.is_complete and self.pid is not None and psutil.pid_exists(self.pid)

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain values."""
        checks = [
            {"name": check.name, "ok": check.passed}
            | {name: value for name, value in asdict(check).items() if name not in ("name", "measurements")}
            | {"measurements": [_measurement_to_json(measurement) for measurement in check.measurements]}
            for check in self.checks
        ]
        return {
            "ok": self.passed,
            **{name: getattr(self, name) for name in _PLAIN_FIELDS},
            "pid": self.pid,
            "checks": checks,
            "speeds": [asdict(speed) for speed in self.speeds],
        }


def write_number(value: float) -> str:
    """Write a number with three digits; from 1000, as a whole number."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def write_report(path: Path, report: DeviceReport) -> None:
    """Replace the file by a newer report. The replacement is atomic."""
    make_private_folder(path.parent)
    with replace_atomically(path) as file:
        file.write(json.dumps(report.to_json()).encode())


def read_report(path: Path) -> DeviceReport | None:
    """Read the newest report; None if there is none or it is not readable."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return DeviceReport(
            **{name: content[name] for name in _PLAIN_FIELDS},
            pid=content["pid"],
            checks=tuple(_read_check(check) for check in content["checks"]),
            speeds=tuple(Speed(**speed) for speed in content["speeds"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def report_folder() -> Path:
    """Return the folder of the report and the log, which is the same for all projects of a user."""
    return user_cache_path("emtc-lab") / "device-check"


def start_device_check(folder: Path, *, device: str = "cuda", quick: bool = False) -> DeviceReport:
    """Start the check in a background process, with its report and its log in `folder`.

    Raises:
        StorageError: If EMTC_READ_ONLY=1 is set.
        OSError: If the process cannot be started.
    """
    path = folder / REPORT_NAME
    options = ["--device", device, "--report", str(path), *(["--quick"] if quick else [])]
    process = spawn(["tests.gpu", *options], folder / LOG_NAME)
    report = DeviceReport(device, quick, total=1, pid=process.pid)
    write_report(path, report)
    return report


def has_nvidia_gpu() -> bool:
    """Whether NVIDIA's driver lists a GPU on this machine. This does not need torch."""
    if _NVIDIA_GPUS.is_dir() and any(_NVIDIA_GPUS.iterdir()):
        return True
    return _WSL_GPU.exists() and shutil.which("nvidia-smi") is not None


def sign_report(report: DeviceReport) -> DeviceReport:
    """Return a report with this process as its process."""
    return replace(report, pid=os.getpid())


def _measurement_to_json(measurement: Measurement) -> dict[str, Any]:
    """Return a measurement as plain values, without NumPy types."""
    return {**asdict(measurement), "value": float(measurement.value), "ok": bool(measurement.is_within_limit)}


def _read_check(content: Mapping[str, Any]) -> CheckResult:
    measurements: Sequence[Mapping[str, Any]] = content["measurements"]
    return CheckResult(
        name=content["name"],
        measurements=tuple(
            Measurement(m["name"], math.nan if m["value"] is None else m["value"], m["limit"], m["unit"])
            for m in measurements
        ),
        note=content["note"],
        fault=content["fault"],
        seconds=content["seconds"],
    )
