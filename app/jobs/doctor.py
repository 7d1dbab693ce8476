"""Check which libraries, tools and environments are usable, for `emtc doctor` and the page Health.

Each check of a part that is not usable returns how to install it. The app never loads torch, so the GPU is checked in
another process (`gpu_check`), which compares two results of the GPU with the CPU.
"""

import importlib.metadata
import importlib.util
import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from app.jobs.gpu import MPS_COMMAND, is_mps_running
from emtc_core.envs.registry import list_doctor_rows
from emtc_core.errors import ConfigError, StorageError
from emtc_core.install import CHECKOUT, FIRST_FAISS, FROM_CHECKOUT, find_faiss, get_install_command
from emtc_core.kernel_cache import check_kernel_cache
from storage.files import FILES_VARIABLE, check_files_folder, get_configured_folder

CHROME_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_NEEDED_PACKAGES = ("torch", "numba", "streamlit", "sqlalchemy", "umap-learn", "openTSNE")
_GPU_TIMEOUT_S = 120


@dataclass(frozen=True)
class Check:
    """Result of one check."""

    name: str
    usable: bool
    needed: bool
    """Whether the program cannot work without it."""
    detail: str
    advice: str
    """How to install it; empty if it is usable."""


def run_checks() -> list[Check]:
    """Run every check. This takes some seconds."""
    gpu = _check_gpu()
    return [
        *_check_libraries(),
        _check_kernel_cache(),
        *_list_gpu_checks(gpu),
        *_list_mps_checks(gpu),
        _check_faiss(gpu.get("name", "")),
        _check_chrome(),
        _check_apprise(),
        _check_files(),
        *_check_environments(),
    ]


def find_chrome() -> str | None:
    """Find an installed Chromium or Chrome."""
    paths = [shutil.which(name) for name in CHROME_NAMES]
    return next((path for path in paths if path is not None), None)


def _make_check(name: str, usable: bool, detail: str, *, advice: str = "", needed: bool = False) -> Check:
    return Check(name, usable, needed, detail, "" if usable else advice)


def _check_libraries() -> list[Check]:
    checks = []
    for package in _NEEDED_PACKAGES:
        try:
            checks.append(_make_check(package, True, importlib.metadata.version(package), needed=True))
        except importlib.metadata.PackageNotFoundError:
            checks.append(_make_check(package, False, "not installed", advice=FROM_CHECKOUT, needed=True))
    return checks


def _check_kernel_cache() -> Check:
    """Check whether numba can store compiled kernels, those of umap-learn included."""
    try:
        check_kernel_cache("emtc_core", "umap")
    except ConfigError as exc:
        detail = "no folder for compiled kernels is writable"
        return Check("kernel-cache", usable=False, needed=True, detail=detail, advice=str(exc))
    return _make_check("kernel-cache", True, "compiled kernels can be stored", needed=True)


def _check_gpu() -> dict[str, Any]:
    """Return the report of `gpu_check`, made in another process; empty if there is no GPU or torch fails."""
    command = [sys.executable, "-m", "app.jobs.gpu_check"]
    try:
        done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=True, timeout=_GPU_TIMEOUT_S)
    except (subprocess.SubprocessError, OSError):
        return {}
    return json.loads(done.stdout)


def _list_gpu_checks(gpu: dict[str, Any]) -> list[Check]:
    if not gpu:
        advice = "install a CUDA build of torch and a driver"
        return [_make_check("cuda", False, "runs train on the CPU", advice=advice)]
    is_checkout = (CHECKOUT / "tests" / "gpu").is_dir()
    test_command = "; complete comparison with the CPU: python -m pytest -m gpu" if is_checkout else ""
    advice = "a torch for this GPU, see the guide's page On a GPU; until then --set train.device=cpu"
    return [
        _make_check("cuda", True, f"{gpu['name']}{test_command}"),
        *(
            _make_check(f"gpu:{name}", is_correct, detail, advice=advice, needed=True)
            for name, is_correct, detail in gpu["results"]
        ),
    ]


def _list_mps_checks(gpu: dict[str, Any]) -> list[Check]:
    """Check whether several trainings can compute on the GPU at the same time; nothing is checked without a GPU."""
    if not gpu:
        return []
    is_running = is_mps_running()
    detail = "several trainings share the GPU" if is_running else "not running; several trainings take turns on the GPU"
    return [_make_check("mps", is_running, detail, advice=MPS_COMMAND)]


def _check_faiss(gpu: str) -> Check:
    """Check whether a usable version of faiss for GPUs is installed, and whether there is a GPU.

    faiss searches the neighbors of the states in the episodic memory.

    Args:
        gpu: Name of the GPU; empty if there is none.
    """
    without_faiss = "torch compares every node on the GPU" if gpu else "neighbors are searched on the CPU"
    install = get_install_command("gpu")
    faiss = find_faiss()
    if not faiss.version:
        return _make_check("faiss", False, f"not installed; {without_faiss}", advice=install)
    if not faiss.is_usable:
        needed = ".".join(map(str, FIRST_FAISS))
        detail = f"{faiss.version} is too old, {needed} or newer is needed; {without_faiss}"
        return _make_check("faiss", False, detail, advice=f"{install} --upgrade")
    if not gpu:
        advice = "a GPU, its driver, and a torch for CUDA"
        return _make_check(
            "faiss", False, f"{faiss.version}, but there is no GPU to use; {without_faiss}", advice=advice
        )
    return _make_check("faiss", True, f"{faiss.version}, GPU neighbor search")


def _check_chrome() -> Check:
    path = find_chrome()
    detail = path or "only the browser tests need it"
    return _make_check("chrome", path is not None, detail, advice="apt-get install chromium")


def _check_apprise() -> Check:
    is_installed = importlib.util.find_spec("apprise") is not None
    detail = "alerts can be sent: set EMTC_NOTIFY" if is_installed else "alerts stay in the app"
    return _make_check("apprise", is_installed, detail, advice=get_install_command("alerts"))


def _check_files() -> Check:
    """Check whether the folder for the files of new runs is writable."""
    try:
        folder = get_configured_folder()
        check_files_folder()
    except StorageError as exc:
        return _make_check("files", False, f"{FILES_VARIABLE} cannot be used", advice=str(exc))
    default = f"next to the database; set {FILES_VARIABLE} to share them between machines"
    return _make_check("files", True, str(folder or default))


def _check_environments() -> list[Check]:
    return [
        _make_check(f"env:{row.env}", row.usable, row.reason, advice=row.how_to_get, needed=row.env == "skirmish")
        for row in list_doctor_rows()
    ]
