"""Check of the installation: versions, and whether torch has machine code for this GPU."""

import platform
import sys
from typing import Any

import torch

from app.analysis.provenance import library_versions
from app.device_check.target import CheckSizes, Target
from app.jobs.device_check import CheckResult, Measurement
from emtc_core.install import find_faiss

PRODUCT_LIMIT = 1e-5


def describe_versions(target: Target) -> dict[str, Any]:
    """Return versions and architectures. faiss is not imported."""
    versions: dict[str, Any] = {**library_versions(), "platform": platform.platform(), "executable": sys.executable}
    versions["cuda"] = torch.version.cuda
    if target.is_gpu:
        versions["gpu"] = torch.cuda.get_device_name(target.device)
        versions["capability"] = ".".join(map(str, torch.cuda.get_device_capability(target.device)))
        versions["architectures"] = torch.cuda.get_arch_list()
        versions["cudnn"] = torch.backends.cudnn.version()
    return versions


def check_versions(target: Target, sizes: CheckSizes) -> CheckResult:
    """Report versions and architectures, and multiply two matrices on the device."""
    if target.is_gpu and not torch.cuda.is_available():
        return CheckResult("versions", fault=_describe_missing_gpu())
    a = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
    reference = a.double() @ a.double()
    with target.computing():
        product = (a.to(target.device) @ a.to(target.device)).cpu().double()
    difference = float(torch.linalg.vector_norm(product - reference) / torch.linalg.vector_norm(reference))
    measurements = [Measurement("product of two matrices", difference, PRODUCT_LIMIT)]
    versions = describe_versions(target)
    parts = [f"torch {versions['torch']}", f"python {versions['python']}"]
    if target.is_gpu:
        missing = not has_code_for(versions["capability"], versions["architectures"])
        measurements.append(Measurement("architectures without code", float(missing), 0))
        parts = [f"{versions['gpu']} ({versions['capability']})", *parts, f"CUDA {versions['cuda']}"]
        parts.append(f"built for {' '.join(versions['architectures'])}")
    parts.append(f"faiss-gpu {find_faiss().version or 'is not installed'}")
    return CheckResult("versions", tuple(measurements), ", ".join(parts))


def has_code_for(capability: str, architectures: list[str]) -> bool:
    """Whether a torch build for these architectures has code for a GPU with this compute capability.

    >>> has_code_for("8.6", ["sm_80", "sm_90"]), has_code_for("7.0", ["sm_80"]), has_code_for("12.0", ["compute_90"])
    (True, False, True)
    """
    major, minor = map(int, capability.split("."))
    for name in architectures:
        kind, _, number = name.partition("_")
        digits = "".join(filter(str.isdigit, number))
        if not digits:
            continue
        has_major, has_minor = int(digits[:-1]), int(digits[-1])
        if kind == "sm" and has_major == major and has_minor <= minor:
            return True
        if kind == "compute" and (has_major, has_minor) <= (major, minor):  # PTX is compiled at the first use
            return True
    return False


def _describe_missing_gpu() -> str:
    built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
    return (
        f"torch {torch.__version__}, {built}, sees no CUDA device. Check the driver with: nvidia-smi. The guide's page "
        "On a GPU lists which torch a GPU needs"
    )
