"""Check which optional parts are installed and usable, and how to install the others: `emtc doctor`, page Health.

Torch is loaded in another process, because the app never loads it.
"""

import importlib.metadata
import importlib.util
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from emtc_core.envs.registry import list_doctor_rows
from emtc_core.errors import ConfigError, StorageError
from emtc_core.install import FIRST_FAISS, FROM_CHECKOUT, find_faiss, get_install_command
from emtc_core.kernel_cache import check_kernel_cache
from storage.files import FILES_VARIABLE, check_files_folder, get_configured_folder

CHROME_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
NEEDED = ("torch", "numba", "streamlit", "sqlalchemy", "umap-learn", "openTSNE")
_ROOT = Path(__file__).resolve().parents[2]
_PRINT_GPU_NAME = "import torch; print(torch.cuda.get_device_name() if torch.cuda.is_available() else '')"
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
    gpu = _find_gpu()
    return [
        *_check_libraries(),
        _check_kernel_cache(),
        _check_device(gpu),
        _check_faiss(gpu),
        _check_chrome(),
        _check_apprise(),
        _check_files(),
        *_check_environments(),
    ]


def find_chrome() -> str | None:
    """Find an installed Chromium or Chrome."""
    return next(filter(None, map(shutil.which, CHROME_NAMES)), None)


def _make_check(name: str, usable: bool, detail: str, *, advice: str = "", needed: bool = False) -> Check:
    return Check(name, usable, needed, detail, "" if usable else advice)


def _check_libraries() -> list[Check]:
    checks = []
    for package in NEEDED:
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


def _check_device(gpu: str) -> Check:
    if gpu:
        return _make_check("cuda", True, gpu)
    return _make_check("cuda", False, "runs train on the CPU", advice="install a CUDA build of torch and a driver")


def _find_gpu() -> str:
    """Return the name of the GPU according to torch in another process; "" if there is none or torch fails."""
    command = [sys.executable, "-c", _PRINT_GPU_NAME]
    try:
        done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=True, timeout=_GPU_TIMEOUT_S)
    except (subprocess.SubprocessError, OSError):
        return ""
    return done.stdout.strip()


def _check_faiss(gpu: str) -> Check:
    """Check whether a usable version of faiss for GPUs is installed, and whether there is a GPU."""
    without = "torch compares every node on the GPU" if gpu else "neighbors are searched on the CPU"
    install = get_install_command("gpu")
    faiss = find_faiss()
    if not faiss.version:
        return _make_check("faiss", False, f"not installed; {without}", advice=install)
    if not faiss.is_usable:
        needed = ".".join(map(str, FIRST_FAISS))
        detail = f"{faiss.version} is too old, {needed} or newer is needed; {without}"
        return _make_check("faiss", False, detail, advice=f"{install} --upgrade")
    if not gpu:
        advice = "a GPU, its driver, and a torch for CUDA"
        return _make_check("faiss", False, f"{faiss.version}, but there is no GPU to use; {without}", advice=advice)
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
