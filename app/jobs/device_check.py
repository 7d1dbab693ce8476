"""The report of a device check, and the check as a background process for the page Health.

The process writes its report into a file again after each check, so the page can show how far it is. Nothing here loads
torch: the checks are in `app.device_check`.
"""

import json
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
from platformdirs import user_cache_path

from app.jobs.launch import spawn
from storage.private_files import make_private_folder

REPORT_NAME, LOG_NAME = "device-check.json", "device-check.txt"
_DRIVER_LISTS_GPUS = Path("/proc/driver/nvidia/gpus")
_GPU_OF_WSL = Path("/dev/dxg")


@dataclass(frozen=True)
class Measurement:
    """One number of a check."""

    name: str
    value: float
    limit: float | None = None
    """Largest value that is allowed; None: the number is reported only."""
    unit: str = ""

    @property
    def holds(self) -> bool:
        """Whether the value is within its limit; NaN never is."""
        return self.limit is None or self.value <= self.limit

    def describe(self) -> str:
        """Write the number, and its limit where it has one."""
        value = " ".join(filter(None, (write_number(self.value), self.unit)))
        limit = "" if self.limit is None else f" (at most {write_number(self.limit)})"
        return f"{self.name} {value}{limit}"


@dataclass(frozen=True)
class CheckResult:
    """What one check of a device found."""

    name: str
    measurements: tuple[Measurement, ...] = ()
    note: str = ""
    fault: str = ""
    """Why the check could not be completed; empty where it was."""
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        """Whether it was completed and every number is within its limit."""
        return not self.fault and all(each.holds for each in self.measurements)

    def describe(self) -> str:
        """Write the result as one line."""
        return f"{'ok' if self.passed else 'FAILED':6} {self.name}: {self.details}"

    @property
    def details(self) -> str:
        """Write what was measured."""
        numbers = ", ".join(each.describe() for each in self.measurements)
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
    """What is known of a device so far."""

    device: str
    quick: bool
    total: int
    """How many checks there are."""
    checks: tuple[CheckResult, ...] = ()
    speeds: tuple[Speed, ...] = ()
    pid: int | None = None
    pid_created_at: float | None = None
    versions: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def is_complete(self) -> bool:
        """Whether every check has a result."""
        return len(self.checks) >= self.total

    @property
    def passed(self) -> bool:
        """Whether every check has a result, and passed."""
        return self.is_complete and all(check.passed for check in self.checks)

    @property
    def is_running(self) -> bool:
        """Whether its process is still at work."""
        if self.is_complete or self.pid is None:
            return False
        with suppress(psutil.Error):
            process = psutil.Process(self.pid)
            same = self.pid_created_at is None or abs(process.create_time() - self.pid_created_at) < 1
            return same and process.status() != psutil.STATUS_ZOMBIE
        return False

    def to_json(self) -> dict[str, Any]:
        """Write it as plain values."""
        checks = [
            {"name": check.name, "ok": check.passed}
            | {name: value for name, value in asdict(check).items() if name not in ("name", "measurements")}
            | {"measurements": [_write_measurement(each) for each in check.measurements]}
            for check in self.checks
        ]
        own = {name: getattr(self, name) for name in ("device", "quick", "total", "versions", "pid", "pid_created_at")}
        return {"ok": self.passed, **own, "checks": checks, "speeds": [asdict(each) for each in self.speeds]}


def write_number(value: float) -> str:
    """Write a number with three digits, a large one whole."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def write_report(path: Path, report: DeviceReport) -> None:
    """Replace the file by a newer report; a reader sees the one or the other."""
    make_private_folder(path.parent)
    new = path.with_name(f"{path.name}.new")
    new.write_text(json.dumps(report.to_json()), encoding="utf-8")
    new.replace(path)


def read_report(path: Path) -> DeviceReport | None:
    """Read the newest report; None where there is none that can be read."""
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        return DeviceReport(
            **{name: stored[name] for name in ("device", "quick", "total", "versions", "pid", "pid_created_at")},
            checks=tuple(_read_check(each) for each in stored["checks"]),
            speeds=tuple(Speed(**each) for each in stored["speeds"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def report_folder() -> Path:
    """Return the folder of report and log: one for each user and machine."""
    return user_cache_path("emtc-lab") / "device-check"


def start_device_check(folder: Path, *, device: str = "cuda", quick: bool = False) -> DeviceReport:
    """Start the check in a background process; its report and its log are in `folder`.

    Raises:
        StorageError: If this server is read-only.
        OSError: If the process cannot be started.
    """
    path = folder / REPORT_NAME
    options = ["--device", device, "--report", str(path), *(["--quick"] if quick else [])]
    process = spawn(["app.device_check", *options], folder / LOG_NAME)
    created_at = None
    with suppress(psutil.Error):
        created_at = psutil.Process(process.pid).create_time()
    report = DeviceReport(device, quick, total=1, pid=process.pid, pid_created_at=created_at)
    write_report(path, report)
    return report


def has_nvidia_gpu() -> bool:
    """Whether NVIDIA's driver lists a GPU on this machine; torch is not needed for the answer."""
    if _DRIVER_LISTS_GPUS.is_dir() and any(_DRIVER_LISTS_GPUS.iterdir()):
        return True
    return _GPU_OF_WSL.exists() and shutil.which("nvidia-smi") is not None


def sign_report(report: DeviceReport) -> DeviceReport:
    """Write this process into a report."""
    me = psutil.Process(os.getpid())
    return replace(report, pid=me.pid, pid_created_at=me.create_time())


def _write_measurement(measurement: Measurement) -> dict[str, Any]:
    """Write a number as plain values; a count of NumPy becomes a float, too."""
    return {**asdict(measurement), "value": float(measurement.value), "ok": bool(measurement.holds)}


def _read_check(stored: Mapping[str, Any]) -> CheckResult:
    measurements: Sequence[Mapping[str, Any]] = stored["measurements"]
    return CheckResult(
        name=stored["name"],
        measurements=tuple(
            Measurement(each["name"], math.nan if each["value"] is None else each["value"], each["limit"], each["unit"])
            for each in measurements
        ),
        note=stored["note"],
        fault=stored["fault"],
        seconds=stored["seconds"],
    )
